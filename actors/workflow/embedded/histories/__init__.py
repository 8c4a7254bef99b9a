"""Runs as JSON values, for export, import and replay.

- `bundle`: a run with all its stored data, exported and imported. `turns`: the runs of a session as turns of a
  chat.
- `source`: the stores that `bundle` and `turns` read.
"""
