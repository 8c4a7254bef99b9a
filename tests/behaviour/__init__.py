"""The behaviour of agents and their runs: the same on every backend and in both suspend modes."""
