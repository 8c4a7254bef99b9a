"""The machine: all rules of a graph's run, as functions of values.

The functions get the state and an input: a node's answer, the outcome of an effect, an answer to a wait, or an
instant. They return records, the new state and the next effect. No function here reads a clock, makes a random
id or does I/O. So every driver that carries out the effects writes the same ledger.

- `spec`: the graph, its events and its policies. `variables`: the names in a run's vars, and its limits.
- `records`: the change of a state by a record. `recovery`: the state after a crash.
- `starting`: new runs. `plans`: the calls of nodes, and the detection of endless loops.
- `attempts`, `waits`: the decisions about effects, waits and requests that need no I/O.
- `branches`: a branch as a run of its own, and the join.
"""
