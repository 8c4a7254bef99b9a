"""A host process: agents are loaded, served until SIGTERM, and told of by HTTP, metrics and logs.

`process` is entered by `callboard host`. The commands are above it; `assembly` and `embedded` are below.
"""
