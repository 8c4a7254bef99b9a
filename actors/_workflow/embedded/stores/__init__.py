"""Stores of graphs in memory, and stores that wrap other stores of any kind.

- `run_store`, `ledger_store`, `command_store`, `snapshot_store`, `artifact_store`: stores in memory.
- `ledgers`: ledgers that notify subscribers of each record, and ledgers that chain records. `offloading`: large
  values as artifacts.
"""
