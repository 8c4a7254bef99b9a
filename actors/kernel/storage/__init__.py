"""Protocols of agents' data outside their runs: history, vectors, a graph, files and task boards.

Each store is bound to one tenant before an author sees it, so no method takes a tenant. There are only
signatures and values here; backends are in `actors.context`, `actors.storage` and `persistence`.
"""
