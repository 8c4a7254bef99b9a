"""Queries about runs: loading, listing, logs, answers, insight. No query here changes a row.

Ids and filters enter, values of the kernel leave. `mail`, `sharding` and the rooms of other tables are above
it; `commits` (the forms of rows) and `connection` are below.
"""
