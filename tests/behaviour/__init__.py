"""Tests of agents and their runs. Each runs on every backend and in both suspend modes."""
