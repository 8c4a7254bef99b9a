"""Effects: look up, else begin, execute, record, flush; once for all effect verbs.

This is where an agent's side effects happen. The rules are docs/replay.md.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from actors.errors import (
    ActorsError,
    BudgetExhaustedError,
    ContractError,
    DeadlineExceededError,
    EffectDidNotHappen,
    EffectError,
    EffectInDoubtError,
    RetryAfter,
)
from actors.kernel.agent.middleware import HookKind as H
from actors.kernel.json import JsonValue, recordable
from actors.kernel.runtime.commit import BudgetDelta
from actors.kernel.runtime.effects import Effect, EffectMode, result_key, text_hash
from actors.kernel.runtime.log_entry import EntryKind
from actors.kernel.text import check_name_of
from actors.runtime.error_record import mark_recorded, rebuild_error, record_error
from actors.runtime.model_calls import spent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors.kernel.runtime.log_entry import RunLogEntry
    from actors.kernel.runtime.scheduler import RetryPolicy
    from actors.runtime.branch import Branch
    from actors.runtime.history import Place
    from actors.runtime.recorder import Recorder

_log = logging.getLogger(__name__)

STARTS: Final = {"step": H.STEP_START, "tool": H.TOOL_START, "llm": H.LLM_START}
ENDS: Final = {"step": H.STEP_END, "tool": H.TOOL_END, "llm": H.LLM_END}
"""Which hooks see an effect that executes; one that is replayed is not seen."""

_current_effect: ContextVar[str] = ContextVar("callboard_effect_id")


def idempotency_key() -> str:
    """Return the id of the effect that executes now: the same on every repetition of it.

    For use inside a function given to `ctx.step` or a tool, to hand to the service it calls.

    Raises:
        ContractError: No effect is executing here.
    """
    try:
        return _current_effect.get()
    except LookupError:
        msg = "idempotency_key() is only known inside a function called by ctx.step or a tool"
        raise ContractError(msg) from None


@dataclass(slots=True)
class EffectCall:
    """One call of an effect verb.

    Attributes:
        verb: ``step``, ``tool``, ``llm``, ``cancel`` or ``status``.
        begin: Kind of the entry that says it was begun.
        end: Kind of the entry that holds its result.
        name: The step's, tool's or model's.
        words: Canonical JSON of name and arguments: hashed for comparison and for the effect's id.
        mode: What may happen when a crash leaves it without a result.
        execute: Does it; what it returns is recorded.
        reconcile: Finds out whether an effect in doubt happened.
        counted: Whether it counts against the execution budget of the run's tree.
    """

    verb: str
    begin: EntryKind
    end: EntryKind
    name: str
    words: str
    mode: EffectMode
    execute: Callable[[], Awaitable[Any]]
    reconcile: Callable[[str], Awaitable[Any]] | None = None
    counted: bool = False
    digest: str = field(init=False)
    position: str = field(init=False, default="")
    id: str = field(init=False, default="")
    """Set once the call has a position and is not a hit."""
    intent: int = field(init=False, default=-1)
    """Seq of the entry that says it was begun; set with it."""

    def __post_init__(self) -> None:
        self.digest = text_hash(self.words)

    def entry(self, **more: JsonValue) -> dict[str, JsonValue]:
        """Return the payload of an entry about this effect."""
        return {"effect": self.verb, "name": self.name, "hash": self.digest, "id": self.id, **more}

    def result_key(self, attempt: int) -> str | None:
        """Return the key under which its result is kept beside the log; None: repeating is cheaper."""
        if self.mode is EffectMode.AT_MOST_ONCE:
            return result_key(self.id, intent=self.intent)
        return result_key(self.id, attempt=attempt) if self.verb == "llm" else None


class Effects:
    """The effect verbs of one execution of a run."""

    def __init__(self, recorder: Recorder) -> None:
        self._run = recorder

    async def perform(self, call: EffectCall) -> JsonValue:
        """Return the effect's value: the recorded one, or a fresh one that is durable now.

        Raises:
            EffectInDoubtError: It was begun before a crash, at most once, and nobody knows.
            NonDeterminismError: The log has something else here.
            Exception: What the effect raised, as rebuilt from its record.
        """
        run = self._run
        branch = run.turnstile.enter(call.verb)
        call.position = branch.take_position()
        check_name_of(f"name of ctx.{call.verb}", call.name)
        # A call that was over budget left a refusal in place of its intent.
        kinds = (call.begin, call.end, EntryKind.EFFECT_RESULT)
        place = run.meet(call.position, kinds, f"{call.verb} {call.name}", call.digest)
        recorded = await self._recorded(branch, call, place)
        if recorded is not None:
            return _outcome(recorded.seq, recorded.payload, call.mode)
        call.id = Effect.id_of_text(run.run_id, call.position, call.verb, call.words)
        is_open = place is not None and place.begin is not None and place.end is None
        if place is not None and place.begin is not None:
            call.intent = place.begin.seq
        is_decided = place is not None and place.resolved is not None
        if call.mode is EffectMode.IDEMPOTENT:
            return await self._settle(branch, call, intent=not is_open)
        run.unrepeatable += 1
        try:
            return await self._settle(
                branch, call, intent=not is_open or is_decided, in_doubt=is_open and not is_decided
            )
        finally:
            run.unrepeatable -= 1

    async def _recorded(
        self, branch: Branch, call: EffectCall, place: Place | None
    ) -> RunLogEntry | None:
        """Return what the log says this effect gave, when it is this branch's turn."""
        if place is None:
            return None
        run = self._run
        entry = place.resolved if _is_decided(place) else place.end
        if entry is not None and (entry is place.resolved or not place.ends_void):
            await run.turnstile.turn_for(branch, entry.seq, call.verb)
            return entry
        if place.abandoned is not None and run.history.is_strict(place.abandoned.seq):
            await run.turnstile.stay(branch, call.verb)
        if place.begin is not None and place.end is None:
            branch.begun[call.position] = call.verb
        return None

    async def _settle(
        self, branch: Branch, call: EffectCall, *, intent: bool, in_doubt: bool = False
    ) -> JsonValue:
        """Execute the effect, or find out whether it happened; wait until that is durable."""
        run = self._run
        before, may_be_kept = run.log.seq, False

        def on_begin() -> None:
            nonlocal before, may_be_kept
            before = run.log.seq
            may_be_kept = run.recovering and call.mode is EffectMode.IDEMPOTENT
            if intent and not call.counted:
                self._begin(branch, call)

        await run.turnstile.begin(branch, call.verb, on_begin)
        try:
            if in_doubt:
                decided = await self._in_doubt(branch, call)
                if decided is not None:
                    return await self._conclude(branch, call, *decided)
                self._begin(branch, call)
            elif may_be_kept:
                kept = await self._kept(branch, call)
                if kept is not None:
                    return await self._conclude(branch, call, *kept)
            if intent and call.counted:
                refused = await self._begin_counted(branch, call)
                if refused is not None:
                    return await self._conclude(branch, call, call.intent, refused)
            is_idempotent = call.mode is EffectMode.IDEMPOTENT
            # Nothing outside is touched before what was recorded is durable.
            await run.log.durable(branch, before if is_idempotent else run.log.seq)
            if not run.may_act():
                await run.until_may_act()
            run.turnstile.raise_if_interrupted(branch)
            return await self._execute(branch, call)
        except BaseException as exc:
            run.turnstile.interrupted(branch, call.verb, exc)
            raise

    def _begin(self, branch: Branch, call: EffectCall) -> None:
        branch.begun[call.position] = call.verb
        call.intent = self._run.log.record(
            call.begin, call.position, call.entry(mode=call.mode.value)
        )

    async def _begin_counted(self, branch: Branch, call: EffectCall) -> dict[str, JsonValue] | None:
        """Begin a call that the tree's budget has a place for, durably; return the refusal if not."""
        run = self._run

        def refused(limit: str) -> dict[str, JsonValue]:
            text = f"the tree of run {run.run_id} has used up its budget ({limit})"
            return call.entry(status="error", error=record_error(BudgetExhaustedError(text)))

        async with run.one_model_call:
            await run.log.durable(branch, run.log.seq)
            run.turnstile.raise_if_interrupted(branch)
            self._begin(branch, call)
            run.log.spend(BudgetDelta(turns=1, position=call.position))
            return await run.log.durable_unless_refused(branch, call.position, refused)

    async def _execute(self, branch: Branch, call: EffectCall) -> JsonValue:
        hooks = self._run.hooks
        if hooks and call.verb in STARTS:
            await hooks.dispatch(STARTS[call.verb], name=call.name, position=call.position)
        token = _current_effect.set(call.id)
        payload = call.entry()
        try:
            spans = self._run.spans
            value = await (call.execute() if spans is None else spans.effect(call))
            where = f"{call.verb} {call.name!r} at {call.position} of run {self._run.run_id}"
            payload["value"], payload["status"] = recordable(value, where=where), "ok"
            if call.end is EntryKind.LLM_CALL and isinstance(value, dict):
                payload["model"], payload["usage"] = call.name, value.get("usage")
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - recorded, and raised again from there
            payload["error"], payload["status"] = record_error(exc), "error"
        finally:
            _current_effect.reset(token)
        self._run.meters.effect(call.verb, payload)
        if not self._is_late(branch):
            self._keep(call, payload)
        if hooks and call.verb in ENDS:
            data = {"status": payload["status"]}
            await hooks.dispatch(ENDS[call.verb], name=call.name, position=call.position, data=data)
        if self._is_late(branch):
            raise asyncio.CancelledError
        seq = self._run.log.record(call.end, call.position, payload)
        self._count(call, payload)
        return await self._conclude(branch, call, seq, payload)

    def _count(self, call: EffectCall, payload: dict[str, JsonValue]) -> None:
        """Let what a model call used count with its result."""
        used = spent(payload.get("value")) if call.counted else BudgetDelta()
        if used.tokens or used.cost_usd:
            self._run.log.spend(used)

    def _is_late(self, branch: Branch) -> bool:
        """Whether a result came after its execution was interrupted, and is dropped.

        It may tell no more than how the author's function takes being cancelled.
        """
        return branch.closed or self._run.turnstile.unwinding is not None

    def _keep(self, call: EffectCall, payload: dict[str, JsonValue]) -> None:
        results, key = self._run.results, call.result_key(self._run.attempt)
        if results is not None and key is not None:
            results.keep(key, payload)

    async def _conclude(
        self, branch: Branch, call: EffectCall, seq: int, payload: dict[str, JsonValue]
    ) -> JsonValue:
        run = self._run
        run.recovering = False
        branch.begun.pop(call.position, None)
        run.turnstile.queue_turn(branch, seq)
        await run.log.durable(branch, seq)
        await run.turnstile.await_turn(branch, call.verb)
        return _outcome(seq, payload, call.mode)

    async def _in_doubt(
        self, branch: Branch, call: EffectCall
    ) -> tuple[int, dict[str, JsonValue]] | None:
        """Return the decision as recorded now, None to execute; raise when nobody can tell."""
        run = self._run
        signal = await run.signals.decision(call.position, call.intent)
        if signal is not None:
            payload = dict(signal.payload) if isinstance(signal.payload, dict) else {}
            seq = run.log.record(EntryKind.IN_DOUBT_RESOLVED, call.position, payload)
            return None if payload.get("action") == "retry" else (seq, payload)
        kept = await self._kept(branch, call)
        if kept is not None:
            return kept
        if call.reconcile is None:
            raise EffectInDoubtError(run.run_id, call.position, call.name)
        try:
            value = await call.reconcile(call.id)
        except EffectDidNotHappen:
            return None
        clean = recordable(value, where=f"reconcile of {call.name!r}")
        payload = call.entry(status="ok", value=clean)
        return run.log.record(call.end, call.position, payload), payload

    async def _kept(
        self, branch: Branch, call: EffectCall
    ) -> tuple[int, dict[str, JsonValue]] | None:
        """Record and return the result of a lost execution, if it outlived it; as if just executed."""
        run, key = self._run, call.result_key(self._run.attempt)
        if run.results is None or key is None:
            return None
        payload = await run.results.find(key)
        run.turnstile.raise_if_interrupted(branch)
        if payload is None or payload | call.entry() != payload:
            return None
        _log.info(
            "a result that a crash kept from the log was found",
            extra={"run": run.run_id, "position": call.position, "effect": call.name},
        )
        self._count(call, payload)
        return run.log.record(call.end, call.position, payload), payload


def _is_decided(place: Place) -> bool:
    return place.resolved is not None and place.resolved.payload.get("action") != "retry"


def _outcome(seq: int, payload: dict[str, JsonValue], mode: EffectMode) -> JsonValue:
    """Return the recorded value, or raise the recorded error."""
    if payload.get("action") == "fail":
        exc: Exception = EffectError("operator", str(payload.get("error") or "failed by operator"))
    elif payload.get("status") == "error":
        record = payload.get("error")
        exc = rebuild_error(record if isinstance(record, dict) else {})
    else:
        return payload.get("value")
    may_repeat = mode is EffectMode.IDEMPOTENT or isinstance(exc, RetryAfter)
    mark_recorded(exc, seq, may_repeat=may_repeat)
    raise exc


def bounded(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    what: str,
    timeout_s: float | None,
    retry: RetryPolicy | None,
    chance: Callable[[], float],
) -> Callable[[], Awaitable[Any]]:
    """Return a coroutine function that calls `fn(*args)` within its time and retry limits."""

    async def once() -> Any:
        if timeout_s is None:
            result = fn(*args)
            return await result if inspect.isawaitable(result) else result
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                result = fn(*args)
                return await result if inspect.isawaitable(result) else result
        except TimeoutError as exc:
            if limit.expired():
                raise DeadlineExceededError(what, timeout_s) from exc
            raise

    async def with_retries() -> Any:
        attempt = 1
        while True:
            try:
                return await once()
            except Exception as exc:
                wait = retry_wait(exc, retry, attempt, chance())
                if wait is None:
                    raise
                await asyncio.sleep(wait)
                attempt += 1

    return once if retry is None else with_retries


def retry_wait(
    exc: Exception, retry: RetryPolicy | None, attempt: int, chance: float
) -> float | None:
    """Return how many seconds to wait before trying again, or None to give up."""
    if retry is None or attempt > retry.max_retries or type(exc).__name__ in retry.non_retryable:
        return None
    if isinstance(exc, ActorsError) and not exc.retryable:
        return None
    return retry.delay_s(attempt, chance)
