"""The stores of `persistence.files`, in `stores`. Below everything is `atomic`."""
