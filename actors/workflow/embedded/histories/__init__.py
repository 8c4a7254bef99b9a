"""Runs as JSON values, to be exported, read and played again.

- `bundle`: a run with all that is kept of it, and back. `turns`: the runs of its session as turns of a chat.
- `source`: the stores that both read.
"""
