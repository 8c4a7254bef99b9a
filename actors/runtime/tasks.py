"""The only place that starts tasks: nothing outlives the scope it was started in."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

_log = logging.getLogger(__name__)


def start_task(
    coro: Coroutine[Any, Any, Any], *, name: str, done: Callable[[asyncio.Task[Any]], None]
) -> asyncio.Task[Any]:
    """Start a task whose owner keeps it and is told of its end by `done`. For branches and runs."""
    task = asyncio.get_running_loop().create_task(coro, name=name)
    task.add_done_callback(done)
    return task


class TaskScope:
    """Background tasks of one long-lived object; leaving the block cancels and awaits them.

    A task that raises is logged with its name and does not end the others.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, coro: Coroutine[Any, Any, Any], *, name: str) -> None:
        """Start `coro`; it is cancelled when the scope ends."""
        task = start_task(coro, name=name, done=self._done)
        self._tasks.add(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            _log.error("background task %s failed", task.get_name(), exc_info=exc)

    def cancel(self) -> None:
        """Ask all tasks to stop, without waiting."""
        for task in tuple(self._tasks):
            task.cancel()

    async def settle(self, *, limit_s: float) -> None:
        """Wait until all tasks have ended by themselves, but not longer than `limit_s` seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        me = asyncio.current_task()
        while pending := [task for task in self._tasks if task is not me]:
            for task in pending:
                task.cancel()
            await asyncio.wait(pending)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
