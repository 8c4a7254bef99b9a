"""A run of many branches, and the amount of its work between two turns of the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from actors._kernel.runtime.log_entry import EntryKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from actors._kernel.runtime.ids import AgentId, RunId
    from actors._runtime import Runtime


class Wide:
    """Executes this many steps, then waits for the signal ``go``.

    Attributes: moves: Steps that were started, and steps whose result the code got. replays: How
    often the code was called.
    """

    def __init__(self, id: AgentId, count: int, *, together: bool) -> None:  # noqa: A002
        self.id = id
        self.moves = self.replays = 0
        self._count, self._together = count, together

    async def run(self, ctx: Any, inbox: object) -> str:
        """See the class."""
        del inbox
        self.replays += 1
        if self._together:
            await ctx.gather(*(self._step(ctx, n) for n in range(self._count)))
        else:
            for n in range(self._count):
                await self._step(ctx, n)
        await ctx.sleep_until_signal("go")
        return "done"

    async def _step(self, ctx: Any, n: int) -> None:
        await ctx.step("step", self._begin, n)
        self.moves += 1

    def _begin(self, n: int) -> int:
        self.moves += 1
        return n


async def suspended(runtime: Runtime, run_id: RunId, *, times: int = 1) -> None:
    """Return when the run has been evicted this often."""
    async for entry in runtime.tail(run_id):
        times -= entry.kind == EntryKind.RUN_SUSPENDED
        if not times:
            return


class Ticker:
    """Counts, at every turn of the event loop, by how much something has grown; ``most`` is the most."""

    def __init__(self, counted: Callable[[], int]) -> None:
        self.most = 0
        self._counted = counted
        self._task: asyncio.Task[None] | None = None

    async def _tick(self) -> None:
        before = self._counted()
        while True:
            await asyncio.sleep(0)
            now = self._counted()
            self.most, before = max(self.most, now - before), now

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._tick())
        await asyncio.sleep(0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
