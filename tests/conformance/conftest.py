"""The stores under test, as the fixture `bed`."""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import asyncpg
import pytest

from actors.kernel.runtime.ids import HostIncarnation
from actors.runtime.backends.memory import MemoryStore
from persistence.postgres import open_postgres_store
from tests.conformance.bed import Bed
from tests.conformance.clock import ManualClock
from tests.harness import servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors.kernel.runtime.store import RunStore

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

    yield Bed("memory", first, OWNER, open_host, clock.now, lapse)


@asynccontextmanager
async def postgres_bed(url: str, schema: str) -> AsyncIterator[Bed]:
    """A bed whose hosts are stores of their own on one schema."""

    @asynccontextmanager
    async def open_host(owner: HostIncarnation) -> AsyncIterator[RunStore]:
        async with open_postgres_store(url, schema=schema, owner=owner) as store:
            await store.listening()
            yield store

    async def lapse() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(
                f"update {schema}.hosts set expires_at = clock_timestamp() - interval '1 s'"
            )
        finally:
            await connection.close()

    async with open_host(OWNER) as store:
        yield Bed("postgres", store, OWNER, open_host, lambda: datetime.now(UTC), lapse)


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.postgres)])
async def fresh_bed(request: pytest.FixtureRequest) -> AsyncIterator[Bed]:
    """A host that has claimed nothing, on each backend."""
    if request.param == "memory":
        async with memory_bed() as bed:
            yield bed
        return
    server = request.getfixturevalue("postgres_server")
    # The fixture `schema` is asynchronous, and one of those cannot ask for another while it runs.
    schema = f"t_{secrets.token_hex(6)}"
    try:
        async with postgres_bed(server.url, schema) as bed:
            yield bed
    finally:
        await servers.drop_schema(server, schema)


@pytest.fixture
async def bed(fresh_bed: Bed) -> Bed:
    """A host that owns every shard of its types, on each backend."""
    await fresh_bed.claim()
    return fresh_bed
