"""What a run's turn becomes: commits of many runs as the columns of one SQL function (`writing` says which).

Commits and appends enter, what became of each leaves; `encode` and `rows` are the forms of rows that
other rooms read and write, too. `reads` and the rooms beside it are above, `connection` is below.
"""
