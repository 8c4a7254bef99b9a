"""Contracts of the durable runtime: ids, entries of logs, rows, commits, waits.

Values and Protocols without I/O. `kernel.stores` and the rooms of the runtime are above; `kernel.agent` is
beside.
"""
