"""The host's leases on shards, and the recovery reads after it takes one over.

In: heartbeats, hints, what other hosts hold. Out: runs, mail and timers given to the worker; shards given
back. `ownership.py` claims and keeps, `recovery.py` reads. `limit_sync.py` shares limits between hosts,
`retention.py` deletes old rows. Above: `runtime.py`. Below: the worker.
"""
