"""Transport: the contracts of what moves messages between hosts, and of the API for external clients.

The store is the truth: a transport may lose, double and reorder what it moves. Without one, in memory and on
PostgreSQL alone, the sender's commit writes the receiver's row.
"""

from actors._kernel.stores.outside import Caller, EventKind, Front, Order, RunEvent, Sight
from actors._kernel.stores.transport import (
    Cursor,
    Ingested,
    IngestOutcome,
    MailBatch,
    MailConnection,
    MailStore,
    OutboxRow,
    OutboxStore,
    Received,
    SentSignal,
    StaleStream,
    StreamRecord,
    StreamState,
    Transport,
    Undecodable,
)

__all__ = [
    "Caller",
    "Cursor",
    "EventKind",
    "Front",
    "IngestOutcome",
    "Ingested",
    "MailBatch",
    "MailConnection",
    "MailStore",
    "Order",
    "OutboxRow",
    "OutboxStore",
    "Received",
    "RunEvent",
    "SentSignal",
    "Sight",
    "StaleStream",
    "StreamRecord",
    "StreamState",
    "Transport",
    "Undecodable",
]
