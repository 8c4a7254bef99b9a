"""The workflow context: `ctx`, which agent code calls, and each of its verbs.

In: calls of the author. Out: recorded values, and entries on their way to the log. `RunContext` has the verbs
and their promises; each is done in the module of its subject. All begin as a `call.Call`: it takes a position
in the run and looks up in `replay` what is recorded there; what is not is done and recorded. Above:
`execution`. Below: `journal`.
"""
