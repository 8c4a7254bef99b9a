"""The tests of AbstractRuntime 0.13.0 (MIT), unmodified, over our graphs.

`shim/` has its names, `backend/` keeps its build back end from running. Its source is fetched when the test
runs, checked by its hash, and never committed.
"""
