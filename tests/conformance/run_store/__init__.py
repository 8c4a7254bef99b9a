"""Everything that keeps runs: one contract, on memory, parts put together, and PostgreSQL."""
