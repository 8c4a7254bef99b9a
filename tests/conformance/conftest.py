"""The stores under test, as the fixture `bed`."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

from actors._kernel.runtime.ids import HostIncarnation
from actors._runtime.loop.clock import SystemClock, SystemEntropy
from actors._runtime.parts import (
    ComposedStore,
    InMemoryEventLog,
    InMemoryInbox,
    InMemoryJournal,
    InMemoryScheduler,
    InMemorySignalBus,
    MemoryStore,
)
from persistence._postgres.connection.link import TypedConnection
from persistence.postgres import StoreSettings, open_store
from tests.conformance.bed import Bed
from tests.conformance.clock import ManualClock
from tests.conformance.source import Source
from tests.harness.lasting import lasting_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from actors._kernel.stores.run_store import RunStore
    from tests.harness.servers import Schemas


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run all tests of this folder in one loop, whose connections last."""
    return {"lasting": lasting_loop}


OWNER = HostIncarnation("host-1")
LEASE_S = 10.0


@asynccontextmanager
async def memory_bed() -> AsyncIterator[Bed]:
    """A bed whose hosts are siblings of one MemoryStore, on a clock that stands still."""
    clock = ManualClock()
    first = MemoryStore(clock=clock, lease_s=LEASE_S)

    @asynccontextmanager
    async def open_host(owner: HostIncarnation) -> AsyncIterator[RunStore]:
        del owner
        sibling = first.sibling()
        yield sibling
        sibling.set_nudge_hook(None)

    async def lapse() -> None:
        clock.advance(LEASE_S + 1)

    yield Bed("memory", first, OWNER, open_host, clock, lapse)


@asynccontextmanager
async def composed_bed() -> AsyncIterator[Bed]:
    """A bed on a ComposedStore all of whose parts are given to it."""
    clock = ManualClock()
    store = ComposedStore(
        clock=clock,
        event_log=InMemoryEventLog(clock=clock),
        inbox=InMemoryInbox(clock=clock),
        journal=InMemoryJournal(),
        scheduler=InMemoryScheduler(clock=clock, entropy=SystemEntropy()),
        signal_bus=InMemorySignalBus(clock=clock),
    )

    @asynccontextmanager
    async def open_host(owner: HostIncarnation) -> AsyncIterator[RunStore]:
        raise NotImplementedError(owner)
        yield store

    async def lapse() -> None:
        raise NotImplementedError

    yield Bed("composed", store, OWNER, open_host, clock, lapse)


@asynccontextmanager
async def postgres_bed(url: str, schema: str, *, brokered: bool = False) -> AsyncIterator[Bed]:
    """A bed whose hosts are stores of their own on one schema.

    With a broker, mail for agents of other hosts goes to the outbox; here all agents are one host's.
    """

    @asynccontextmanager
    async def open_host(owner: HostIncarnation) -> AsyncIterator[RunStore]:
        settings = StoreSettings(url=url, schema=schema, owner=owner, brokered=brokered, lease_s=60)
        async with open_store(settings) as store:
            await store.listening()
            yield store

    async def lapse() -> None:
        connection = await asyncpg.connect(
            url, connection_class=TypedConnection, server_settings={"application_name": "test"}
        )
        try:
            await connection.execute(
                f"update {schema}.hosts set expires_at = clock_timestamp() - interval '1 s'"
            )
        finally:
            await connection.close()

    async with open_host(OWNER) as store:
        backend = "brokered" if brokered else "postgres"
        yield Bed(backend, store, OWNER, open_host, SystemClock(), lapse)


@asynccontextmanager
async def bed_of(backend: str, request: pytest.FixtureRequest) -> AsyncIterator[Bed]:
    """A host on this backend that has claimed nothing."""
    if backend not in ("postgres", "brokered"):
        async with {"memory": memory_bed, "composed": composed_bed}[backend]() as bed:
            yield bed
        return
    url = request.getfixturevalue("postgres_server").url
    schemas: Schemas = request.getfixturevalue("schemas")
    async with (
        schemas.lent() as schema,
        postgres_bed(url, schema, brokered=backend == "brokered") as bed,
    ):
        yield bed


HERE = Path(__file__).parent
_ABOUT_MAIL = frozenset(
    (
        *("parts/test_fanout.py", "stores/test_mail.py", "stores/test_posts.py"),
        *("run_store/test_turns.py", "run_store/test_mail.py", "run_store/test_unnoticed.py"),
        *("run_store/test_talk_answers.py", "run_store/test_talk_tree.py"),
    )
)
"""What a broker changes in the rows: how messages leave, arrive and are found again."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests on rows of hosts with a broker where those are written like all others."""
    left_out = {item for item in items if _is_the_same_brokered(item)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _is_the_same_brokered(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    is_brokered = call is not None and "brokered" in call.params.values()
    is_ours = is_brokered and item.path.is_relative_to(HERE)
    return is_ours and str(item.path.relative_to(HERE)) not in _ABOUT_MAIL


@pytest.fixture(
    params=[
        "memory",
        "composed",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("brokered", marks=pytest.mark.postgres),
    ]
)
async def fresh_bed(request: pytest.FixtureRequest) -> AsyncIterator[Bed]:
    """A host that has claimed nothing, on each backend."""
    async with bed_of(request.param, request) as bed:
        yield bed


@pytest.fixture
async def bed(fresh_bed: Bed) -> Bed:
    """A host that owns every shard of its types, on each backend."""
    await fresh_bed.claim()
    return fresh_bed


@pytest.fixture(
    params=["in-memory", "memory-view", pytest.param("postgres-view", marks=pytest.mark.postgres)]
)
async def source(request: pytest.FixtureRequest) -> AsyncIterator[Source]:
    """What a single part is made from: nothing, or a view over each store."""
    kind: str = request.param
    if kind == "in-memory":
        yield Source(kind, ManualClock())
        return
    async with bed_of(kind.removesuffix("-view"), request) as bed:
        await bed.claim()
        yield Source(kind, bed.clock, bed)
