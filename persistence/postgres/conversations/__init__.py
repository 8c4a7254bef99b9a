"""Features with tables of their own, beside runs and messages: follows, schedules, limits, retention.

Each module calls the SQL functions of one of them: follows and posts by `write_posts`, `expand_fanouts`
and `apply_follows`. The store is above; `reads`, `commits` and `connection` are below.
"""
