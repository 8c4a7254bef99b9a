"""RunStore on PostgreSQL, and the history of conversations that it holds."""

from persistence.postgres.connection.settings import StoreSettings
from persistence.postgres.features.history import PostgresHistoryProvider
from persistence.postgres.opening import (
    catch_up_beside_work,
    open_postgres_files,
    open_postgres_history,
    open_postgres_store,
    open_store,
)
from persistence.postgres.sharding.heartbeat import Heartbeat, Host
from persistence.postgres.sharding.takeover import Takeover
from persistence.postgres.store import PostgresStore

__all__ = [
    "Heartbeat",
    "Host",
    "PostgresHistoryProvider",
    "PostgresStore",
    "StoreSettings",
    "Takeover",
    "catch_up_beside_work",
    "open_postgres_files",
    "open_postgres_history",
    "open_postgres_store",
    "open_store",
]
