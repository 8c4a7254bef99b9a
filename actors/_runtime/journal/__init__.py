"""The write path of a run's log: buffered entries, and the rows that commit with them.

In: entries, and rows of the same commit. Out: appends and commits, in order, and a notification when they
are durable. Above: `verbs`. Below: `replay`.
"""
