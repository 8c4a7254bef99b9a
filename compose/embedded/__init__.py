"""Real servers from wheels, on free loopback ports, owned by this process.

`start_postgres` gives a running PostgreSQL over a data directory. It ends when it is stopped, when
its owner ends, and, on Linux, when its owner is killed. Two processes never share a directory: the
second is told who holds it, or asks `postgres_url_if_running` for the first one's server.
"""

from compose.embedded.errors import (
    DataDirInUseError,
    EmbeddedServerMissingError,
    ServerFailedError,
)
from compose.embedded.postgres import PostgresServer, postgres_url_if_running, start_postgres
from compose.embedded.server import Server

__all__ = [
    "DataDirInUseError",
    "EmbeddedServerMissingError",
    "PostgresServer",
    "Server",
    "ServerFailedError",
    "postgres_url_if_running",
    "start_postgres",
]
