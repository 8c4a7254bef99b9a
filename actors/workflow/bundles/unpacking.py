"""Processing of the bytes of bundles, which may take seconds of CPU time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from actors.runtime.loop.threads import in_thread

T = TypeVar("T")
_SMALL: Final = 64 * 1024
"""Size of data that is processed in milliseconds, in bytes."""


async def unpacked(call: Callable[[bytes], T], data: bytes) -> T:
    """Return the result of a function of bytes.

    More than 64 KiB are processed in a thread, off the event loop.
    """
    if len(data) <= _SMALL:
        return call(data)
    found: T = await in_thread(call, data)
    return found
