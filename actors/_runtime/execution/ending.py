"""The end of an execution: the run's outcome is decided, and written.

An execution ends by its code, from outside, or when its `Deadline` passes: the agent's limit for one attempt,
or the deadline of the tree.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from actors._kernel.agent.agent import CancellationToken, HistoryRetention
from actors._kernel.agent.message import MessageKey
from actors._kernel.basics import Clock
from actors._kernel.json import is_unreadable_row, recordable
from actors._kernel.runtime.commit import (
    CONTINUE,
    Conflict,
    Finish,
    LeaseLost,
    Missing,
    OutOfOrder,
    OverBudget,
    Retry,
    Suspend,
)
from actors._kernel.runtime.log_entry import EXECUTES, EntryKind, NewEntry
from actors._kernel.runtime.rows import Arrived, LoadedRun, NewRun, RunRow
from actors._kernel.runtime.scheduler import DEFAULT_RETRY, RunStatus
from actors._kernel.runtime.waits import Wait, WaitCycle
from actors._runtime.execution.start import facts_of_agent, key_of_input, with_inbox_turns
from actors._runtime.journal.amendments import Refusal, Setback, refusal_of
from actors._runtime.journal.run_log import warn_of_length
from actors._runtime.loop.timers import Alarm
from actors._runtime.registry import Registry
from actors._runtime.replay.failures import ContinueAsNew, record_error
from actors._runtime.replay.verdict import (
    Attempt,
    Verdict,
    cancelled_verdict,
    completed_verdict,
    judge,
    late_verdict,
    parked_verdict,
    with_orphans,
)
from actors._runtime.verbs.call import RunState
from actors._runtime.verbs.conversation.sessions import Sessions
from actors._runtime.verbs.host_services import ExecutionResult
from actors.errors import (
    CancellationError,
    ConcurrentAppendError,
    DeadlineExceededError,
    EffectError,
    LeaseLostError,
    NonDeterminismError,
    OutOfOrderError,
    RunSuspended,
    SpawnDenied,
    SuspensionSwallowedError,
    WaitCycleError,
)

if TYPE_CHECKING:
    Interrupt: TypeAlias = Callable[[DeadlineExceededError], None]


class Deadline:
    """Interrupts one execution when its time is over.

    Args:
        row: The run; says until when its tree may execute.
        limit_s: Seconds that the agent gives an attempt.

    Attributes:
        attempt_error: The error with which the attempt has to fail; another attempt has its time again.
        is_final: True if the tree has had its time: unlike an attempt's, this end is final.
    """

    __slots__ = ("_clock", "_limit_s", "_row", "_timer", "attempt_error", "is_final")

    def __init__(self, row: RunRow, limit_s: float | None, clock: Clock) -> None:
        self._row, self._limit_s, self._clock = row, limit_s, clock
        self.attempt_error: DeadlineExceededError | None = None
        self.is_final = False
        self._timer: asyncio.TimerHandle | Alarm | None = None

    @property
    def has_passed(self) -> bool:
        """True if the tree's deadline has passed."""
        return self._row.deadline_at is not None and self._clock.now() >= self._row.deadline_at

    def arm(self, interrupt: Interrupt) -> None:
        """Interrupt the execution with an error when the first of the two is over."""
        limit_s, at = self._limit_s, self._row.deadline_at
        remaining_s = None if at is None else (at - self._clock.now()).total_seconds()
        if (
            at is not None
            and remaining_s is not None
            and (limit_s is None or remaining_s <= limit_s)
        ):
            self._timer = Alarm(self._clock, at, partial(self._end_run, interrupt))
        elif limit_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(limit_s, self._end_attempt, limit_s, interrupt)

    def disarm(self) -> None:
        """Cancel the timer, because the execution is over."""
        if self._timer is not None:
            self._timer.cancel()

    def error(self) -> DeadlineExceededError:
        """Return the error of a run whose tree has had its time."""
        supervision = self._row.supervision
        limit = (supervision and supervision.execution_budget.deadline_s) or 0.0
        return DeadlineExceededError(f"run {self._row.run_id}", limit)

    def _end_attempt(self, limit_s: float, interrupt: Interrupt) -> None:
        self.attempt_error = DeadlineExceededError(f"agent {self._row.agent_id}", limit_s)
        interrupt(self.attempt_error)

    def _end_run(self, interrupt: Interrupt) -> None:
        self.is_final = True
        interrupt(self.error())


_log = logging.getLogger("callboard.execution")

_STOPPED: Final = (RunStatus.FAILED, RunStatus.CANCELLED)
_STALE: Final = Conflict | Missing | OutOfOrder | ConcurrentAppendError
"""The log went on without this execution: it is loaded again, in the same attempt."""


@dataclass(slots=True)
class Ending:
    """The end of one execution.

    Attributes:
        run: The state that the run's verbs share.
        loaded_run: The run as the store returned it.
        mail: The messages that start it, if waiting messages do.
        agents: The agents that are served here, in all versions.
        token: The token that says whether the run was asked to stop.
        deadline: The deadline of the attempt and of the tree.
        misfit: The reason why this host's code must not go on with the run, or None.
        was_running: True if an execution before this one was, or may have been, broken off.
        sessions: The conversations of the run's agent.
        beginning: Seq of the last entry that says how this execution began.
        wake: The wake set of the run, once it is evicted.
        open_waits: The waits that are rows from then on.
        is_handed_over: True if another host continues the run.
        is_dropped: True if the execution ends without a write.
        output: What the code has returned.
    """

    run: RunState
    loaded_run: LoadedRun
    mail: tuple[Arrived, ...]
    agents: Registry
    token: CancellationToken
    deadline: Deadline
    misfit: str | None
    was_running: bool
    sessions: Sessions
    beginning: int = -1
    wake: Suspend | None = None
    open_waits: tuple[Wait, ...] | None = None
    is_handed_over: bool = False
    is_dropped: bool = False
    output: Any = None

    async def close(self, error: BaseException | None, *, is_in_doubt: bool) -> ExecutionResult:
        """Write what became of the run whose code has returned, or raised `error`.

        With `is_in_doubt` the store may have forgotten what it had of the log.
        """
        if self.run.log.break_reason is not None:
            return self.result_without_write()
        signal = self.run.scheduler.live.unwinding
        # Only if the code let the signal through: what it has done after it swallowed one is in no log.
        if isinstance(signal, ContinueAsNew) and error is signal:
            return await self.write(
                Verdict((self._continuation_entry(signal),), CONTINUE), again=True
            )
        has_left = self.is_handed_over or isinstance(error, RunSuspended)
        if self.wake is not None and has_left:
            return await self._leave(self.wake, is_in_doubt=is_in_doubt)
        # A flush that is under way may make a call durable, and then the run is not taken apart.
        if self._others() and not await self.run.log.finish_writes():
            return self.result_without_write()
        return await self.write(self._judge(error))

    def _others(self) -> tuple[MessageKey, ...]:
        """Return the run's messages beside its first, if its code has begun nothing that concerns all.

        Nothing but its beginning is durable then, and no effect executes or has executed.
        """
        first_messages = self.mail or self.loaded_run.messages
        if not (first_messages[1:] or self.run.history.inputs[1:]):
            return ()
        log, row = self.run.log, self.loaded_run.row
        has_begun = log.durable_seq > self.beginning or not self.run.history.is_at_beginning
        if has_begun or row.fork is not None or any(e.kind in EXECUTES for e in log.writes.entries):
            return ()
        if self.run.history.inputs:
            return tuple(key_of_input(entry, row.agent_id) for entry in self.run.history.inputs[1:])
        return tuple(MessageKey(m.agent_id, m.sender, m.message.id) for m in first_messages[1:])

    def _continuation_entry(self, signal: ContinueAsNew) -> NewEntry:
        """Return the entry that begins a generation.

        It has the newest version of the agent, or that of the generation before if the agent `keeps_version`.
        """
        payload = self.run.bequest()
        payload |= {"generation": self.run.history.generation + 1, "input": signal.input}
        if (newest := self.agents.find(self.loaded_run.row.agent_id)) is not None:
            facts = facts_of_agent(newest, self.loaded_run.row)
            if getattr(newest, "keeps_version", False):
                facts["version"] = self.run.history.version
            payload |= {name: value for name, value in facts.items() if value is not None}
        return NewEntry(EntryKind.RUN_CONTINUED, "", payload)

    def _judge(self, error: BaseException | None) -> Verdict:
        if self.token.is_cancelled:
            return cancelled_verdict(self.token.reason)
        if self.deadline.is_final:
            return late_verdict(self.deadline.error(), self.run.history.attempt)
        # The code had to unwind, and has swallowed the signal: what it did since is in no log.
        if self.wake is not None or isinstance(self.run.scheduler.live.unwinding, ContinueAsNew):
            how_it_ended = "returned" if error is None else f"raised {type(error).__name__}"
            error = SuspensionSwallowedError(str(self.run.agent_id), how_it_ended)
        if self.run.divergence is not None:
            error = self.run.divergence
        if self.deadline.attempt_error is not None:
            error = self.deadline.attempt_error
        if error is None:
            try:
                where = f"output of agent {self.run.agent_id}"
                self.output = recordable(self.output, where=where)
            except Exception as exc:  # noqa: BLE001 - judged like any other error
                error = exc
            unmet_position = self.run.history.first_unmet_position()
            if error is None and unmet_position is not None:
                error = NonDeterminismError(unmet_position, "an entry", "the end of the run")
        if error is None:
            return completed_verdict(self.output)
        return self._judge_error(error)

    def _judge_error(self, error: BaseException) -> Verdict:
        if isinstance(error, asyncio.CancelledError):
            error = CancellationError("the agent's code cancelled itself")
        row = self.loaded_run.row
        policy = row.retry_policy or self.run.history.retry or DEFAULT_RETRY
        attempt = Attempt(
            self.run.history.attempt,
            policy,
            self.run.log.last_seq,
            self.run.clock.now(),
            self.run.entropy.random(),
            tuple(self.run.history.failures),
            row.deadline_at,
        )
        if other_messages := self._others():
            attempt = replace(attempt, last_seq=self.beginning, other_messages=other_messages)
        try:
            verdict = judge(error, attempt)
        except Exception:  # noqa: BLE001 - an error of the author's that lacks what its class has
            record = record_error(error)
            verdict = judge(EffectError(str(record["type"]), str(record["message"])), attempt)
        if isinstance(verdict.then, Retry) and verdict.then.release:
            self.run.log.forget_calls(self.beginning, other_messages)
        return verdict

    async def _leave(self, wake: Suspend, *, is_in_doubt: bool) -> ExecutionResult:
        """Suspend; without writing anything when nothing happened since the run was woken."""
        if (signal := self.run.scheduler.live.unwinding) is not None:
            # Else the frames of the code that has left would stay in memory while this is written.
            signal.__traceback__ = None
        unwritten_kinds = [entry.kind for entry in self.run.log.writes.entries]
        # Written although nothing has happened: else the row would still say that the run executes, or is
        # parked.
        is_new = self.was_running or self.loaded_run.row.parked is not None or is_in_doubt
        if unwritten_kinds == [EntryKind.RUN_RESUMED] and not is_new:
            return ExecutionResult(wake)
        entry = NewEntry(EntryKind.RUN_SUSPENDED, "", {"wake": wake.wake.to_json()})
        result = await self.write(Verdict((entry,), wake))
        warn_of_length(self.run.log, self.loaded_run.entries)
        return result

    async def write(self, verdict: Verdict, *, again: bool = False) -> ExecutionResult:
        """Write what was judged, with all that is not written yet."""
        supervision = self.loaded_run.row.supervision
        policy = supervision.retention if supervision is not None else HistoryRetention.RUN
        verdict = with_orphans(verdict, policy, self.run.history.unjoined_children)
        if self.run.mode is not None and self._has_executed and not self.sessions.has_kept:
            verdict, inbox_turns = with_inbox_turns(
                verdict, self.loaded_run, self.run.history, self.mail
            )
            self.run.log.writes.turns += inbox_turns
        verdict = self._with_open_results(verdict)
        for entry in verdict.entries:
            self.run.log.record(entry.kind, entry.position, entry.payload)
        if isinstance(verdict.then, Finish):
            # Before the terminal entry: after a crash in between the run ends again, and clears again.
            await self.sessions.clear()
            if self.run.mode is not None:
                self.run.log.writes.facts.append("ended")
        try:
            # Attempts count from 1 again after continue_as_new, the only verdict that continues.
            attempt = 1 if verdict.then is CONTINUE else None
            if not self._has_executed:
                attempt = self.loaded_run.row.attempt  # none was made
            waits: tuple[Wait, ...] | None = None  # the rows stay as they are
            if isinstance(verdict.then, Suspend):
                waits = self.open_waits  # rows from now on
            elif self._has_executed and not isinstance(verdict.then, Finish):
                waits = ()
            committed = await self.run.log.commit_end(
                verdict.then,
                attempt=attempt,
                waits=waits,
                orphan_policy=policy if isinstance(verdict.then, Finish) else None,
            )
        except RunSuspended:
            return self.result_without_write()
        again = again or committed.wake_now or bool(committed.cycles)
        refusals = {cycle.position: wait_cycle_error(cycle) for cycle in committed.cycles}
        is_over = isinstance(verdict.then, Finish | Suspend)
        answered = tuple(self.sessions.answered) if is_over else ()
        return ExecutionResult(verdict.then, again=again, refusals=refusals, answered=answered)

    def _with_open_results(self, verdict: Verdict) -> Verdict:
        """Let a session have what a stopped run leaves open: calls, and what was shown of an answer."""
        is_stopped = isinstance(verdict.then, Finish) and verdict.then.status in _STOPPED
        turns = self.sessions.open_results() if is_stopped else ()
        self.run.log.writes.turns += turns
        if self.run.mode is None or not turns:
            return verdict
        *other_entries, end = verdict.entries
        turn_ids: Any = end.payload.get("turns", [])
        ids = [*turn_ids, *(turn.id for turn in turns if turn.session == self.run.agent_id.key)]
        if ids:
            end = replace(end, payload={**end.payload, "turns": ids})
        return replace(verdict, entries=(*other_entries, end))

    @property
    def _has_executed(self) -> bool:
        return self.misfit is None and self.loaded_run.unreadable is None

    async def write_unreadable(
        self, refusal: Refusal | None, create: NewRun | None
    ) -> ExecutionResult:
        """Park a run that cannot be read, after a few tries; until then have it loaded again.

        A run of waiting messages is made for that, with the one message that cannot be read.
        """
        seq = self.loaded_run.row.last_seq
        if refusal is None:
            setback = Setback(seq, self.loaded_run.unreadable, is_unreadable=True)
            return ExecutionResult(None, again=True, setback=setback)
        writes = self.run.log.writes
        writes.create = create
        writes.bind += [MessageKey(m.agent_id, m.sender, m.message.id) for m in self.mail]
        return await self.write(parked_verdict(refusal.reason, refusal.detail))

    def result_without_write(self) -> ExecutionResult:
        """Return the result of an execution that could not write; the run is loaded again."""
        if self.is_dropped:
            return ExecutionResult(None)
        log, reason = self.run.log, self.run.log.break_reason
        is_lost, setback = isinstance(reason, LeaseLost | LeaseLostError), None
        if not (is_lost or isinstance(reason, _STALE | OverBudget)):
            _log.warning(
                "a run could not be written and is loaded again",
                extra={"run": self.run.run_id, "why": str(reason)},
            )
        refusals = dict(self.run.refusals)
        if isinstance(reason, OverBudget):
            denial = SpawnDenied(self.run.run_id, reason.limit)
            refusals |= dict.fromkeys(reason.positions, denial)
        else:
            setback = Setback(
                log.durable_seq, refusal_of(reason), is_unreadable=is_unreadable_row(reason)
            )
        is_overtaken = isinstance(reason, OutOfOrder | OutOfOrderError) and log.durable_seq < 0
        return ExecutionResult(
            None,
            lost=is_lost,
            again=not is_lost,
            refusals=refusals,
            setback=setback,
            overtaken=is_overtaken,
        )


def wait_cycle_error(cycle: WaitCycle) -> WaitCycleError:
    """Return the error that a wait in a cycle raises."""
    return WaitCycleError([str(agent) for agent in cycle.agents])
