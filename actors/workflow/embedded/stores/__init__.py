"""Stores of graphs in memory, and stores over other stores, of any kind.

- `run_store`, `ledger_store`, `command_store`, `snapshot_store`, `artifact_store`: in memory.
- `ledgers`: ledgers that notify of each record, and that chain them. `offloading`: large values as artifacts.
"""
