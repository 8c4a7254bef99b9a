"""The write path of a run's log: buffered entries, and the rows that commit with them.

In: entries, and rows that ride with them. Out: appends and commits, in order, and the news that they are
durable. Above: `context`. Below: `replay`.
"""
