"""Effects: look up, else begin, execute, record, flush; once for all effect verbs.

An agent's side effects are executed here, by `Effects.perform`; the verbs above it build its argument. The
rules are in docs/replay.md. "My step ran twice": see promise 5 of docs/semantics.md.

The function of a step is called within its limits: of time, and of tries.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import Any, Final, Literal, TypeAlias, TypedDict

from actors._kernel.agent.hooks import HookKind as H
from actors._kernel.agent.message import Message
from actors._kernel.basics import check_s
from actors._kernel.json import JsonValue, canonical_json, fresh, number_of, recordable
from actors._kernel.runtime.commit import BudgetDelta
from actors._kernel.runtime.effects import Effect, EffectCall, EffectMode
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.log_entry import RunLogEntry
from actors._kernel.runtime.scheduler import RetryPolicy
from actors._kernel.text import check_name_of
from actors._runtime.loop.tasks import in_thread, refuse_coroutines
from actors._runtime.replay.branches import Branch
from actors._runtime.replay.failures import outcome_of, record_error, record_failure
from actors._runtime.replay.history import CallEntries
from actors._runtime.verbs.call import (
    Call,
    Payload,
    RunState,
    executing,
    executing_effect,
    tokens_left,
)
from actors._runtime.verbs.secrets import Secrets
from actors.errors import (
    ActorsError,
    BudgetExhaustedError,
    ContractError,
    DeadlineExceededError,
    EffectDidNotHappen,
    EffectInDoubtError,
)

_log = logging.getLogger("callboard.context")

EffectWord: TypeAlias = 'Literal["idempotent", "at_most_once"]'
Reconcile: TypeAlias = "Callable[[str], Awaitable[Any]]"
"""Called with the key of an effect in doubt; returns its value, or raises `EffectDidNotHappen`."""


class StepOptions(TypedDict, total=False):
    """The keyword arguments of `RunContext.step`."""

    retry: RetryPolicy | None
    timeout: float | None
    effect: EffectWord
    reconcile: Reconcile | None
    thread: bool
    key: Message | str | None


STARTS: Final = {"step": H.STEP_START, "tool": H.TOOL_START, "llm": H.LLM_START}
ENDS: Final = {"step": H.STEP_END, "tool": H.TOOL_END, "llm": H.LLM_END}
"""Hooks that are called for an effect that executes; a replayed effect calls none."""


def idempotency_key(message: Message | None = None) -> str:
    """Return the key of the effect that executes now: the same on every repetition of it.

    Call it inside a function given to `ctx.step` or a tool, and pass the key to the service that is called.
    The key is that of `ctx.step(…, key=…)`, else made of the run, the call's position and its arguments.

    Args:
        message: Return the key that `key=message` would give: made of agent, sender, message id and the
            effect's name. It is the same in every run that processes the message, so that a service
            recognises it after a restore. Effects of one message need different names.

    Raises:
        ContractError: No effect is executing here.
    """
    call, run = executing_effect("idempotency_key")
    return call.key if message is None else run.key_of(message, call.name)


class Effects:
    """The effect verbs of one execution of a run."""

    def __init__(self, run: RunState, secrets: Secrets) -> None:
        self._run, self._secrets = run, secrets

    def step(  # noqa: PLR0913, PLR0917 - as `RunContext.step` was given them
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        retry: RetryPolicy | None,
        timeout_s: float | None,
        effect: str,
        reconcile: Reconcile | None,
        thread: bool,
        key: Message | str | None,
    ) -> Awaitable[JsonValue]:
        """Return the value of a step, for which `RunContext.step` has the rules."""
        run, what = self._run, f"step {name!r}"
        mode = EffectMode(effect)
        if mode is EffectMode.AT_MOST_ONCE and retry is not None:
            raise ContractError(f"{what}: retry= would execute an at-most-once effect twice")
        if timeout_s is not None and timeout_s != inf:
            check_s(f"timeout of ctx.{what}", timeout_s)
        if thread:
            refuse_coroutines(fn, what)
            fn = partial(in_thread, fn)

        chance = run.entropy.random
        limited_call = partial(
            bounded, fn, what=what, timeout_s=timeout_s, retry=retry, chance=chance
        )
        sealed_call = self._secrets.seal_args(args)
        arguments: list[JsonValue] = [
            name,
            list(args) if sealed_call is None else [*sealed_call.recorded_arguments.values()],
        ]
        if sealed_call is None:
            execute = limited_call(args)
        else:
            execute = sealed_call.execute(
                lambda values: limited_call(tuple(values.values()))(), what=what
            )
        call = EffectCall(
            "step",
            K.EFFECT_INTENT,
            K.EFFECT_RESULT,
            name,
            canonical_json(arguments),
            mode,
            execute,
            reconcile,
            key="" if key is None else run.key_of(key, name),
        )
        return self.perform(call)

    async def perform(self, call: EffectCall, *, beside: str | None = None) -> JsonValue:
        """Return the effect's value: the recorded one, or a fresh one that is durable now.

        Args:
            call: The effect.
            beside: A position that belongs to another call (`PAID`), or None to take the next one.

        Raises:
            EffectInDoubtError: It was begun before a crash, at most once, and its outcome is unknown.
            NonDeterminismError: The log has something else here.
            Exception: What the effect raised, as rebuilt from its record.
        """
        try:
            return await self._perform(call, beside)
        finally:
            call.close()

    async def _perform(self, call: EffectCall, beside: str | None) -> JsonValue:
        run, verb_call = self._run, Call(self._run, call.verb, beside=beside)
        branch, call.position = verb_call.branch, verb_call.position
        check_name_of(f"name of ctx.{call.verb}", call.name)
        # A call that was over budget left a refusal in place of its intent.
        kinds = (call.begin, call.end, K.EFFECT_RESULT)
        entry = verb_call.meet(kinds, f"{call.verb} {call.name}", None, digest=call.digest)
        entries = verb_call.entries
        if entries is not None and (entry is None or entries.decision is not None):
            entry = await self._decision_or_end(branch, call, entries)
        if entry is not None:
            await run.scheduler.resume_at(branch, entry.seq, call.verb)
            call.payload = entry.payload
            return outcome_of(entry.seq, entry.payload, call.mode)
        call.id = Effect.id_of_text(run.run_id, call.position, call.verb, call.arguments_json)
        call.key = call.key or call.id
        is_open = entries is not None and entries.begin is not None and entries.end is None
        if entries is not None and entries.begin is not None:
            call.intent = entries.begin.seq
        is_decided = entries is not None and entries.decision is not None
        if call.mode is EffectMode.IDEMPOTENT:
            return await self._settle(branch, call, intent=not is_open)
        # Counted before the intent: a host that leaves now gives the effect time to end, else it is in doubt.
        run.unrepeatable += 1
        try:
            return await self._settle(
                branch, call, intent=not is_open or is_decided, in_doubt=is_open and not is_decided
            )
        finally:
            run.unrepeatable -= 1

    async def _decision_or_end(
        self, branch: Branch, call: EffectCall, entries: CallEntries
    ) -> RunLogEntry | None:
        """Return an operator's decision or the result, or None if the effect goes on, or begins anew."""
        decision, abandonment = entries.decision, entries.abandonment
        if decision is not None and decision.payload.get("action") != "retry":
            return decision
        if entries.end is not None and not entries.ends_void:
            return entries.end
        if abandonment is not None and self._run.history.is_strict(abandonment.seq):
            await self._run.scheduler.stay(branch, call.verb)
        if entries.begin is not None and entries.end is None:
            branch.open_effects[call.position] = call.verb
        return None

    async def _settle(
        self, branch: Branch, call: EffectCall, *, intent: bool, in_doubt: bool = False
    ) -> JsonValue:
        """Execute the effect, or find out whether it happened; wait until that is durable."""
        run = self._run
        needed_seq, may_be_cached = run.log.last_seq, False

        def on_begin() -> None:
            nonlocal needed_seq, may_be_cached
            needed_seq = run.log.base_seq if call.rides else run.log.last_seq
            may_be_cached = run.recovering and call.mode is EffectMode.IDEMPOTENT
            if intent and not call.counted:
                self._begin(branch, call)

        await run.scheduler.begin(branch, call.verb, on_begin)
        try:
            if in_doubt:
                decision = await self._in_doubt(branch, call)
                if decision is not None:
                    return await self._conclude(branch, call, *decision)
                self._begin(branch, call)
            elif may_be_cached:
                cached_result = await self._cached_result(branch, call)
                if cached_result is not None:
                    return await self._conclude(branch, call, *cached_result)
            if intent and call.counted:
                refusal = await self._begin_counted(branch, call)
                if refusal is not None:
                    return await self._conclude(branch, call, call.intent, refusal)
            is_idempotent = call.mode is EffectMode.IDEMPOTENT
            # Nothing outside is touched before what was recorded is durable. An at-most-once effect waits for
            # its intent, too: without it a crash would let it execute again.
            await run.log.durable(branch, needed_seq if is_idempotent else run.log.last_seq)
            if call.counted:
                call.tokens_left = await tokens_left(run)
            # Another host may own the shard soon and execute the same effect: wait for the renewed lease.
            if not run.may_act():
                await run.until_may_act()
            # A flush is never cut off, so a branch that was closed meanwhile sees it here.
            run.scheduler.raise_if_interrupted(branch)
            return await self._execute(branch, call)
        # Also a cancellation and an eviction: without this the scheduler would count the branch as working for
        # ever.
        except BaseException as exc:
            run.scheduler.live.interrupted(branch, call.verb, exc)
            raise

    def _begin(self, branch: Branch, call: EffectCall) -> None:
        branch.open_effects[call.position] = call.verb
        call.intent = self._run.log.record(
            call.begin, call.position, call.entry(mode=call.mode.value)
        )

    async def _begin_counted(self, branch: Branch, call: EffectCall) -> Payload | None:
        """Begin a call durably if the tree's budget allows it; else return the refusal."""
        run = self._run

        def refuse(limit: str) -> Payload:
            problem = f"the tree of run {run.run_id} has used up its budget ({limit})"
            return call.entry(status="error", error=record_error(BudgetExhaustedError(problem)))

        # A commit that is over the budget names one position, so it begins one model call at most.
        async with run.model_call_lock:
            await run.log.durable(branch, run.log.last_seq)
            run.scheduler.raise_if_interrupted(branch)
            self._begin(branch, call)
            run.log.writes.spend(BudgetDelta(turns=1, position=call.position))
            return await run.log.durable_unless_refused(branch, call.position, refuse)

    async def _execute(self, branch: Branch, call: EffectCall) -> JsonValue:
        hooks = self._run.hooks
        if hooks and call.verb in STARTS:
            await hooks.dispatch(STARTS[call.verb], name=call.name, position=call.position)
        if call.tool_call_id:
            # Before the function is called: from here on it may have acted, whatever it raises.
            self._run.begun_calls.add(call.tool_call_id)
        token = executing.set((call, self._run))
        payload = call.entry()
        try:
            spans = self._run.spans
            value = await (call.execute() if spans is None else spans.effect(call))
            if not call.checked:
                where = f"{call.verb} {call.name!r} at {call.position} of run {self._run.run_id}"
                value = recordable(value, where=where)
            payload["value"], payload["status"] = value, "ok"
            if call.end is K.LLM_CALL and isinstance(value, dict):
                payload["model"], payload["usage"] = call.name, value.get("usage")
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - recorded, and raised again from there
            payload["error"], payload["status"] = record_failure(exc), "error"
        finally:
            # A call of a model that failed has its receipt, too.
            if call.receipt is not None or call.cap is not None:
                payload |= call.described()
            executing.reset(token)
        self._run.counters.count_effect(call, payload, now_s=self._run.clock.monotonic())
        results = self._run.results
        # The error of an interrupted effect may only show how the code handles its cancellation.
        if results is not None and not self._is_late(branch):
            key = call.result_key(self._run.history.attempt)
            if key is not None:
                results.keep(key, payload)
        if hooks and call.verb in ENDS:
            data = {"status": payload["status"]}
            await hooks.dispatch(ENDS[call.verb], name=call.name, position=call.position, data=data)
        # Effects that end without ever waiting would keep the event loop from all other tasks.
        if not self._run.scheduler.live.pace.may_go():
            await self._run.scheduler.live.pace.hold()
        if self._is_late(branch):
            raise asyncio.CancelledError
        return await self._conclude(branch, call, self._record(call, payload), payload)

    def _record(self, call: EffectCall, payload: Payload) -> int:
        """Record a result and what is to be durable with it."""
        seq = self._run.log.record(call.end, call.position, payload)
        if call.counted:
            cost = spent_on(payload.get("value"))  # of a model call; it counts with its result
            if cost.tokens or cost.cost_usd:
                self._run.log.writes.spend(cost)
        if call.on_recorded is not None:
            call.on_recorded(payload)
        return seq

    def _is_late(self, branch: Branch) -> bool:
        """Return True if a result came after its execution was interrupted, and is dropped."""
        return branch.closed or self._run.scheduler.live.unwinding is not None

    async def _conclude(
        self, branch: Branch, call: EffectCall, seq: int, payload: Payload
    ) -> JsonValue:
        run = self._run
        run.recovering, call.payload = False, payload
        branch.open_effects.pop(call.position, None)
        run.scheduler.queue_resume(branch, seq)
        await run.log.durable(branch, seq)
        await run.scheduler.await_resume(branch, call.verb)
        return outcome_of(seq, payload, call.mode)

    async def _in_doubt(self, branch: Branch, call: EffectCall) -> tuple[int, Payload] | None:
        """Return the outcome as recorded now, or None to execute; raise if it is unknown."""
        run = self._run
        signal = await run.signals.decision(call.position, call.intent)
        if signal is not None:
            payload = dict(signal.payload) if isinstance(signal.payload, dict) else {}
            seq = run.log.record(K.IN_DOUBT_RESOLVED, call.position, payload)
            return None if payload.get("action") == "retry" else (seq, payload)
        cached_result = await self._cached_result(branch, call)
        if cached_result is not None:
            return cached_result
        if call.reconcile is None:
            raise EffectInDoubtError(run.run_id, call.position, call.name)
        token = executing.set((call, run))
        try:
            value = await call.reconcile(call.key)
        except EffectDidNotHappen:
            return None
        finally:
            executing.reset(token)
        if not call.checked:
            value = recordable(value, where=f"reconcile of {call.name!r}")
        payload = call.entry(status="ok", value=value)
        return run.log.record(call.end, call.position, payload), payload

    async def _cached_result(self, branch: Branch, call: EffectCall) -> tuple[int, Payload] | None:
        """Record and return the result of a lost execution, if it outlived it; as if just executed."""
        run, key = self._run, call.result_key(self._run.history.attempt)
        if run.results is None or key is None:
            return None
        payload = await run.results.find(key)
        run.scheduler.raise_if_interrupted(branch)
        if payload is None or payload | call.entry() != payload:
            return None
        _log.info(
            "a result that a crash kept from the log was found",
            extra={"run": run.run_id, "position": call.position, "effect": call.name},
        )
        return self._record(call, payload), payload


def effect(
    verb: str, name: str, arguments: list[JsonValue], execute: Callable[[], Awaitable[Any]]
) -> EffectCall:
    """Return an effect that a crash may repeat."""
    begin, end = K.EFFECT_INTENT, K.EFFECT_RESULT
    return EffectCall(
        verb, begin, end, name, canonical_json(arguments), EffectMode.IDEMPOTENT, execute
    )


def spent_on(value: object) -> BudgetDelta:
    """Return what a model's answer cost, by its usage."""
    usage = value.get("usage") if isinstance(value, dict) else None
    if not isinstance(usage, dict):
        return BudgetDelta()
    tokens = number_of(usage.get("input")) + number_of(usage.get("output"))
    return BudgetDelta(tokens=int(tokens), cost_usd=number_of(usage.get("cost_usd")))


def bounded(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    what: str,
    timeout_s: float | None,
    retry: RetryPolicy | None,
    chance: Callable[[], float],
) -> Callable[[], Awaitable[Any]]:
    """Return a coroutine function that calls `fn(*args)` within its time and retry limits.

    Each try gets arguments of its own: a replay does not call `fn`, so what it does to them must not be seen.
    """

    async def call_once() -> Any:
        if timeout_s is None:
            result = fn(*fresh(args))
            return await result if inspect.isawaitable(result) else result
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                result = fn(*fresh(args))
                return await result if inspect.isawaitable(result) else result
        except TimeoutError as exc:
            if limit.expired():
                raise DeadlineExceededError(what, timeout_s) from exc
            raise

    async def with_retries() -> Any:
        attempt = 1
        while True:
            try:
                return await call_once()
            # What an author's function raises is unknown: the retry policy says which classes are tried again.
            except Exception as exc:
                wait = _retry_wait(exc, retry, attempt, chance())
                if wait is None:
                    raise
                await asyncio.sleep(wait)
                attempt += 1

    return call_once if retry is None else with_retries


def _retry_wait(
    exc: Exception, retry: RetryPolicy | None, attempt: int, chance: float
) -> float | None:
    """Return how many seconds to wait before trying again, or None to give up."""
    if retry is None or attempt > retry.max_retries or type(exc).__name__ in retry.non_retryable:
        return None
    if isinstance(exc, ActorsError) and not exc.retryable:
        return None
    return retry.delay_s(attempt, chance)
