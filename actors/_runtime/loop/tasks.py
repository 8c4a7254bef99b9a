"""Tasks and threads: the only place that starts them. Nothing outlives the scope it was started in.

Plain functions that block are executed in threads of their own. Readers wait for several sources at once: by
a task for each (`Ahead`), or by the rows that commits hand over (`Pulled`).
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import signal
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from actors._kernel.stores.runs import Handed
from actors._runtime.telemetry.span_attributes import executing
from actors.errors import ContractError

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
        make: Function that makes the loop, or None for asyncio's own loop.
    """
    with asyncio.Runner(loop_factory=make) as runner:
        loop = runner.get_loop()
        task = loop.create_task(main, name="main")
        while not task.done():
            try:
                loop.run_until_complete(task)
            except (SystemExit, KeyboardInterrupt, RuntimeError) as exc:
                # A person pressed Ctrl-C where the loop does not hear it: at the very start and end.
                handler = signal.getsignal(signal.SIGINT)
                is_typed = handler is signal.default_int_handler and isinstance(
                    exc, KeyboardInterrupt
                )
                if is_typed or task.done() or loop.is_closed():
                    raise
                _log.error("agent code tried to end this process; the host goes on", exc_info=exc)


async def until_free(lock: asyncio.Lock, *, limit_s: float) -> None:
    """Return when the lock's present holder has released it, or that takes too long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s), lock:
            pass


async def happens(event: asyncio.Event, *, within_s: float) -> bool:
    """Wait for an event; return False if that takes too long."""
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

        If an execution starts it, its log lines and spans are not that run's.
        """
        context = None if executing.get() is None else Context()
        task = start_task(coro, name=name, done=self._done, context=context)
        self._tasks.add(task)

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> None:
        """Start `work()` and, after an error that it did not expect, again until the scope ends.

        For work that no host may go on without: a silent end would look as if there was nothing to do.
        """
        self.start(_repeat_on_error(work, name), name=name)

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
        # Repeated, because a task that is cancelled may start others while it ends.
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


async def _repeat_on_error(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    while True:
        try:
            return await work()
        except Exception:  # noqa: BLE001 - the host's loop boundary
            _log.exception("background task %s failed and begins again", name)
        await asyncio.sleep(BEGIN_AGAIN_S)


_OUTCOME: Final[contextvars.ContextVar[asyncio.Future[Any] | None]] = contextvars.ContextVar(
    "ended", default=None
)
"""The future that the caller of `in_thread` waits for, in its thread."""


def refuse_coroutines(fn: Callable[..., Any], what: str) -> None:
    """Check that this function can be called in a thread.

    Raises:
        ContractError: It is a coroutine function.
    """
    if inspect.iscoroutinefunction(fn):
        msg = f"{what}: thread=True is for plain functions, and this one is `async`: leave it out"
        raise ContractError(msg)


def is_abandoned() -> bool:
    """Return True in a thread of `in_thread` whose caller was cancelled: its value is dropped."""
    outcome = _OUTCOME.get()
    return outcome is not None and outcome.done()


async def in_thread(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what ``fn`` returns or raise what it raises; the event loop goes on meanwhile.

    It has the caller's context variables. Cancelling this returns at once: the thread goes on to its
    end, and what it returns is dropped. It keeps no process from ending.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()

    def complete(value: Any, exc: BaseException | None) -> None:
        if outcome.done():
            return  # no caller waits any more
        if exc is None:
            outcome.set_result(value)
        # No future takes a StopIteration; a coroutine that raises one ends in the same way.
        elif isinstance(exc, StopIteration):
            outcome.set_exception(RuntimeError(f"{fn!r} raised StopIteration"))
        else:
            outcome.set_exception(exc)

    def body() -> None:
        value, error = None, None
        _OUTCOME.set(outcome)
        try:
            value = fn(*args, **kwargs)
        except BaseException as exc:  # noqa: BLE001 - raised where it is waited for
            error = exc
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(complete, value, error)

    start_thread(partial(contextvars.copy_context().run, body))
    return await outcome


def start_thread(call: Callable[[], object]) -> None:
    """Call this in a thread of its own, which keeps no process from ending."""
    threading.Thread(target=call, name="callboard step", daemon=True).start()


T = TypeVar("T")

MOST_AHEAD: Final = 64
"""Number of values that `Ahead` reads before they are taken."""


class Pulled(Generic[T]):
    """Rows that commits hand over, which a reader takes without a task.

    If rows may be missing, the reader has to read the store from then on.

    Args:
        handed: The rows.
        news: Is set when there are more rows.
        read: Function that begins to read the store from `handed.begin` on. It is called once.
        quiet_s: Seconds without a row after which the reader reads the store, too; None if the store itself
            looks for rows of other processes.
    """

    def __init__(
        self,
        handed: Handed[T],
        news: asyncio.Event,
        read: Callable[[], object],
        *,
        quiet_s: float | None = None,
    ) -> None:
        handed.on_news = news.set
        self._handed, self._quiet_s = handed, quiet_s
        self._read: Callable[[], object] = read
        self._came_any = self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._wait()

    def take(self) -> list[T]:
        """Return the next rows, perhaps none."""
        if self._is_over:
            return []
        rows = self._handed.take()
        if rows:
            self._came_any = True
        elif self._handed.has_to_read:
            read = self._read
            self.close()
            read()
        return rows

    def close(self) -> None:
        """Take no more rows."""
        self._is_over, self._read = True, _no_more  # `read` may be of an object that has this one
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        if self._quiet_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._quiet_s, self._expire)

    def _expire(self) -> None:
        if self._came_any:
            self._came_any = False
            self._wait()
        else:
            self._handed.hand(())


class Ahead(Generic[T]):
    """An iterator whose values are read ahead by a task, up to `MOST_AHEAD` of them.

    Args:
        values: The iterator. Reading begins with the first call of a method.
        news: Is set when there is another value, and at the end. Iterators that are read together share it.
        handed: The values of a store that commits hand over. `values` reads those that they do not.
    """

    def __init__(
        self,
        values: AsyncIterator[T],
        news: asyncio.Event | None = None,
        handed: Handed[T] | None = None,
    ) -> None:
        self._values = values
        self.news = news or asyncio.Event()
        self._pulled = None if handed is None else Pulled(handed, self.news, self._begin)
        self._read: deque[T] = deque()
        self._has_slot = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self._error: Exception | None = None

    async def _read_all(self) -> None:
        try:
            async for value in self._values:
                self._read.append(value)
                self.news.set()
                if len(self._read) >= MOST_AHEAD:
                    self._has_slot.clear()
                    await self._has_slot.wait()
        except Exception as exc:  # noqa: BLE001 - raised to the reader, which is another task
            self._error = exc
        self._is_over = True
        self.news.set()

    def has_next(self) -> bool:
        """Return True if `take` need not wait: the next value, or the end, is known."""
        if self._pulled is not None:
            self._read += self._pulled.take()
        elif self._task is None:
            self._begin()
        return bool(self._read) or self._is_over

    def _begin(self) -> None:
        self._task = start_task(self._read_all(), name="read ahead", done=_ignore)

    async def until_next(self) -> None:
        """Wait until `take` need not wait."""
        while not self.has_next():
            self.news.clear()
            await self.news.wait()

    async def take(self) -> T:
        """Return the next value.

        Raises:
            StopAsyncIteration: There is none.
        """
        await self.until_next()
        if not self._read:
            raise self._error or StopAsyncIteration
        self._has_slot.set()
        return self._read.popleft()

    def peek(self) -> T | None:
        """Return the next value if it is there already, and leave it there."""
        return self._read[0] if self.has_next() and self._read else None

    async def aclose(self) -> None:
        """End the iterator."""
        if self._pulled is not None:
            self._pulled.close()
        self._is_over = True
        task, self._task = self._task, None  # its error has a frame that has this
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        close = getattr(self._values, "aclose", None)
        if close is not None:
            await close()


def _no_more() -> None:
    """Read nothing: the reader is closed."""


def _ignore(task: asyncio.Task[None]) -> None:
    """Do nothing: the reader has the error."""
