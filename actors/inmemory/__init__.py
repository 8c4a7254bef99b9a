"""In-memory stores of content, for tests and for programs of one process. All content is lost with it.

The stores implement the Protocols of `actors.kernel.storage`. The runtime's in-memory store has one of each.
"""
