"""A seeded event loop in virtual time: no sockets, no threads, no waiting.

The seed picks the next ready callback, so one seed is one interleaving. The clock jumps to the next
timer if nothing is ready. Each access to the outside of the simulation raises `OutsideWorldError`.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import io
import random
import struct
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import pytest
from typing_extensions import override

from actors._runtime.loop import tasks

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Coroutine, Sequence
    from contextvars import Context

T = TypeVar("T")

EPOCH: Final = datetime(2030, 1, 1, tzinfo=UTC)
"""The instant at which virtual time is 0."""

STEPS_PER_INSTANT: Final = 50_000
"""Number of callbacks without progress of the clock that counts as an endless loop."""

_OUTSIDE: Final = (
    "add_reader",
    "add_signal_handler",
    "add_writer",
    "connect_accepted_socket",
    "connect_read_pipe",
    "connect_write_pipe",
    "create_connection",
    "create_datagram_endpoint",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "getaddrinfo",
    "getnameinfo",
    "run_in_executor",
    "sendfile",
    "sock_accept",
    "sock_connect",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_sendall",
    "sock_sendfile",
    "sock_sendto",
    "start_tls",
    "subprocess_exec",
    "subprocess_shell",
)


_STEP: Final = struct.Struct("=QId").pack


class OutsideWorldError(RuntimeError):
    """A socket, a process or a thread was requested inside the simulation."""


class DeadlockError(RuntimeError):
    """Nothing is ready and no timer is set, or time stands still; the message lists the tasks."""


class SimLoop(asyncio.BaseEventLoop):
    """See the module's docstring.

    Attributes: steps: Callbacks run so far. seed: Decides the order of ready callbacks. grain_s:
    Timers this near to each other are due in one instant, the last one's.
    """

    # Attributes of BaseEventLoop that `_run_once` has to maintain.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool
    _timer_cancelled_count: int

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.steps = 0
        self.grain_s = 0.0
        self._choice = random.Random(seed)
        self._virtual = 0.0
        self._trace = hashlib.blake2b(digest_size=8)
        self._at_instant = 0
        self._home = threading.get_ident()

    @property
    def trace(self) -> str:
        """Return a digest of every choice made so far and of its time."""
        return self._trace.hexdigest()

    @override
    def time(self) -> float:
        return self._virtual

    @override
    def call_soon_threadsafe(  # type: ignore[override]  # typeshed ties args to callback
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._home:
            raise OutsideWorldError("a thread called into the simulation")
        return self.call_soon(callback, *args, context=context)

    @override
    def run_forever(self) -> None:
        """Run until it is stopped; functions that the product gives to a thread are called in place."""
        with pytest.MonkeyPatch.context() as patch:
            # A thread takes real time, and virtual time would jump to the time limit of whatever waits for it.
            patch.setattr(tasks, "start_thread", lambda call: call())
            super().run_forever()

    def _process_events(self, event_list: object) -> None:
        """There are no events: nothing is ever polled."""

    def _write_to_self(self) -> None:
        """Do nothing: no selector sleeps."""

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        if not ready or (scheduled and scheduled[0].when() <= self._virtual):
            self._collect_due()
            if not ready:
                return
        self._at_instant += 1
        if self._at_instant > STEPS_PER_INSTANT:
            raise DeadlockError(f"time stands still at {self._virtual:.6f} s\n{self.dump()}")
        pick = self._choice.randrange(len(ready)) if len(ready) > 1 else 0
        handle = ready[pick]
        del ready[pick]
        if handle.cancelled():
            return
        self.steps += 1
        self._trace.update(_STEP(self.steps, pick, self._virtual))
        handle._run()

    def _collect_due(self) -> None:
        """Move due timers to the ready callbacks; jump to the first timer if nothing is ready."""
        scheduled = self._scheduled
        while scheduled and scheduled[0].cancelled():
            self._unschedule()
        if not self._ready and not self._stopping:
            if not scheduled:
                raise DeadlockError(f"nothing is ready and no timer is set\n{self.dump()}")
            if scheduled[0].when() > self._virtual:
                self._virtual, self._at_instant = self._next_instant(), 0
        while scheduled and scheduled[0].when() <= self._virtual:
            handle = self._unschedule()
            if not handle.cancelled():
                self._ready.append(handle)

    def _next_instant(self) -> float:
        """Return when the first timers are due; none of them is early."""
        first = self._scheduled[0].when()
        if not self.grain_s:
            return first
        times = [timer.when() for timer in self._scheduled if not timer.cancelled()]
        return max(at for at in times if at <= first + self.grain_s)

    def _unschedule(self) -> asyncio.TimerHandle:
        handle = heapq.heappop(self._scheduled)
        handle._scheduled = False  # type: ignore[attr-defined]
        if handle.cancelled():
            self._timer_cancelled_count -= 1
        return handle

    def dump(self) -> str:
        """Return every open task, with the innermost place where it waits."""
        out = io.StringIO()
        for task in sorted(asyncio.all_tasks(self), key=lambda t: t.get_name()):
            out.write(f"{task.get_name()}: {_innermost(task)}\n")
        return out.getvalue() or "no task\n"


def _innermost(task: asyncio.Task[Any]) -> str:
    places: list[str] = []
    waiting: Any = task.get_coro()
    while waiting is not None and hasattr(waiting, "cr_frame"):
        if waiting.cr_frame is not None:
            code = waiting.cr_frame.f_code
            places.append(f"{code.co_qualname}:{waiting.cr_frame.f_lineno}")
        waiting = waiting.cr_await
    return " → ".join([*places, type(waiting).__name__ if waiting is not None else "running"])


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refused(*_args: object, **_kwargs: object) -> NoReturn:
        raise OutsideWorldError(f"loop.{name} was called inside the simulation")

    return refused


for _name in _OUTSIDE:
    setattr(SimLoop, _name, _refuse(_name))


class SimClock:
    """A `Clock` with a loop's virtual time, counted from `EPOCH`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> datetime:
        """Return the virtual instant."""
        return EPOCH + timedelta(seconds=self._loop.time())

    def monotonic(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._loop.time()


class SteppedClock(SimClock):
    """A host's clock that is wrong for a while: at given times it gets an offset in seconds.

    Args: loop: Has the right time. steps: Times, and the offset of the clock from then on.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, steps: Sequence[tuple[float, float]]
    ) -> None:
        super().__init__(loop)
        self._steps = sorted(steps)

    @override
    def now(self) -> datetime:
        """Return the instant on the clock."""
        passed = [off for at, off in self._steps if at <= self._loop.time()]
        return super().now() + timedelta(seconds=passed[-1] if passed else 0.0)


class SimEntropy:
    """An `Entropy` that draws the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"entropy {seed}")

    def random(self) -> float:
        """Return the next float in [0, 1)."""
        return self._random.random()

    def token(self) -> str:
        """Return the next 32 hexadecimal digits."""
        return f"{self._random.getrandbits(128):032x}"


def simulate(main: Callable[[SimLoop], Coroutine[Any, Any, T]], *, seed: int) -> tuple[T, SimLoop]:
    """Run `main` to its end in a fresh simulation; tasks it leaves behind are cancelled.

    Returns:
        What `main` returned, and the loop, closed, for its trace and its time.

    Raises:
        OutsideWorldError: Real I/O or a thread was asked for.
        DeadlockError: Nothing can happen any more.
    """
    loop = SimLoop(seed)
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main(loop)), loop
    finally:
        try:
            with suppress(DeadlockError):
                _cancel_rest(loop)
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _cancel_rest(loop: SimLoop) -> None:
    loop._at_instant = 0
    rest = asyncio.all_tasks(loop)
    for task in rest:
        task.cancel()
    if rest:
        loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
