"""The agents of one host: their mailboxes, the ready queue, the executions.

In: messages, hints, runs that were taken over. Out: executions, one for an agent at a time.
`worker.py` drives, settles and stops executions. `intake.py` takes what arrives, `adoption.py` the runs of a
new shard. `dispatcher.py` fills the slots, `launcher.py` makes the next execution. Above: sharding, delivery,
schedules and client. Below: `execution`.
"""
