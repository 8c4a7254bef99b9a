"""Grouped commits: the write batches of many runs as the columns of one call of a SQL function.

Commits and appends enter, the outcome of each leaves; `encode` has the forms of rows that
other rooms read and write, too. `reads` and the rooms beside it are above, `connection` is below.
"""
