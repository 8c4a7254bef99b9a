"""Tasks that live as long as a block. An error of the block is not wrapped in an ExceptionGroup."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Final

STOP_TIMEOUT_S: Final = 10.0


@asynccontextmanager
async def background(
    until_cancelled: Sequence[Callable[[], Coroutine[object, object, None]]],
    until_stopped: Sequence[Callable[[], Coroutine[object, object, None]]],
    *,
    stop: Callable[[], None],
) -> AsyncIterator[None]:
    """Run tasks while the block lasts.

    At the block's end `stop` is called. The tasks of `until_stopped` may finish within 10 seconds, then all
    tasks are cancelled. An error of the block is raised as it is, not inside an ExceptionGroup.
    """
    failure: BaseException | None = None
    async with asyncio.TaskGroup() as group:
        endless_tasks = [group.create_task(start()) for start in until_cancelled]
        ending_tasks = [group.create_task(start()) for start in until_stopped]
        try:
            yield
        # Kept, and raised outside of the group: a TaskGroup would wrap it in an ExceptionGroup.
        except BaseException as exc:  # noqa: BLE001 - raised again below
            failure = exc
        stop()
        try:
            if ending_tasks:
                await asyncio.wait(ending_tasks, timeout=STOP_TIMEOUT_S)
        finally:
            for task in (*ending_tasks, *endless_tasks):
                task.cancel()
    if failure is not None:
        raise failure
