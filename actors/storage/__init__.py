"""In-memory stores of content, for tests and for programs of one process. Nothing here outlives it.

Values enter by the Protocols of `actors.kernel.storage`, which is below. The runtime is above: its in-memory
rows hold one of each.
"""
