"""The contract of stores of runs, on memory, parts put together, and PostgreSQL."""
