"""What every backend of a Protocol must do: one suite per Protocol, run on each of them."""
