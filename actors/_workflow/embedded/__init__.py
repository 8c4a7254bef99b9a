"""The embedded driver executes graphs in this process, synchronously, over given stores, without a server.

It carries out the decisions of `actors._workflow.machine`: it calls nodes and handlers, appends records, and
saves checkpoints.

- `runtime`: `WorkflowRuntime`, the public class, and memory that runs share. `scheduler`, `scheduled`: runs
  that continue without a caller.
- `driver`: the loop of one run, and the effects that touch other runs.
- `held_run`: a run while a driver holds it, and the locks of concurrent drivers.
- `registry`: the graphs, the restoration and deletion of runs. `histories`: their export.
- `stores`: stores in memory, and stores that wrap other stores.
"""
