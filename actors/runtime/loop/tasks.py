"""The only place that starts tasks: nothing outlives the scope it was started in."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from types import TracebackType
from typing import Any, Final, Self

from actors.runtime.telemetry.trace_context import executing

_log = logging.getLogger("callboard.loop")

BEGIN_AGAIN_S: Final = 1.0
"""Pause before failed work begins again."""


def start_task(
    coro: Coroutine[Any, Any, Any],
    *,
    name: str,
    done: Callable[[asyncio.Task[Any]], None],
    context: Context | None = None,
) -> asyncio.Task[Any]:
    """Start a task whose owner keeps it and is notified of its end by `done`. For branches and runs.

    It sees the caller's context variables, or those of `context`.
    """
    task = asyncio.get_running_loop().create_task(coro, name=name, context=context)
    task.add_done_callback(done)
    return task


def run_loop(
    main: Coroutine[Any, Any, None], make: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> None:
    """Return when `main`, in an event loop of its own, has ended; raise what it raised.

    In asyncio, a `SystemExit` or `KeyboardInterrupt` in any task or callback ends the loop, also in tasks that
    agents' code started. Here it ends only that task or callback, and `loop.stop()` does not end the loop.

    Args:
        main: The program.
        make: Function that makes the loop; None: asyncio's own loop.
    """
    with asyncio.Runner(loop_factory=make) as runner:
        loop = runner.get_loop()
        task = loop.create_task(main, name="main")
        while not task.done():
            try:
                loop.run_until_complete(task)
            except (SystemExit, KeyboardInterrupt, RuntimeError) as exc:
                if task.done() or loop.is_closed() or _is_typed(exc):
                    raise
                _log.error("agent code tried to end this process; the host goes on", exc_info=exc)


def _is_typed(exc: BaseException) -> bool:
    """Return True if a person pressed Ctrl-C where the loop does not hear it: at the very start and end."""
    handler = signal.getsignal(signal.SIGINT)
    return isinstance(exc, KeyboardInterrupt) and handler is signal.default_int_handler


async def until_free(lock: asyncio.Lock, *, limit_s: float) -> None:
    """Return when the lock's present holder has released it, or that takes too long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s), lock:
            pass


async def happens(event: asyncio.Event, *, within_s: float) -> bool:
    """Wait for an event; False when that takes too long."""
    try:
        async with asyncio.timeout(within_s):
            return await event.wait()
    except TimeoutError:
        return False


class TaskScope:
    """Background tasks of one long-lived object; leaving the block cancels and awaits them.

    A task that raises is logged with its name and does not end the others.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, coro: Coroutine[Any, Any, Any], *, name: str) -> None:
        """Start `coro`; it is cancelled when the scope ends.

        An execution may be what starts it; its log lines and spans are not that run's.
        """
        context = None if executing.get() is None else Context()
        task = start_task(coro, name=name, done=self._done, context=context)
        self._tasks.add(task)

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> None:
        """Start `work()` and, after an error that it did not expect, again until the scope ends.

        For what no host may go on without: ending silently would look like nothing to do.
        """
        self.start(_kept(work, name), name=name)

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
        while pending := self._tasks - {asyncio.current_task()}:
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


async def _kept(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    while True:
        try:
            return await work()
        except Exception:  # noqa: BLE001 - the host's loop boundary
            _log.exception("background task %s failed and begins again", name)
        await asyncio.sleep(BEGIN_AGAIN_S)
