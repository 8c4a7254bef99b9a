"""The agents of one host: their mailboxes, who is ready, who executes.

In: mail, hints, runs that were taken over. Out: executions, one for an agent at a time.
`worker.py` drives, settles and stops; `intake.py` is told what arrives, `adoption.py` what a new shard
has; `dispatcher.py` fills the places, `launcher.py` makes the next execution. Above: sharding, delivery,
schedules and client. Below: `execution`.
"""
