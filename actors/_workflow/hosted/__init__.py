"""The actor driver: a run of a graph is the one run of an agent, on any host of its app.

It carries out the decisions of `actors._workflow.machine` with the methods of agents: effects are journaled,
waits are rows, pauses of retries are timers, branches are branches of `gather`, sub-graphs are child runs. The
log has entries ``graph.step`` with the records of decisions. The ledger is read from these entries.

- `flows`: `Flows`, the graphs of an app, served by a runtime, and the agent of a run. `runs`: `FlowRuns` starts
  runs and answers their waits.
- `graph_run`: the run's loop. `decisions`: the run's state and the records that lead to it.
- `waits`: the ends of the run's waits, sub-graphs and control. `step_entry`: the data that the log keeps.
"""
