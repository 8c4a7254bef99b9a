"""The verbs that a driver of graphs calls, in one execution of a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from actors.kernel.json import JsonValue, canonical_json
from actors.kernel.runtime.effects import EffectCall, EffectMode, args_hash
from actors.kernel.runtime.hints import Nudge
from actors.kernel.runtime.ids import RunId
from actors.kernel.runtime.log_entry import EntryKind as K
from actors.kernel.runtime.waits import WaitKind, event_id
from actors.runtime.context.call import Call, Entry, RunState
from actors.runtime.context.effects import Effects
from actors.runtime.context.graphs.outside_wait import ENDS, OutsideWait
from actors.runtime.context.waits import Waits
from actors.runtime.replay.history import History

EFFECT: Final = "graph"
"""The verb in entries of effects that a graph asked for."""
_STEP: Final = "graph.step"
_DIGEST: Final = args_hash([_STEP])
_HELD: Final = args_hash(["hold"])


@dataclass(frozen=True, slots=True)
class GraphStep:
    """A place in the log for records of a graph.

    Attributes:
        known: The records that the log has here; None: it has none yet.
    """

    known: list[dict[str, Any]] | None
    _call: Call

    def record(self, records: list[dict[str, Any]]) -> None:
        """Record what was decided here; it rides with the next flush."""
        told: list[JsonValue] = [*records]
        self._call.run.log.record(
            K.GRAPH_STEP, self._call.position, {"records": told, "hash": _DIGEST}
        )


class GraphVerbs:
    """Records steps of a graph, executes its effects and waits for it, at positions as all verbs do.

    A replay returns what was recorded and calls nothing. What is recorded becomes durable with the next flush:
    before an effect that may happen once at most, with the result of an effect, and with each wait.
    """

    def __init__(
        self,
        run: RunState,
        effects: Effects,
        waits: Waits,
        on_nudges: Callable[[Sequence[Nudge]], None],
    ) -> None:
        self._run, self._effects, self._waits, self._on_nudges = run, effects, waits, on_nudges

    @property
    def history(self) -> History:
        """The log, by position."""
        return self._run.history

    def now(self) -> datetime:
        """Return the instant, aware UTC. It is not recorded: for what goes into a record."""
        return self._run.clock.now()

    def step(self) -> GraphStep:
        """Return the next place for records, with those that it has."""
        call = Call(self._run, _STEP)
        known = call.meet((K.GRAPH_STEP,), _STEP, None, digest=_DIGEST)
        found: Any = None if known is None else known.payload["records"]
        return GraphStep(found, call)

    async def control(self, name: str) -> JsonValue:
        """Return the payload of the oldest signal of this name, consumed; None: there is none now.

        It takes a position only if there is one.
        """
        run = self._run
        branch = run.scheduler.enter("control")
        place = run.history.places.get(branch.next_position)
        digest = args_hash(["control", name])
        known = None if place is None else place.end
        if known is not None:
            if known.kind != K.SIGNAL_RECEIVED or known.payload.get("hash") != digest:
                return None
            Call(run, "control").meet((K.SIGNAL_RECEIVED,), "control", None, digest=digest)
            return known.payload["payload"]
        branch.flushing = True  # others wait: on replay this takes no time
        try:
            await run.signals.refresh()
        finally:
            branch.flushing = False
        run.scheduler.raise_if_interrupted(branch)
        signal = run.signals.take_now(name)
        if signal is None:
            return None
        call = Call(run, "control")
        call.meet((K.SIGNAL_RECEIVED,), "control", None, digest=digest)
        call.record(K.SIGNAL_RECEIVED, {"name": name, "payload": signal.payload, "n": signal.n})
        return signal.payload

    async def hold(self, may_go: Callable[[], bool]) -> None:
        """Return when `may_go()`: another branch of the run calls `release` when it may have changed."""
        call = Call(self._run, "hold")
        known = call.meet((K.GRAPH_STEP,), "hold", None, digest=_HELD)
        if known is not None:
            await call.in_order(known)
            return
        await call.begin()
        held: Entry = (K.GRAPH_STEP, call.position, {"records": [], "hash": _HELD})
        await self._waits.hold(call, may_go, held)

    def release(self) -> None:
        """Have the branches that hold look again."""
        for wait in self._waits.held:
            self._run.scheduler.woken(wait.branch)

    async def rest(self) -> None:
        """Let everything else in the process run, when it is time for that."""
        pace = self._run.scheduler.live.pace
        if not pace.may_go():
            await pace.hold()

    async def effect(  # noqa: PLR0917 - what names an attempt
        self,
        name: str,
        key: str,
        attempt: int,
        mode: EffectMode,
        execute: Callable[[], Awaitable[JsonValue]],
    ) -> tuple[str, JsonValue]:
        """Return the position of an attempt of an effect, and what it gave: durable now.

        Args:
            name: Of its kind.
            key: Its `idempotency_key()`.
            attempt: From 1.
            mode: What may happen when a crash leaves it without a result.
            execute: Does it; returns JSON data and raises nothing.

        Raises:
            EffectInDoubtError: See `RunContext.step`.
        """
        words = canonical_json([name, key, attempt])
        begin, end = K.EFFECT_INTENT, K.EFFECT_RESULT
        call = EffectCall(EFFECT, begin, end, name, words, mode, execute, key=key)
        value = await self._effects.perform(call)
        return call.position, value

    async def emit(self, name: str, payload: JsonValue) -> list[RunId]:
        """Answer the waits of the tenant for an event, as `Approvals.emit` does; called within an effect."""
        event, heard, after = event_id(self._run.agent_id.tenant, name), list[RunId](), ""
        while found := await self._run.store.arrivals.emit(event, payload, after=after):
            self._on_nudges([Nudge("signal", agent, run_id) for run_id, agent in found])
            heard += [run_id for run_id, _ in found]
            after = heard[-1]
        return heard

    async def wait(
        self, kind: WaitKind, key: str, request: JsonValue, until: datetime | None
    ) -> tuple[bool, JsonValue]:
        """Wait for an answer from outside; return whether there is one, and it.

        Args:
            kind: Who answers.
            key: Of the answer; another one for each wait of the run.
            request: What others see of the wait: JSON data.
            until: When the wait is over without an answer; None: never.
        """
        call = Call(self._run, "wait")
        words: JsonValue = ["wait", kind, key]
        known = call.meet(ENDS, f"wait for {kind}", words)
        if known is not None:
            await call.in_order(known)
            return known.kind == K.ASK_REPLIED, known.payload.get("result")
        wait = OutsideWait(call, kind, key, request, until)
        if not wait.resume():
            wait.ask()
        self._run.answers.invalidate()
        await call.begin()
        _, payload = await self._waits.answer(wait)
        return payload["outcome"] != "timed_out", payload.get("result")
