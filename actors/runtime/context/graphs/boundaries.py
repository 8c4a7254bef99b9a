"""The boundaries of steps of a graph: a run takes signals, computes, and holds while it is paused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from actors.kernel.json import JsonValue
from actors.kernel.runtime.effects import args_hash
from actors.kernel.runtime.log_entry import EntryKind as K
from actors.kernel.runtime.rows import BufferedSignal
from actors.runtime.context.call import Call, Entry, Payload, RunState
from actors.runtime.context.open_waits import PendingWait
from actors.runtime.context.waits import Waits
from actors.runtime.journal.run_log import shown

T = TypeVar("T")
_HELD: Final = args_hash(["hold"])


@dataclass(frozen=True, slots=True)
class Boundary:
    """A boundary of steps, as the log has it.

    Attributes:
        is_known: False: nothing.
        is_held: Whether the branch was held there, or took a signal.
        signal: The payload of that.
    """

    is_known: bool = True
    is_held: bool = False
    signal: JsonValue = None


class BoundaryVerbs:
    """The verbs of boundaries. The log decides, where it has something; else the present does."""

    def __init__(self, run: RunState, waits: Waits) -> None:
        self._run, self._waits = run, waits

    def is_clear(self, name: str) -> bool:
        """Return True if the log has nothing at a boundary of steps, and no signal of this name waits there."""
        run = self._run
        position = run.scheduler.enter("boundary").next_position
        is_new = position not in run.history.places and not run.history.is_replaying()
        return is_new and run.signals.is_current and not run.signals.count(name)

    async def boundary(self) -> Boundary:
        """Return what the log has at a boundary of steps: where it has something, nothing else decides."""
        branch = self._run.scheduler.enter("boundary")
        place = self._run.history.places.get(branch.next_position)
        if place is None:
            return Boundary(is_known=False)
        known = place.end
        if known is None or known.payload.get("hash") != _HELD:
            return Boundary()
        call = self._held_call()
        await call.in_order(known)
        return Boundary(is_held=True, signal=known.payload.get("payload"))

    async def take_signal(self, name: str) -> JsonValue:
        """Return the payload of the oldest signal of this name, consumed; None: there is none now.

        Nothing is taken while the run replays: what the log has comes first.
        """
        run = self._run
        if run.history.is_replaying():
            return None
        branch = run.scheduler.enter("signal")
        branch.flushing = True  # no branch goes on meanwhile
        try:
            await run.signals.refresh()
        finally:
            branch.flushing = False
        run.scheduler.raise_if_interrupted(branch)
        signal = run.signals.take_now(name)
        if signal is None:
            return None
        run.log.record(*_received(self._held_call(), signal))
        return signal.payload

    async def hold(self, may_go: Callable[[], bool], signal: str | None) -> JsonValue:
        """Wait until `may_go()`, which is called again after each `release`, or return a signal's payload.

        Args:
            may_go: Whether the branch may go on.
            signal: The name of signals that this branch takes; None: another branch does.
        """
        call = self._held_call()
        await call.begin()
        held: Entry = (K.GRAPH_STEP, call.position, {"records": [], "hash": _HELD})
        wait = PendingWait(call.branch, "hold", signal=signal)
        found = await self._waits.hold(wait, may_go, held, partial(_received, call))
        return found.payload if found is not None else None

    async def beside(self, waiting: Awaitable[T]) -> T:
        """Await a computation of a node beside the event loop.

        No branch of the run goes on meanwhile, so records have the order of a computation on the loop.

        Raises:
            asyncio.CancelledError: The branch was closed, or the run was cancelled.
            RunSuspended: The run is being evicted from memory.
        """
        scheduler = self._run.scheduler
        branch = scheduler.enter("node")
        branch.flushing = True
        try:
            value = await shown(self._run.log, waiting)
        finally:
            branch.flushing = False
        scheduler.raise_if_interrupted(branch)
        return value

    def _held_call(self) -> Call:
        call = Call(self._run, "hold")
        call.meet((K.GRAPH_STEP, K.SIGNAL_RECEIVED), "hold", None, digest=_HELD)
        return call

    def release(self) -> None:
        """Have the branches that hold check again."""
        for wait in self._waits.held:
            self._run.scheduler.woken(wait.branch)


def _received(call: Call, signal: BufferedSignal) -> Entry:
    told: Payload = {"name": signal.name, "payload": signal.payload, "n": signal.n}
    return call.entry(K.SIGNAL_RECEIVED, told)
