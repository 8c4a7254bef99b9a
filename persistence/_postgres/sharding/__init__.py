"""Heartbeats and leases of hosts, claims of shards, and the backlog that a new owner reads.

The runtime's ownership enters; leases, with their epochs, leave. The store is above; `commits` (the
forms of rows) and `connection` are below.
"""
