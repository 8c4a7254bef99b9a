"""The embedded driver: graphs in this process, synchronous, over stores of one's choice, without a server.

It carries out what `actors.workflow.machine` wants: calls nodes and handlers, appends records, and
saves checkpoints.

- `runtime`: `WorkflowRuntime`, the public class. `scheduler`, `scheduled`: what goes on by itself.
- `driver`: the loop of one run. `other_runs`: the effects that touch other runs. `handlers`: the host's.
- `held_run`: a run while a driver holds it. `run_locks`, `wishes`: drivers beside each other.
- `starting`, `restoring`, `deletion`, `history`: the start and the end of runs, and what can be exported.
- `stores`: stores in memory, and stores over others.
"""
