"""A host process: it loads agents, serves them until SIGTERM, and reports by HTTP, metrics and logs.

`callboard host` calls `process`. The commands import this package, which imports `assembly` and `embedded`.
"""
