"""The verbs of `ctx`, which an agent's code calls.

In: calls of the author. Out: recorded values, and entries on their way to the log. `RunContext` has the verbs
and their promises; each is done in the module of its subject. All begin as a `call.Call`. It takes a position
in the run and looks up its entry in `replay`. A call without an entry is executed and recorded. Above:
`execution`. Below: `journal`.
"""
