"""Time limits of asyncio around code that waits: they are in memory only, and end with the task."""

from __future__ import annotations

import asyncio
import gc
from contextlib import AsyncExitStack, ExitStack
from math import inf
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MethodType
from typing import Any, Final

_GENERATORS: Final = (GeneratorType, AsyncGeneratorType)


def has_time_limit(task: asyncio.Task[Any]) -> bool:
    """Return True if the code of a task waits within `asyncio.timeout`, or a limit that is made of it.

    Python keeps no list of them. Each is on the stack of a frame, as the end of the block that the frame is in.
    """
    code = task.get_coro()
    return isinstance(code, CoroutineType) and _is_limited(code)


def _is_limited(code: object) -> bool:
    """Return True if one of the frames from here to the innermost has a block with a time limit."""
    awaited: object = code
    while awaited is not None:
        if any(map(_limits, gc.get_referents(awaited))):
            return True
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return False


def _limits(found: object) -> bool:
    manager = found.__self__ if type(found) is MethodType else found
    kind = type(manager)
    if isinstance(manager, asyncio.Timeout):
        # A variable may still refer to one that is over, which only its text tells apart.
        return manager.when() is not None and "[active]" in repr(manager)
    if kind is ExitStack or kind is AsyncExitStack:
        return any(_limits(end) for _, end in getattr(manager, "_exit_callbacks", ()))
    if kind.__module__ == "contextlib":  # a block that a generator makes
        inner = getattr(manager, "gen", None)
        return isinstance(inner, _GENERATORS) and _is_limited(inner)
    is_scope = kind.__name__ == "CancelScope" and kind.__module__.startswith("anyio")
    return is_scope and getattr(manager, "deadline", inf) < inf
