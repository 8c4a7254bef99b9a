"""What a host asks of its store and its broker: Protocols by role, and the values that pass.

Turns, mail, leases, fan-out, limits, schedules and reads are asked for here; `persistence`, `broker` and the
runtime's in-memory store answer. `kernel.runtime` is below; the whole runtime is above.
"""
