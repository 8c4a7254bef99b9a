"""Processing of the bytes of bundles, which may take seconds of CPU time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from actors.runtime.loop.tasks import in_thread

T = TypeVar("T")


async def unpacked(call: Callable[..., T], *args: Any) -> T:
    """Return the result of a function that reads, checks or compiles flows, called in a thread.

    Small flows are processed there, too: 50 KiB may take as long as a megabyte.
    """
    found: T = await in_thread(call, *args)
    return found
