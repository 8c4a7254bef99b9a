"""In-memory stores of content, for tests and for programs of one process. All content is lost with it.

The stores implement the Protocols of `actors._kernel.stores`. The room `runs` is a
whole store of runs, which has one of each.
"""
