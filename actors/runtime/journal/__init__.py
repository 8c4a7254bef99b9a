"""What a run records, on its way to rows.

In: entries, and rows that ride with them. Out: appends and commits, in order, and the news that they are
durable. Above: `context`. Below: `replay`.
"""
