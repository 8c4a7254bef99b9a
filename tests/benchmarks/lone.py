"""The work of one operation when nothing else executes: counts that are the same on every machine."""

from __future__ import annotations

import asyncio
import statistics
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from tests.benchmarks.counting import counting
from tests.benchmarks.serverside import Watch
from tests.benchmarks.workloads import one_outside, staged, suspend, wake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.benchmarks.counting import Counting
    from tests.benchmarks.outside import Servers
    from tests.benchmarks.workloads import Stage

TIMES: Final = 5
"""Number of measurements. The median counts, because a periodic poll may fall into one."""
PLAYS: Final = 4
"""Number of plays between which rows are counted. The median counts, because a heartbeat may fall into one."""
MORE: Final = 5
"""The cost of one operation is the difference between a run with this many more of them and a run with one."""
SETTLED_S: Final = 0.005
MORE_OF_A_RUN: Final = {
    "step": "steps",
    "ask": "asks",
    "child": "lone_children",
    "llm": "models",
    "generate": "talks",
}

Figures = dict[str, float]
OF_LOOP = frozenset({"tasks", "futures", "call_soon"})


class Lone:
    """Counts a host's work for single plays."""

    def __init__(self, counts: Counting, stage: Stage, watch: Watch) -> None:
        self._counts, self._stage, self._watch = counts, stage, watch

    @classmethod
    @asynccontextmanager
    async def on(cls, servers: Servers, **options: Any) -> AsyncIterator[tuple[Lone, Stage]]:
        """Yield one, and the host it counts."""
        with counting() as counts:
            counts.is_telling = True
            async with staged(servers, **options) as stage:
                watcher = await asyncpg.connect(servers.postgres_url)
                try:
                    yield cls(counts, stage, Watch(watcher, stage.store.settings.schema)), stage
                finally:
                    await watcher.close()

    async def each(self, play: Callable[[], Awaitable[None]]) -> Figures:
        """Return the figures of one play; an uncounted play precedes it."""
        pause = await self._counted(_nothing, _least)  # earlier work may still execute beside it
        figures = await self._of(play)
        return {name: figures[name] - pause.get(name, 0) for name in figures}

    async def each_more(self, stage: Stage, do: str) -> Figures:
        """Return the figures that one more of these adds to a run."""
        few = await self._of(lambda: stage.run("lone", do, 1))
        many = await self._of(lambda: stage.run("lone", do, 1 + MORE))
        return {name: (many[name] - few[name]) / MORE for name in few}

    async def _of(self, play: Callable[[], Awaitable[None]]) -> Figures:
        rows = await self._rows(play)
        return {"rows": rows, **await self._counted(play, _middle)}

    async def _counted(
        self, play: Callable[[], Awaitable[None]], of_all: Callable[[str, list[int]], float]
    ) -> Figures:
        plays: list[dict[str, int]] = []
        self._counts.is_telling = False
        for _ in range(TIMES):
            before = self._counts.read(self._stage.store)
            await play()
            await self._settled()
            plays.append((self._counts.read(self._stage.store) - before).figures())
        self._counts.is_telling = True
        return {name: of_all(name, [figures[name] for figures in plays]) for name in plays[0]}

    async def _rows(self, play: Callable[[], Awaitable[None]]) -> int:
        """Return how many rows a play writes; one before it has the sessions tell what they did earlier."""
        rows = []
        for _ in range(PLAYS):
            await play()
            await self._settled()
            rows.append(await self._watch.rows())
        return statistics.median_low(after - before for before, after in pairwise(rows))

    async def _settled(self) -> None:
        """Return when no work is left."""
        while True:
            before = self._counts.read(self._stage.store).statements
            await asyncio.sleep(SETTLED_S)
            is_idle = not self._stage.runtime._host.worker.dispatcher.load
            if is_idle and self._counts.read(self._stage.store).statements == before:
                return


def _least(_: str, counts: list[int]) -> float:
    return min(counts)


def _middle(name: str, counts: list[int]) -> float:
    """Return what a play takes: of the event loop the least.

    On a busy machine an answer may come in two pieces, or behind others, and each takes futures and calls.
    """
    return min(counts) if name in OF_LOOP else statistics.median(counts)


async def _nothing() -> None:
    pass


async def of_runs(servers: Servers) -> dict[str, Figures]:
    """Return the figures of what needs no broker: a run, a step, an ask, a child, a wake."""
    figures: dict[str, Figures] = {}
    async with Lone.on(servers) as (lone, stage):
        figures["run"] = await lone.each(lambda: stage.run("lone", "steps", 0))
        for name, do in MORE_OF_A_RUN.items():
            figures[name] = await lone.each_more(stage, do)
    async with Lone.on(servers, suspend_after=0.0) as (lone, stage):
        await suspend(stage, TIMES + PLAYS)
        figures["wake"] = await lone.each(lambda: wake(stage, 1))
    return figures


async def of_messages(servers: Servers) -> dict[str, Figures]:
    """Return the figures of a message from outside to an idle agent, until its run has ended."""
    async with Lone.on(servers, broker=True) as (lone, stage):
        return {"message": await lone.each(lambda: one_outside(stage, 1))}
