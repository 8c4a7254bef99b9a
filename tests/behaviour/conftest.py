"""The beds: {memory, PostgreSQL, NATS} and {waiting runs stay hot, or leave memory at once}.

The event loop is the parameter that chooses the backend: memory runs in virtual time, where no test
sleeps and any socket is an error, the others in a loop of the machine. NATS means NATS for mail and
PostgreSQL for rows, with nothing that agents send taking the short way inside the host.
"""

from __future__ import annotations

import asyncio
import secrets
import zlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg
import pytest

from actors.runtime.backends.memory import MemoryStore
from actors.runtime.clock import SystemClock, SystemEntropy
from persistence.postgres import StoreSettings, open_postgres_store, open_store
from tests.behaviour.bed import Bed
from tests.harness import servers
from tests.harness.simloop import SimClock, SimEntropy, SimLoop
from tests.harness.slow import IS_SLOW

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from actors.kernel.runtime.ids import HostIncarnation
    from actors.kernel.runtime.store import RunStore
    from tests.harness.servers import TestNats, TestPostgres

_LOOP = "_asyncio_loop_factory"
_HOT_S = 5.0


def _virtual_loop() -> SimLoop:
    return SimLoop(seed=0)


def _real_loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


class _BrokeredLoop(asyncio.SelectorEventLoop):
    """A loop of the machine, for the tests on NATS."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test of this folder once per backend; those marked `nats` are about the broker."""
    del config
    if item.get_closest_marker("nats"):
        return {"nats": _BrokeredLoop}
    return {"memory": _virtual_loop, "postgres": _real_loop, "nats": _BrokeredLoop}


_WITHOUT_MAIL = frozenset(
    (
        "approvals", "branches", "budgets", "cancel", "decisions", "divergence", "fairness", "fork",
        "housekeeping", "in_doubt", "life_cycle", "limits", "llm", "middleware", "registration",
        "result_cache", "retention", "retries", "schedules", "secrets", "spawn", "steps", "submit",
        "tool_approvals", "tools", "trees", "values", "versions", "waits",
    )
)  # fmt: skip


_BY_BROKER = frozenset(("test_broker_mail", "test_broker_reach"))


def _is_played_elsewhere(item: pytest.Item) -> bool:
    """Whether another assembly or mode plays the same; see below."""
    call = getattr(item, "callspec", None)
    if call is None or call.params.get(_LOOP) is _virtual_loop or item.path.stem in _BY_BROKER:
        return False
    if call.params.get(_LOOP) is _BrokeredLoop and item.path.stem[5:] in _WITHOUT_MAIL:
        return True
    return bool(call.params.get("bed") == _HOT_S)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need a server, so that `-m 'not postgres'` leaves them out.

    What no mail takes part in runs on NATS in no test of its own: nothing in it differs from PostgreSQL
    alone. With servers all runs leave memory when they wait, which is the harder mode; hot ones are
    played in memory. A thousand random programs play all of it on both, half of them hot, and
    `CALLBOARD_TEST_SLOW=1` every test everywhere.
    """
    left_out = [] if IS_SLOW else [item for item in items if _is_played_elsewhere(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
    postgres, nats = pytest.mark.postgres, pytest.mark.nats
    marks: dict[object, list[pytest.MarkDecorator]] = {
        _real_loop: [postgres],
        _BrokeredLoop: [postgres, nats],
    }
    for item in items:
        call = getattr(item, "callspec", None)
        loop: object = None if call is None else call.params.get(_LOOP)
        for mark in marks.get(loop, ()):
            item.add_marker(mark)


@pytest.fixture(scope="session")
def behaviour_schema(postgres_server: TestPostgres) -> Iterator[str]:
    """One schema for all tests of this folder on PostgreSQL alone: their agent types differ."""
    name = f"t_{secrets.token_hex(6)}"
    yield name
    asyncio.run(servers.drop_schema(postgres_server, name))


@pytest.fixture(scope="session")
def brokered_schema(postgres_server: TestPostgres) -> Iterator[str]:
    """Another one for the tests on NATS: hosts of one database are all with a broker, or none is."""
    name = f"t_{secrets.token_hex(6)}"
    yield name
    asyncio.run(servers.drop_schema(postgres_server, name))


@pytest.fixture(scope="session")
def behaviour_namespace(nats_server: TestNats) -> Iterator[str]:
    """One namespace for all tests of this folder: their agent types differ."""
    name = f"t-{secrets.token_hex(6)}"
    yield name
    asyncio.run(servers.drop_namespace(nats_server, name))


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


def _nats_bed(nats: str, namespace: str, *, url: str, schema: str, suspend_after: float) -> Bed:
    @asynccontextmanager
    async def open_host(owner: HostIncarnation) -> AsyncIterator[RunStore]:
        settings = StoreSettings(
            url=url, schema=schema, owner=owner, lease_s=60, brokered=True, local_delivery=False
        )
        async with open_store(settings) as store:
            await store.listening()
            yield store

    return Bed("nats", suspend_after, open_host, SystemClock(), SystemEntropy(), (nats, namespace))


async def _forget_shards(url: str, schema: str) -> None:
    """Let no later host take over, and read, what the agents of a test that is over had."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"delete from {schema}.shards")
    finally:
        await connection.close()


@pytest.fixture(params=[_HOT_S, 0.0], ids=["hot", "drops"])
async def bed(request: pytest.FixtureRequest) -> AsyncIterator[Bed]:
    """A started host without agents, on each backend and in both suspend modes."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, SimLoop):
        seed = zlib.crc32(request.node.nodeid.encode())
        bed = _memory_bed(loop, request.param, seed)
        await bed.start()
        yield bed
        await bed.stop()
        return
    url = request.getfixturevalue("postgres_server").url
    is_brokered = isinstance(loop, _BrokeredLoop)
    schema = request.getfixturevalue("brokered_schema" if is_brokered else "behaviour_schema")
    if is_brokered:
        nats = request.getfixturevalue("nats_server").url
        namespace = request.getfixturevalue("behaviour_namespace")
        bed = _nats_bed(nats, namespace, url=url, schema=schema, suspend_after=request.param)
    else:
        bed = _postgres_bed(url, schema, request.param)
    await bed.start()
    yield bed
    await bed.stop()
    await _forget_shards(url, schema)
