"""Plain functions that block, in threads of their own."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from actors.errors import ContractError

_ENDED: Final[contextvars.ContextVar[asyncio.Future[Any] | None]] = contextvars.ContextVar(
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
    ended = _ENDED.get()
    return ended is not None and ended.done()


async def in_thread(fn: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Return what ``fn`` returns or raise what it raises; the event loop goes on meanwhile.

    It has the caller's context variables. Cancelling this returns at once: the thread goes on to its
    end, and what it returns is dropped. It keeps no process from ending.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()

    def complete(value: Any, exc: BaseException | None) -> None:
        if ended.done():
            return  # no caller waits any more
        if exc is None:
            ended.set_result(value)
        elif isinstance(
            exc, StopIteration
        ):  # no future takes one; a coroutine would end the same way
            ended.set_exception(RuntimeError(f"{fn!r} raised StopIteration"))
        else:
            ended.set_exception(exc)

    def body() -> None:
        value, raised = None, None
        _ENDED.set(ended)
        try:
            value = fn(*args, **named)
        except BaseException as exc:  # noqa: BLE001 - raised where it is waited for
            raised = exc
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(complete, value, raised)

    start_thread(partial(contextvars.copy_context().run, body))
    return await ended


def start_thread(call: Callable[[], object]) -> None:
    """Call this in a thread of its own, which keeps no process from ending."""
    threading.Thread(target=call, name="callboard step", daemon=True).start()
