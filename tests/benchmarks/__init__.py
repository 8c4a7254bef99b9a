"""Benchmarks: JSON lines with a floor measured in the same run. `python -m tests.benchmarks`."""
