"""Work on the bytes of bundles, which may take seconds of CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from actors.runtime.loop.threads import in_thread

T = TypeVar("T")
_SMALL: Final = 64 * 1024
"""Bytes that are read in milliseconds."""


async def unpacked(call: Callable[[bytes], T], data: bytes) -> T:
    """Return what a function makes of bytes; of more than 64 KiB in a thread, so that the loop goes on."""
    if len(data) <= _SMALL:
        return call(data)
    found: T = await in_thread(call, data)
    return found
