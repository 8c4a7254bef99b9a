"""A loop with real sockets in virtual time, so that programs on real servers take their exact virtual time.

Time stands still during a call of a server, and while an expected message is in flight
(`Held.expect`). Else it jumps to the next timer, as in a simulation. Calls are counted in the
drivers.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import selectors
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import asyncpg
from typing_extensions import override

from broker._nats.requests import Requests
from tests.harness.simloop import DeadlockError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    import pytest

DEADLOCK_S: Final = 10.0
PATIENCE_S: Final = 5.0
SLICES: Final = 20
"""Number of slices of the wait for a silent server: a machine that stalls takes one of them."""
MOST_FORCED: Final = 20
"""Number of times that time goes on in spite of an open call; then the call counts as lost."""

_ASKS: Final = (
    (asyncpg.Connection, ("close", "execute", "executemany", "fetch", "fetchrow", "fetchval")),
    (Requests, ("request",)),
)


class Held:
    """The reasons for which time stands still: open calls, and expected messages."""

    def __init__(self) -> None:
        self._calls = 0
        self._expected: Counter[str] = Counter()
        self.before_ask: Callable[[], None] = lambda: None
        """Called before a call of a database."""

    @override
    def __repr__(self) -> str:
        return f"{self._calls} calls, {dict(self._expected)}"

    def forget(self) -> None:
        """Expect nothing."""
        self._expected.clear()

    @property
    def is_busy(self) -> bool:
        """Whether time stands still."""
        return bool(self._calls or self._expected)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count an open call."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    def expect(self, name: str) -> None:
        """Expect a message; time stands still until it has come."""
        self._expected[name] += 1

    def came(self, name: str) -> None:
        """Count an arrived message, perhaps an unexpected one."""
        self._expected.pop(name, None)


class _Selector(selectors.DefaultSelector):
    """Lets virtual time pass instead of waiting."""

    loop: HeldLoop

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        if self.loop.held.is_busy:
            for _ in range(SLICES):
                if events := super().select(self.loop.patience_s / SLICES):
                    return events
        if self.loop.jump():
            return []
        events = super().select(DEADLOCK_S)
        if not events:
            raise DeadlockError(f"nothing is ready and no timer is set: {asyncio.all_tasks()}")
        return events


class HeldLoop(asyncio.SelectorEventLoop):
    """See the module's docstring.

    Attributes: held: The reasons for which time stands still. patience_s: Real seconds of silence
    after which time goes on anyway: the expected answer may itself need a timer. seed: Of the
    random choices. forced: How often that was. on_stuck: Called when that was `MOST_FORCED` times.
    """

    _scheduled: list[asyncio.TimerHandle]
    _virtual = 0.0

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.held = Held()
        self.patience_s = PATIENCE_S
        self.seed = self.forced = 0
        self.on_stuck: Callable[[], object] = lambda: None
        super().__init__(selector)

    @override
    def time(self) -> float:
        return self._virtual

    def jump(self) -> bool:
        """Go on to the next timer; return False if there is none."""
        while self._scheduled and self._scheduled[0].cancelled():
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        if not self._scheduled:
            return False
        self.forced += self.held.is_busy
        if self.forced == MOST_FORCED:
            self.on_stuck()
        self._virtual = max(self._virtual, self._scheduled[0].when())
        return True

    async def end_tasks(self) -> None:
        """End all other tasks: crashed hosts leave some."""
        rest = asyncio.all_tasks(self) - {asyncio.current_task(self)}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    @contextmanager
    def watching(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Count the calls of this loop's drivers inside the block."""
        with monkeypatch.context() as patch:
            for owner, names in _ASKS:
                for name in names:
                    patch.setattr(owner, name, self._counted(getattr(owner, name)))
            patch.setattr(asyncpg, "connect", self._counted(asyncpg.connect))
            yield

    def _counted(self, ask: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(ask)
        async def counted(*args: Any, **kwargs: Any) -> Any:
            if asyncio.get_running_loop() is not self:
                return await ask(*args, **kwargs)
            with self.held.call():
                self.held.before_ask()
                return await ask(*args, **kwargs)

        return counted
