"""Stores of graphs in memory, and stores that wrap other stores of any kind.

- `in_memory`: stores in memory.
- `ledgers`: ledgers that notify subscribers of each record, and ledgers that chain records. `offloading`: large
  values as artifacts.
"""
