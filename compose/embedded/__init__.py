"""Real servers from wheels, on free loopback ports, owned by this process.

`start_postgres`, `start_nats` and `start_valkey` give a running server over a data directory. It
ends when it is stopped, when its owner ends, and, on Linux, when its owner is killed. Two processes
never share a directory: the second gets an error that names the holder, or asks `url_if_running` for the first
one's server.
"""

from compose.embedded.errors import DataDirInUseError, EmbeddedServerMissingError, ServerFailedError
from compose.embedded.nats import NatsServer, start_nats
from compose.embedded.owned import EmbeddedServer, url_if_running
from compose.embedded.postgres import PostgresServer, start_postgres
from compose.embedded.server import Server
from compose.embedded.valkey import ValkeyServer, start_valkey

__all__ = [
    "DataDirInUseError",
    "EmbeddedServer",
    "EmbeddedServerMissingError",
    "NatsServer",
    "PostgresServer",
    "Server",
    "ServerFailedError",
    "ValkeyServer",
    "start_nats",
    "start_postgres",
    "start_valkey",
    "url_if_running",
]
