"""The beds: {memory, PostgreSQL} and {waiting runs stay hot, waiting runs leave memory at once}.

The event loop is the parameter that chooses the backend: memory runs in virtual time, where no test
sleeps and any socket is an error, PostgreSQL in a loop of the machine.
"""

from __future__ import annotations

import asyncio
import secrets
import zlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from actors.runtime.backends.memory import MemoryStore
from actors.runtime.clock import SystemClock, SystemEntropy
from persistence.postgres import open_postgres_store
from tests.behaviour.bed import Bed
from tests.harness import servers
from tests.harness.simloop import SimClock, SimEntropy, SimLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from actors.kernel.runtime.ids import HostIncarnation
    from actors.kernel.runtime.store import RunStore
    from tests.harness.servers import TestPostgres

_LOOP = "_asyncio_loop_factory"


def _virtual_loop() -> SimLoop:
    return SimLoop(seed=0)


def _real_loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test of this folder once per backend."""
    del config, item
    return {"memory": _virtual_loop, "postgres": _real_loop}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a PostgreSQL, so that `-m 'not postgres'` leaves them out."""
    for item in items:
        call = getattr(item, "callspec", None)
        if call is not None and call.params.get(_LOOP) is _real_loop:
            item.add_marker(pytest.mark.postgres)


@pytest.fixture(scope="session")
def behaviour_schema(postgres_server: TestPostgres) -> Iterator[str]:
    """One schema for all tests of this folder: their agent types differ."""
    name = f"t_{secrets.token_hex(6)}"
    yield name
    asyncio.run(servers.drop_schema(postgres_server, name))


def _memory_bed(loop: SimLoop, suspend_after: float, seed: int) -> Bed:
    loop._choice.seed(seed)
    clock = SimClock(loop)
    first = MemoryStore(clock=clock)

    @asynccontextmanager
    async def open_store(owner: HostIncarnation) -> AsyncIterator[RunStore]:
        del owner
        sibling = first.sibling()
        yield sibling
        sibling.set_nudge_hook(None)

    return Bed("memory", suspend_after, open_store, clock, SimEntropy(seed))


def _postgres_bed(url: str, schema: str, suspend_after: float) -> Bed:
    @asynccontextmanager
    async def open_store(owner: HostIncarnation) -> AsyncIterator[RunStore]:
        opened = open_postgres_store(url, schema=schema, owner=owner, lease_s=60)
        async with opened as store:
            await store.listening()
            yield store

    return Bed("postgres", suspend_after, open_store, SystemClock(), SystemEntropy())


@pytest.fixture(params=[5.0, 0.0], ids=["hot", "drops"])
async def bed(request: pytest.FixtureRequest) -> AsyncIterator[Bed]:
    """A started host without agents, on each backend and in both suspend modes."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, SimLoop):
        seed = zlib.crc32(request.node.nodeid.encode())
        bed = _memory_bed(loop, request.param, seed)
    else:
        server = request.getfixturevalue("postgres_server")
        bed = _postgres_bed(server.url, request.getfixturevalue("behaviour_schema"), request.param)
    await bed.start()
    yield bed
    await bed.stop()
