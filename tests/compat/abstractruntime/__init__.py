"""The tests of AbstractRuntime 0.13.0 (MIT), unmodified, over our graphs.

`shim/` has its names, over the embedded driver or over that of actors (`driver`, `actor_driver/`).
`actors.toml` lists what the second one cannot play, and why. `backend/` keeps its build back end from running.
Its source is fetched when the test runs, checked by its hash, and never committed.
"""
