"""A complete store in memory: the same roles as `persistence.postgres`, without a server.

Commits of runs and reads enter, the same answers leave as from `persistence.postgres`; nothing survives
the process. The kernel is below it; `runtime.parts` builds on it and nothing else of the runtime does.
"""
