"""RunStore on PostgreSQL."""

from persistence.postgres.heartbeat import Heartbeat
from persistence.postgres.opening import open_postgres_store, open_store
from persistence.postgres.settings import StoreSettings
from persistence.postgres.store import PostgresStore
from persistence.postgres.takeover import Takeover

__all__ = [
    "Heartbeat",
    "PostgresStore",
    "StoreSettings",
    "Takeover",
    "open_postgres_store",
    "open_store",
]
