"""The stores of `persistence.sqlite`, in `stores`, over `database`."""
