"""The place of all runs of this process: a store, a clock and an event loop that goes while somebody calls."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from typing_extensions import override

from actors._inmemory.runs.store import MemoryStore
from actors._kernel.basics import Clock
from actors._kernel.runtime.ids import HostIncarnation
from actors._kernel.stores.run_store import RunStore
from actors._runtime import Runtime
from actors._runtime.loop.clock import SystemClock
from tests.harness.simloop import SimClock, SimLoop

T = TypeVar("T")

URL: Final = "COMPAT_POSTGRES"
"""Of the database; without it the rows are in memory, in virtual time."""
SCHEMA: Final = "COMPAT_SCHEMA"


class _SinceNow(SimClock):
    """Virtual time that began at the machine's now: the nodes of the source ask the machine's clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._begun = datetime.fromtimestamp(time.time(), UTC)

    @override
    def now(self) -> datetime:
        return self._begun + timedelta(seconds=self._loop.time())


class Place:
    """A store that hosts come to and leave.

    Attributes:
        calls: How many programs used it.
        clock: The time of its hosts.
    """

    def __init__(self) -> None:
        self.calls = 0
        self._names = itertools.count(1)
        self._url = os.environ.get(URL)
        self._loop = asyncio.new_event_loop() if self._url else SimLoop(seed=0)
        self.clock: Clock = SystemClock() if self._url else _SinceNow(self._loop)
        self._rows = MemoryStore(clock=self.clock)

    def call(self, act: Callable[[Runtime], Awaitable[T]], *, serve: bool = True) -> T:
        """Return what a program does with a runtime of its own, as a host or as a client."""
        self.calls += 1
        return self._loop.run_until_complete(self._called(act, serve=serve))

    async def _called(self, act: Callable[[Runtime], Awaitable[T]], *, serve: bool) -> T:
        owner = HostIncarnation(f"host-{os.getpid()}-{next(self._names)}")
        async with (
            self._store(owner) as store,
            Runtime(
                store=store, clock=self.clock, owner=owner, serve=serve, suspend_after=0.0
            ) as runtime,
        ):
            return await act(runtime)

    @asynccontextmanager
    async def _store(self, owner: HostIncarnation) -> AsyncIterator[RunStore]:
        if self._url is None:
            sibling = self._rows.sibling()
            yield sibling
            sibling.set_nudge_hook(None)
            return
        from persistence.postgres import StoreSettings, open_store  # noqa: PLC0415 - not in memory

        settings = StoreSettings(
            url=self._url, schema=os.environ[SCHEMA], owner=owner, lease_s=60, readers=1
        )
        async with open_store(settings) as store:
            await store.listening()
            yield store


PLACE: Final = Place()
