"""Servers from wheels, on free loopback ports, which this process starts and owns.

`start_postgres`, `start_nats` and `start_valkey` return a running server over a data directory. A server
ends when it is stopped, when its owner ends, and, on Linux, when its owner is killed. Only one process
owns a directory. A second process gets an error that names the owner, or asks `url_if_running` for the URL of
the owner's server.
"""

from compose._embedded.errors import (
    DataDirInUseError,
    EmbeddedServerMissingError,
    ServerFailedError,
)
from compose._embedded.owned import EmbeddedServer, check_data_dir, url_if_running
from compose._embedded.server import Server
from compose._embedded.wheels import (
    NatsServer,
    PostgresServer,
    ValkeyServer,
    start_nats,
    start_postgres,
    start_valkey,
)

__all__ = [
    "DataDirInUseError",
    "EmbeddedServer",
    "EmbeddedServerMissingError",
    "NatsServer",
    "PostgresServer",
    "Server",
    "ServerFailedError",
    "ValkeyServer",
    "check_data_dir",
    "start_nats",
    "start_postgres",
    "start_valkey",
    "url_if_running",
]

__path__: list[str] = []  # modules of the release before were below this one
