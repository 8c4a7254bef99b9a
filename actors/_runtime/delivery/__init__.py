"""Messages between agents and the broker, and posts to followers.

In: batches that consumers deliver, outbox rows, posts. Out: inbox rows, offered to the worker; outbox rows,
published, or written to the receiver's inbox while the broker is away (`mail_service.py`). A message is
acknowledged there too, once its row is durable. Above: `runtime.py`. Below: the worker.
"""
