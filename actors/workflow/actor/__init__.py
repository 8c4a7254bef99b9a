"""The actor driver: a run of a graph is the one run of an agent, on any host of its app.

It carries out what `actors.workflow.machine` wants with the verbs of agents: effects are journaled, waits are
rows, pauses of retries are timers, branches are those of `gather`, sub-graphs are child runs. The log has
entries ``graph.step`` with the records of decisions; the ledger is read from there.

- `flows`: `Flows`, the graphs of an app, served by a runtime. `runs`: `FlowRuns` starts and answers them.
- `agent`: the agent of a run. `graph_run`: its loop. `decisions`: its state, and the records that lead to it.
- `wait_ends`, `sub_graphs`: what ends its waits. `step_entry`, `outcomes`: what the log keeps.
"""
