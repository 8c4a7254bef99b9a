"""The machine: every rule of a run of a graph, as functions from values to values.

What happened enters (an answer of a node, the outcome of an effect, an answer to a wait, an instant), with the
state before; records and what is wanted next leave. No function here reads a clock, draws an id or does I/O,
so each driver that carries out what is wanted comes to the same ledger.

- `spec`: the graph. `variables`: the names in a run's vars. `event_keys`: the names of events.
- `limits`, `policy`: what a run may use, and how often an effect is tried.
- `deltas`: how a record changes a state. `recovery`: the state behind a crash.
- `starting`: new runs. `asking`: the call of a node. `loop_watch`: loops that have no end.
- `plans`, `attempts`, `waits`: the decisions. `records`: what they have in common.
- `branches`: a branch as a run of its own, and the join.
- `requests`: the effects that need no I/O.
"""
