"""Protocols of a host's store and broker, one for each role, and their values.

Commits, messages, leases, fan-out, limits, schedules and reads are asked for here; `persistence`, `broker`
and the runtime's in-memory store answer. `kernel.runtime` is below; the whole runtime is above.
"""
