"""Mail as rows: what arrives, and the outbox of what leaves.

What the broker brings enters at `Mail.ingest` and is durable when that returns: the function is
`schema/functions/ingest_mail.sql`. The relay takes what leaves from `outbox`. What callers submit, deliver
and signal enters at `arrivals`. The store is above; `reads`, `commits` and `connection` are below.
"""
