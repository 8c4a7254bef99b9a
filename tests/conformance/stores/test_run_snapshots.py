"""The contract of every `RunSnapshotStore`: rows of a tenant, newest first, of runs that existed."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from actors._inmemory.flows import InMemoryRunSnapshots
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.stores.flows import NewRunSnapshot, RunSnapshotStore, SnapshotFilter
from persistence._postgres.administration.tables import PostgresRunSnapshots
from tests.conformance.clock import ManualClock
from tests.conformance.stores.stored import lent_links

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Stop = Callable[[], Awaitable[object]]

pytestmark = pytest.mark.item(416)
RUNS = ("r1", "r2")
ADD_RUN = """
insert into runs (run_id, agent, tenant, shard, hash, priority, depth, ended_at)
  values ($1, $2, 'acme', 's', 0, 5, 0, now())
"""
AT_ONE_INSTANT = "update run_snapshots set created_at = '2030-01-01'"


@asynccontextmanager
async def in_memory(request: pytest.FixtureRequest) -> AsyncIterator[tuple[RunSnapshotStore, Stop]]:
    """Return rows of this process, all with one time."""
    del request

    async def stop() -> None:
        pass

    yield InMemoryRunSnapshots(ManualClock().now, lambda run: run in RUNS), stop


@asynccontextmanager
async def in_postgres(
    request: pytest.FixtureRequest,
) -> AsyncIterator[tuple[RunSnapshotStore, Stop]]:
    """Return rows of a schema, and a function that gives them one time."""
    async with lent_links(request) as links:
        for run in RUNS:
            await links.fetch("adding a run", ADD_RUN, run, str(agent_of(run)))
        yield PostgresRunSnapshots(links), lambda: links.fetch("stopping time", AT_ONE_INSTANT)


@pytest.fixture(params=[in_memory, pytest.param(in_postgres, marks=pytest.mark.postgres)])
async def ground(request: pytest.FixtureRequest) -> AsyncIterator[tuple[RunSnapshotStore, Stop]]:
    """An empty store on each backend."""
    async with request.param(request) as new_ground:
        yield new_ground


def agent_of(run: str) -> AgentId:
    """The agent of a run."""
    return AgentId("app", run, "acme")


def new(id_: str, run: str = "r1", name: str = "n") -> NewRunSnapshot:
    """Return a new snapshot."""
    return NewRunSnapshot(id=id_, run_id=RunId(run), agent_id=agent_of(run), seq=3, name=name)


async def test_pages_have_each_snapshot_once_also_of_one_instant(
    ground: tuple[RunSnapshotStore, Stop],
) -> None:
    """Snapshots of one time are ordered by id, descending."""
    store, stop = ground
    for n, run in ((2, "r1"), (1, "r2"), (3, "r1")):
        assert await store.put(new(f"s{n}", run), "{}") is not None
    await stop()
    for only, ids in ((None, ["s3", "s2", "s1"]), (RunId("r1"), ["s3", "s2"])):
        found_ids, after = [], None
        while page := await store.list("acme", SnapshotFilter(run=only, after=after), limit=1):
            found_ids += [row.id for row in page]
            assert len(found_ids) < 9
            after = page[-1]
        assert found_ids == ids


async def test_a_snapshot_is_its_tenants_and_of_a_run_that_is_there(
    ground: tuple[RunSnapshotStore, Stop],
) -> None:
    """It is returned unchanged, with any character of JSON."""
    store, _ = ground
    state = '{"text": "\\u0000 \\ud83d\\ude00 100%_"}'
    row = await store.put(new("s", name="100% ÄRGER"), state)
    assert row is not None
    assert await store.get("acme", "s") == (row, state)
    assert await store.get("default", "s") is None
    assert await store.list("default", SnapshotFilter()) == []
    assert await store.put(new("gone", "r9"), "{}") is None
    for word, is_found in (("0% ärg", True), ("%_", False), ("", True)):
        assert bool(await store.list("acme", SnapshotFilter(query=word))) is is_found
    assert await store.list("acme", SnapshotFilter(apps=["other"])) == []
    assert not await store.remove("default", "s")
    assert [await store.remove("acme", "s") for _ in range(2)] == [True, False]
    assert await store.get("acme", "s") is None
