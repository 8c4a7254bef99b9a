"""`ctx.memory`: what an agent keeps beyond its conversations.

`access` reads and writes the store, bound to the tenant, the scope and the lease of one run; `verbs` records
that. `mixin` gives these verbs, and those of graphs, to `RunContext` and imports them when a run first uses
them. Stores are below, by the Protocols of `actors.kernel.stores.memory`.
"""
