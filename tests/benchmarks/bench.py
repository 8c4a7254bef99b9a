"""Shared parts of the benchmarks: a store, leases of all its shards, limits on concurrency, timing."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import uuid
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors._kernel.runtime.ids import AgentId, HostIncarnation
from actors._kernel.runtime.scheduler import Lease
from actors._kernel.stores.shards import Serves
from actors._runtime import Runtime
from persistence.postgres import open_postgres_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.ids import RunId, ShardId
    from actors._kernel.runtime.scheduler import ShardLease
    from persistence.postgres import PostgresStore

TYPE = "bench"
PAYLOAD: dict[str, JsonValue] = {"text": "x" * 230}
"""About 256 bytes as a recorded value."""


def report(**figures: Any) -> None:
    """Print one JSON line."""
    print(json.dumps(figures), flush=True)  # noqa: T201 - a benchmark's output


def beside(rate: float, *, mock: float, floor: float) -> dict[str, float]:
    """Return a rate's share of both floors: of a plain program, and of the same commits by hand."""
    return {
        "mock_per_s": round(mock),
        "of_mock": round(rate / mock, 3),
        "floor_per_s": round(floor),
        "ratio": round(rate / floor, 3),
    }


def resident_bytes() -> int:
    """Return the memory of this process, after a collection of garbage."""
    gc.collect()
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096


def agent_id(key: object) -> AgentId:
    """Return the id of one of the benchmark's agents."""
    return AgentId(TYPE, str(key))


@asynccontextmanager
async def open_store(url: str) -> AsyncIterator[PostgresStore]:
    """Yield a store in a schema of its own."""
    name = uuid.uuid4().hex[:12]
    async with open_postgres_store(
        url, schema=f"bench_{name}", owner=HostIncarnation(name)
    ) as store:
        yield store


@asynccontextmanager
async def open_runtime(url: str, **settings: Any) -> AsyncIterator[Runtime]:
    """Yield a started runtime over such a store."""
    name = uuid.uuid4().hex[:12]
    owner = HostIncarnation(name)
    async with (
        open_postgres_store(url, schema=f"bench_{name}", owner=owner) as store,
        Runtime(store=store, owner=owner, **settings) as runtime,
    ):
        yield runtime


class Floor:
    """The store without a runtime: leases of all shards, taken by hand."""

    def __init__(self, store: PostgresStore, leases: dict[ShardId, ShardLease]) -> None:
        self.store = store
        self.shards = leases

    @classmethod
    async def over(cls, store: PostgresStore) -> Floor:
        """Own everything of the benchmark's type."""
        serves = Serves((TYPE,))
        await store.shards.declare(serves)
        leases = await store.shards.claim(owner=store.settings.owner, serves=serves, limit=1000)
        return cls(store, {lease.shard: lease for lease in leases})

    def lease(self, agent: AgentId, run_id: RunId) -> Lease:
        """Return the right to write a run."""
        shard_lease = self.shards[self.store.shards.shard_of(agent)]
        return Lease(
            shard_lease.shard,
            shard_lease.owner,
            shard_lease.epoch,
            shard_lease.expires_at,
            run_id,
            agent,
            1,
        )


async def many(
    operation: Callable[[int], Awaitable[Any]], *, total: int, at_once: int, warm_up: bool = True
) -> float:
    """Call `one(i)` for all i with this concurrency; return the duration in seconds."""
    limit = asyncio.Semaphore(at_once)

    async def bounded(index: int) -> None:
        async with limit:
            await operation(index)

    if warm_up:
        await asyncio.gather(*(bounded(-1 - i) for i in range(min(at_once, total))))
    began = time.perf_counter()
    await asyncio.gather(*(bounded(i) for i in range(total)))
    return time.perf_counter() - began


async def rests(runtime: Runtime, run_id: RunId) -> None:
    """Return once the run is suspended."""
    async for entry in runtime.tail(run_id):
        if entry.kind == "run.suspended":
            return


async def woken_s(runtime: Runtime, run_id: RunId) -> float:
    """Return the seconds from the signal that the run waits for to its end: nearly all of it is replay."""
    began = time.perf_counter()
    await runtime.signal(run_id, "go")
    await runtime.result(run_id)
    return time.perf_counter() - began
