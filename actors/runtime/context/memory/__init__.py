"""`ctx.memory`: what an agent keeps beyond its conversations.

`access` reads and writes the store, bound to the tenant, the scope and the lease of one run; `verbs` records
that. `mixin` gives the verbs to `RunContext` and imports them when an agent first uses them. Stores are below,
by the Protocols of `actors.kernel.storage.memory`.
"""
