"""Tasks that live as long as a block, without changing how the block's own errors look."""

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

    At its end `stop` is called, the second kind may finish within 10 seconds, then all are
    cancelled.
    An error of the block leaves it as it is, not inside an ExceptionGroup.
    """
    failure: BaseException | None = None
    async with asyncio.TaskGroup() as group:
        endless = [group.create_task(start()) for start in until_cancelled]
        ending = [group.create_task(start()) for start in until_stopped]
        try:
            yield
        except BaseException as exc:  # noqa: BLE001 - raised again below
            failure = exc
        stop()
        try:
            if ending:
                await asyncio.wait(ending, timeout=STOP_TIMEOUT_S)
        finally:
            for task in (*ending, *endless):
                task.cancel()
    if failure is not None:
        raise failure
