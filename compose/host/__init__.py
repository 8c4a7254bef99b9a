"""A host process: it loads agents, serves them until SIGTERM, and reports by HTTP, metrics and logs.

`process` is entered by `callboard host`. The commands are above it; `assembly` and `embedded` are below.
"""
