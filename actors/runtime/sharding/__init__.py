"""Which shards this host owns, and what it has to read when it gets one.

In: heartbeats, hints, what other hosts hold. Out: runs, mail and timers given to the worker; shards given
back. `ownership.py` claims and keeps, `recovery.py` reads. Limits are kept in step, and old rows swept,
by who owns them. Above: `runtime.py`. Below: the worker.
"""
