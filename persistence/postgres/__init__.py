"""RunStore on PostgreSQL."""

from persistence.postgres.heartbeat import Heartbeat, Host
from persistence.postgres.opening import open_postgres_store, open_store
from persistence.postgres.settings import StoreSettings
from persistence.postgres.store import PostgresStore
from persistence.postgres.takeover import Takeover

__all__ = [
    "Heartbeat",
    "Host",
    "PostgresStore",
    "StoreSettings",
    "Takeover",
    "open_postgres_store",
    "open_store",
]
