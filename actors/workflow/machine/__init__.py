"""The machine: all rules of a graph's run, as functions of values.

The functions get the state and an input: a node's answer, the outcome of an effect, an answer to a wait, or an
instant. They return records, the new state and the next effect. No function here reads a clock, makes a random
id or does I/O. So every driver that carries out the effects writes the same ledger.

- `spec`: the graph. `variables`: the names in a run's vars. `event_keys`: the names of events.
- `limits`, `policy`: the limits of a run, and the number of attempts of an effect.
- `deltas`: the change of a state by a record. `recovery`: the state after a crash.
- `starting`: new runs. `asking`: the call of a node. `loop_watch`: the detection of endless loops.
- `plans`, `attempts`, `waits`: the decisions. `records`: their common functions.
- `branches`: a branch as a run of its own, and the join.
- `requests`: the effects that need no I/O.
"""
