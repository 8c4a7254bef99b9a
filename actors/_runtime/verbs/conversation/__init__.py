"""Conversations of runs: `ctx.generate`, `ctx.chat`, `ctx.history`.

New turns enter by the verbs. A window is assembled inside the effect that needs it, an answer leaves, and both
become durable as turns of a session, in the commit of the log entry that holds the answer. `run_context` is
above; the effects, the journal and `actors.context` are below.
"""
