"""Topics: who follows them, and the schedules and limits beside them.

Follows and posts use the SQL functions `write_posts`, `expand_fanouts` and `apply_follows`. The store is above;
`reads`, `commits` and `connection` are below.
"""
