"""The host's leases on shards, and the recovery reads after it takes one over.

In: heartbeats, hints, other hosts' shards. Out: runs, messages and timers for the worker; released
shards. `ownership.py` claims, reads and keeps. `limit_sync.py` shares limits between hosts,
`retention.py` deletes old rows. Above: `runtime.py`. Below: the worker.
"""
