"""The parts of `actors.sessions`. `runtime` has the calls; `agent` is what a run of a session executes.

`AgentRuntime.start` writes a message and its run in one commit. The runtime calls the code of the agent as for
any run. `SessionAgent` selects the agent by the run's mode.
"""
