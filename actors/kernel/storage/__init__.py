"""Storage contracts: Protocols of stores that hold content, not runs.

An author's agents, the runtime and the backends meet here. `runtime` and `agent` are below; nothing of this
room does I/O.
"""
