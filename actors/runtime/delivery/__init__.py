"""Mail between agents and the broker, and posts to followers.

In: batches that consumers deliver, outbox rows, posts. Out: rows of inboxes, offered to the worker; what was
published, or handed over past a broker that is of no use (`bypass.py`). A message is acknowledged in
`inbound.py`, once its row is durable. Above: `runtime.py`. Below: the worker.
"""
