"""Messages as rows: inboxes, and the outbox.

Messages from the broker enter at `Mail.ingest` and are durable when it returns: the SQL function is
`schema/functions/ingest_mail.sql`. The relay reads rows to publish from `outbox`. Submits, direct deliveries
and signals of callers enter at `arrivals`. The store is above; `reads`, `commits` and `connection` are below.
"""
