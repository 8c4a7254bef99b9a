"""The verbs that a driver of graphs calls, in one execution of a run.

At the boundary of a step a run takes signals, computes, and holds while it is paused. Answers of models
within an effect of a graph are shown while they are said, and counted by the budget. `OutsideWait` waits for
an answer from outside.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from typing_extensions import override

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import GenerationOptions, LLMClient, LLMResponse
from actors._kernel.json import JsonValue, canonical_json, number_of
from actors._kernel.runtime.commit import BudgetDelta
from actors._kernel.runtime.effects import GRAPH, EffectCall, EffectMode, args_hash
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import RunId, derive_id
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.rows import BufferedSignal
from actors._kernel.runtime.waits import Wait, WaitKind, event_id
from actors._kernel.stores.runs import emit_to_all
from actors._runtime.journal.run_log import flush_if_slow
from actors._runtime.verbs.call import Call, Entry, Payload, RunState
from actors._runtime.verbs.effects import Effects, Reconcile
from actors._runtime.verbs.model_calls import LiveOutput, ask_model, capped, is_counted
from actors._runtime.verbs.question import Question
from actors._runtime.verbs.waits import PendingWait, Waits

_STEP: Final = "graph.step"
_DIGEST: Final = args_hash([_STEP])


@dataclass(frozen=True, slots=True)
class GraphStep:
    """A position in the log for records of a graph.

    Attributes:
        recorded: The records that the log has here, or None if it has none yet.
        seq: Seq of their entry, or -1 if there is no entry yet.
    """

    recorded: list[dict[str, Any]] | None
    seq: int
    _call: Call

    def record(self, records: list[dict[str, Any]]) -> int:
        """Record what was decided here; it rides with the next flush. Returns the seq of the entry."""
        record_data: list[JsonValue] = [*records]
        payload: Payload = {"records": record_data, "hash": _DIGEST}
        return self._call.run.log.record(K.GRAPH_STEP, self._call.position, payload)


class GraphVerbs:
    """Records steps of a graph, executes its effects and waits for it, at positions as all verbs do.

    A replay returns what was recorded and calls nothing. What is recorded becomes durable with the next flush:
    before an effect that may happen once at most, with the result of an effect, and with each wait.

    Attributes:
        boundaries: The verbs between two steps.
        store: The rows of the deployment, for effects.
        shown: Function that awaits a part of an effect. If that takes long, what was recorded before is flushed
            meanwhile.
    """

    def __init__(  # noqa: PLR0917 - what a run's verbs share
        self,
        run: RunState,
        effects: Effects,
        waits: Waits,
        live: LiveOutput,
        on_nudges: Callable[[Sequence[Nudge]], None],
    ) -> None:
        self._run, self._effects, self._waits, self._on_nudges = run, effects, waits, on_nudges
        self._live, self.store, self.shown = live, run.store, partial(flush_if_slow, run.log)
        self.boundaries = BoundaryVerbs(run, waits)
        self._wait_keys: set[str] | None = None

    @property
    def is_replaying(self) -> bool:
        """True while the log has something that the run has not met again."""
        return self._run.history.is_replaying()

    @property
    def is_continued(self) -> bool:
        """True in the generations after `continue_as_new`, whose input the run itself wrote."""
        return self._run.history.generation > 0

    def last_record(self) -> dict[str, Any] | None:
        """Return the last record that the log has of this generation, or None if it has none."""
        ends = (entries.end for entries in self._run.history.calls.values())
        steps = [
            entry
            for entry in ends
            if entry and entry.kind == K.GRAPH_STEP and entry.payload["records"]
        ]
        if not steps:
            return None
        records: Any = max(steps, key=lambda step: step.seq).payload["records"]
        return dict(records[-1])

    def now(self) -> datetime:
        """Return the instant, aware UTC. It is not recorded: for what goes into a record."""
        return self._run.clock.now()

    def step(self) -> GraphStep:
        """Return the next position for records, with those that it has."""
        call = Call(self._run, _STEP)
        entry = call.meet((K.GRAPH_STEP,), _STEP, None, digest=_DIGEST)
        records: Any = None if entry is None else entry.payload["records"]
        return GraphStep(records, -1 if entry is None else entry.seq, call)

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
        *,
        rides: bool,
        reconcile: Reconcile | None = None,
        model_call: Mapping[str, str] | None = None,
    ) -> tuple[str, JsonValue]:
        """Return the position of an attempt of an effect, and what it gave: durable now.

        Args:
            name: Name of its kind.
            key: Its `idempotency_key()`.
            attempt: Number of the attempt, from 1.
            mode: What may happen when a crash leaves it without a result.
            execute: Function that executes the effect; it returns checked JSON data, which nothing changes any
                more, and raises nothing.
            rides: True if it may execute before the steps that led to it are durable: see `EffectCall`.
            reconcile: As for `RunContext.step`. It returns checked JSON data as `execute` does.
            model_call: Facts of a model call, shown with pieces of its answer; None if the effect is no call of
                a model. The tree's budget counts the call.

        Raises:
            EffectInDoubtError: It may have happened before a crash, and `reconcile` does not know.
            BudgetExhaustedError: It is a call of a model, and the tree has used up its budget.
        """
        arguments_json = canonical_json([name, key, attempt])
        begin, end = K.EFFECT_INTENT, K.EFFECT_RESULT
        call = EffectCall(
            GRAPH,
            begin,
            end,
            name,
            arguments_json,
            mode,
            execute,
            reconcile,
            key=key,
            rides=rides,
            checked=True,
        )
        if model_call is not None:
            call.execute = partial(self._asking, call, model_call, execute)
            call.counted = is_counted(self._run.row.supervision)
            call.on_recorded = self._spend if call.counted else None
        value = await self._effects.perform(call)
        return call.position, value

    def _spend(self, payload: Payload) -> None:
        self._run.log.writes.spend(spent_on(payload))

    async def _asking(
        self,
        call: EffectCall,
        facts: Mapping[str, str],
        execute: Callable[[], Awaitable[JsonValue]],
    ) -> JsonValue:
        token = asking.set(ModelAnswers(self._live, call, {**facts}))
        try:
            return await execute()
        finally:
            asking.reset(token)

    async def emit(self, name: str, payload: JsonValue) -> list[RunId]:
        """Answer the waits of the tenant for an event, as `Approvals.emit` does; called within an effect."""
        event, run_ids = event_id(self._run.agent_id.tenant, name), list[RunId]()
        async for answered_runs in emit_to_all(self._run.store.arrivals, event, payload):
            self._on_nudges(
                [Nudge("signal", agent_id, run_id) for run_id, agent_id in answered_runs]
            )
            run_ids += [run_id for run_id, _ in answered_runs]
        return run_ids

    def wait_key(self, first_key: str, *, is_taken: bool) -> str:
        """Return the key of a wait that begins here: `first_key`, unless the run has waited for that.

        Args:
            first_key: The key of the first wait with a name.
            is_taken: Whether a generation before has waited for it.
        """
        if self._wait_keys is None:
            begin_entries = (entries.begin for entries in self._run.history.calls.values())
            ask_entries = (
                entry for entry in begin_entries if entry is not None and entry.kind == K.ASK_SENT
            )
            self._wait_keys = {str(entry.payload["message_id"]) for entry in ask_entries}
        position = self._run.scheduler.enter("wait").next_position
        is_other = is_taken or first_key in self._wait_keys
        key = derive_id("wait", first_key, position) if is_other else first_key
        self._wait_keys.add(key)
        return key

    def next_is_wait(self) -> bool | None:
        """Return whether the log has another wait here, or None if it has nothing."""
        position = self._run.scheduler.enter("wait").next_position
        entries = self._run.history.calls.get(position)
        if entries is None:
            return None
        return entries.begin is not None and entries.begin.kind == K.ASK_SENT

    async def wait(
        self, kind: WaitKind, key: str, request: JsonValue, until: datetime | None
    ) -> tuple[bool, JsonValue]:
        """Wait for an answer from outside; return whether there is one, and it.

        Args:
            kind: The kind of party that answers.
            key: Key of the answer; see `wait_key`.
            request: What others see of the wait: JSON data.
            until: The instant at which the wait ends without an answer, or None if it never does.
        """
        call = Call(self._run, "wait")
        arguments: JsonValue = ["wait", kind]  # a replay has the key from the log
        entry = call.meet(ENDS, f"wait for {kind}", arguments)
        if entry is not None:
            await call.in_order(entry)
            return entry.kind == K.ASK_REPLIED, entry.payload.get("result")
        wait = OutsideWait(call, kind, key, request, until)
        if not wait.resume():
            wait.ask(request)
        # An answer may be stored before the wait begins, without a hint for this execution.
        self._run.answers.invalidate()
        await call.begin()
        _, payload = await self._waits.answer(wait)
        return payload["outcome"] != "timed_out", payload.get("result")


T = TypeVar("T")
_HOLD_DIGEST: Final = args_hash(["hold"])


@dataclass(frozen=True, slots=True)
class Boundary:
    """A boundary of steps, as the log has it.

    Attributes:
        is_known: False if the log has nothing there.
        is_held: True if the branch was held there, or took a signal.
        signal: The payload of that signal.
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
        is_new = position not in run.history.calls and not run.history.is_replaying()
        return is_new and run.signals.is_current and not run.signals.count(name)

    async def boundary(self) -> Boundary:
        """Return what the log has at a boundary of steps: where it has something, nothing else decides."""
        branch = self._run.scheduler.enter("boundary")
        entries = self._run.history.calls.get(branch.next_position)
        if entries is None:
            return Boundary(is_known=False)
        entry = entries.end
        if entry is None or entry.payload.get("hash") != _HOLD_DIGEST:
            return Boundary()
        call = self._hold_call()
        await call.in_order(entry)
        return Boundary(is_held=True, signal=entry.payload.get("payload"))

    async def take_signal(self, name: str) -> JsonValue:
        """Consume the oldest signal of this name and return its payload, or None if there is none now.

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
        run.log.record(*_received(self._hold_call(), signal))
        return signal.payload

    async def hold(self, may_go: Callable[[], bool], signal: str | None) -> JsonValue:
        """Wait until `may_go()`, which is called again after each `release`, or return a signal's payload.

        Args:
            may_go: Function that returns whether the branch may go on.
            signal: The name of signals that this branch takes, or None if another branch does.
        """
        call = self._hold_call()
        await call.begin()
        hold_entry: Entry = (K.GRAPH_STEP, call.position, {"records": [], "hash": _HOLD_DIGEST})
        wait = PendingWait(call.branch, "hold", signal=signal)
        taken_signal = await self._waits.hold(wait, may_go, hold_entry, partial(_received, call))
        return taken_signal.payload if taken_signal is not None else None

    async def beside(self, computation: Awaitable[T]) -> T:
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
            value = await flush_if_slow(self._run.log, computation)
        finally:
            branch.flushing = False
        scheduler.raise_if_interrupted(branch)
        return value

    def _hold_call(self) -> Call:
        call = Call(self._run, "hold")
        call.meet((K.GRAPH_STEP, K.SIGNAL_RECEIVED), "hold", None, digest=_HOLD_DIGEST)
        return call

    def release(self) -> None:
        """Have the branches that hold check again."""
        for wait in self._waits.holding_waits:
            self._run.scheduler.woken(wait.branch)


def _received(call: Call, signal: BufferedSignal) -> Entry:
    payload: Payload = {"name": signal.name, "payload": signal.payload, "n": signal.n}
    return call.entry(K.SIGNAL_RECEIVED, payload)


@dataclass(frozen=True, slots=True)
class ModelAnswers:
    """Asks models for the effect that executes.

    Attributes:
        live: Shows the pieces of answers.
        call: The effect.
        facts: JSON data that each piece has, too.
    """

    live: LiveOutput
    call: EffectCall
    facts: JsonValue

    def limited(self, options: GenerationOptions) -> GenerationOptions:
        """Return the options, the answer limited to what the tree's budget leaves."""
        limited_options = capped(self.call, options) or options
        self.call.cap = None  # the entry of such an effect has no place for it
        return limited_options

    async def ask(
        self, model: LLMClient, messages: Sequence[ChatMessage], options: GenerationOptions
    ) -> LLMResponse:
        """Return a model's answer; its pieces are live events of the run."""
        on_piece, guards = partial(self.live.piece, self.call, self.facts), self.live.guards
        try:
            return await ask_model(model, messages, self.limited(options), on_piece, guards=guards)
        finally:
            self.live.end(self.call)


def spent_on(payload: Payload) -> BudgetDelta:
    """Return the cost of an effect of a graph, from the usage in its recorded result."""
    data: Any = payload.get("value")
    for name in ("result", "usage"):
        data = data.get(name) if isinstance(data, dict) else None
    if not isinstance(data, dict):
        return BudgetDelta()
    part_tokens = number_of(data.get("input_tokens")) + number_of(data.get("output_tokens"))
    tokens = part_tokens or number_of(data.get("total_tokens"))
    return BudgetDelta(tokens=int(tokens), cost_usd=number_of(data.get("cost_usd")))


asking: Final[ContextVar[ModelAnswers | None]] = ContextVar("callboard_asking", default=None)
"""The model calls of the LLM_CALL effect that executes here, or None if no run on a host executes one."""


ENDS: Final = (K.ASK_SENT, K.ASK_REPLIED, K.ASK_TIMEOUT)
"""Entries that such a wait records."""


class OutsideWait(Question):
    """A wait for a person, an event or a job, with its deadline."""

    def __init__(  # noqa: PLR0917 - what others see of it
        self, call: Call, kind: WaitKind, key: str, request: JsonValue, until: datetime | None
    ) -> None:
        super().__init__(call, kind, None)
        self._kind, self._request = kind, request
        self.key, self.at = key, until

    @override
    async def prepare(self) -> Wait:
        return Wait(
            self.call.position, self._kind, self.key, request=self._request, expires_at=self.at
        )

    @override
    async def entry_of_timeout(self) -> Entry:
        return self.call.entry(K.ASK_TIMEOUT, {"outcome": "timed_out"})
