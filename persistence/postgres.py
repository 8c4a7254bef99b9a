"""RunStore on PostgreSQL, the history of conversations that it holds, and stores of agents' data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors._exports import lazy_exports
from persistence._postgres.connection.link import StoreSettings
from persistence._postgres.conversations.transcripts import PostgresHistoryProvider
from persistence._postgres.opening import (
    catch_up_beside_work,
    open_postgres_history,
    open_postgres_store,
    open_store,
)
from persistence._postgres.sharding.heartbeat import Heartbeat, Host
from persistence._postgres.sharding.ownership import Takeover
from persistence._postgres.store import PostgresStore

if TYPE_CHECKING:
    from persistence._postgres.data.graphs import AGEGraphStore, PostgresGraphStore
    from persistence._postgres.data.vectors import PgVectorStore
    from persistence._postgres.opening import (
        open_age_graph,
        open_postgres_files,
        open_postgres_graph,
        open_postgres_vectors,
    )

__all__ = [
    "AGEGraphStore",
    "Heartbeat",
    "Host",
    "PgVectorStore",
    "PostgresGraphStore",
    "PostgresHistoryProvider",
    "PostgresStore",
    "StoreSettings",
    "Takeover",
    "catch_up_beside_work",
    "open_age_graph",
    "open_postgres_files",
    "open_postgres_graph",
    "open_postgres_history",
    "open_postgres_store",
    "open_postgres_vectors",
    "open_store",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_exports(
        __name__,
        {
            "persistence._postgres.opening": (
                "open_age_graph",
                "open_postgres_files",
                "open_postgres_graph",
                "open_postgres_vectors",
            ),
            "persistence._postgres.data.graphs": ("AGEGraphStore", "PostgresGraphStore"),
            "persistence._postgres.data.vectors": ("PgVectorStore",),
        },
    )
