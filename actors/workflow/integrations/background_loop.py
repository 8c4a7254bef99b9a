"""An event loop in its own thread, for drivers whose handlers are plain functions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from actors.errors import ContractError

T = TypeVar("T")


class BackgroundLoop:
    """An event loop that starts with the first call and runs until the process ends.

    All calls share the loop, so clients may keep connections between calls.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Execute a coroutine on the loop; return its result. The calling thread waits for it.

        Raises:
            ContractError: The loop's own thread calls, so it would wait for itself forever.
        """
        if threading.current_thread() is self._thread:
            work.close()
            problem = "a tool drives a run of its own integration. Give it thread=True, or another integration"
            raise ContractError(problem)
        return asyncio.run_coroutine_threadsafe(work, self._started()).result()

    def close(self) -> None:
        """Stop the loop. The next call starts a new loop."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_served, args=(self._loop,), name="callboard models", daemon=True
                )
                self._thread.start()
            return self._loop


def _served(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()
