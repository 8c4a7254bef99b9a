"""One execution of one run: from its log to the next suspend point, failure or end."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from actors.errors import (
    CancellationError,
    EffectError,
    MiddlewareTermination,
    NonDeterminismError,
    RunSuspended,
    SpawnDenied,
    SuspensionSwallowedError,
    WaitCycleError,
)
from actors.kernel.agent.agent import RunMeta
from actors.kernel.agent.cancellation import CancellationToken
from actors.kernel.agent.message import Message, MessageKey
from actors.kernel.agent.middleware import HookKind
from actors.kernel.agent.supervision import HistoryRetention, Supervision
from actors.kernel.json import recordable
from actors.kernel.runtime.commit import CONTINUE, Finish, Retry, Suspend
from actors.kernel.runtime.decisions import RETRY
from actors.kernel.runtime.log_entry import EXECUTES, EntryKind, NewEntry
from actors.kernel.runtime.scheduler import DEFAULT_RETRY, RunStatus
from actors.kernel.runtime.store import Nudge
from actors.kernel.runtime.wakeup import WakeSet
from actors.kernel.tracing import trace_id_of
from actors.runtime.answers import Answers
from actors.runtime.beginning import inbox_of, key_of_input, pinned
from actors.runtime.context import RunContext
from actors.runtime.continuation import ContinueAsNew
from actors.runtime.deadline import Deadline
from actors.runtime.environment import Ended
from actors.runtime.error_record import presentable, record_error
from actors.runtime.history import History
from actors.runtime.lifecycle import Hooks, call_agent, clear_turns
from actors.runtime.outcome import (
    Attempt,
    Verdict,
    cancelled,
    completed,
    judge,
    late,
    parked,
    with_orphans,
)
from actors.runtime.recorder import Recorder
from actors.runtime.run_log import RunLog
from actors.runtime.setbacks import Setback, refusal_of
from actors.runtime.signals import Signals
from actors.runtime.tasks import start_task
from actors.runtime.timers import LEAD_S
from actors.runtime.tool_invoker import Toolkit
from actors.runtime.trace_context import executing
from actors.runtime.tracing import TurnSpans
from actors.runtime.turnstile import Turnstile
from actors.runtime.versions import fitting

if TYPE_CHECKING:
    from actors.kernel.agent.agent import Agent
    from actors.kernel.runtime.blocking import Blocking
    from actors.kernel.runtime.commit import (
        Arrived,
        Committed,
        LoadedRun,
        NewRun,
        Then,
        Wait,
        WaitCycle,
    )
    from actors.kernel.runtime.scheduler import Lease
    from actors.runtime.environment import Environment, Refusals

_log = logging.getLogger(__name__)

MAX_DEATHS: Final = 5
"""A run that was executing at so many crashes in a row, without writing anything, is parked."""

MAX_BLOCKED: Final = 2
"""A run that so many hosts in a row gave up because it blocked their event loop is parked."""

UNWIND_LIMIT_S: Final = 10.0
"""How long an agent's code may go on after it was told to stop."""


@dataclass(slots=True)
class Execution:
    """Executes one run once. `create` and `mail` are set when waiting mail starts the run."""

    env: Environment
    agent: Agent
    lease: Lease
    loaded: LoadedRun
    create: NewRun | None = None
    mail: tuple[Arrived, ...] = ()
    was_running: bool = False
    refusals: Refusals = field(default_factory=dict)
    refused: str | None = None
    """Why the run has to be parked without its code: the store takes nothing that comes next."""
    blocking: Blocking | None = None
    token: CancellationToken = field(default_factory=CancellationToken)
    _history: History = field(init=False)
    _turnstile: Turnstile = field(init=False)
    _runlog: RunLog = field(init=False)
    _recorder: Recorder = field(init=False)
    _ctx: RunContext = field(init=False)
    _deadline: Deadline = field(init=False)
    _misfit: str | None = None
    """Why this host's code must not go on with the run."""
    known_seq: int = -1
    """Where the log ends at least, in a store that has forgotten nothing of it; see `doubt`."""
    _stopped: bool = False
    _is_handed_over: bool = False
    _suspend: asyncio.TimerHandle | None = None
    _stays_until: float | None = None
    _wake: Suspend | None = None
    _open_waits: tuple[Wait, ...] | None = None
    _over: asyncio.Future[None] | None = None
    _beginning: int = -1
    """Seq of the last entry that says how this execution began."""
    _output: Any = None

    def __post_init__(self) -> None:
        self._history = History.of(self.loaded.entries)
        row = self.loaded.row
        self.agent, self._misfit = fitting(
            self.env.agents, row.agent_id, self.agent, self._history.version
        )
        limit_s = getattr(self.agent, "deadline_s", None)
        self._deadline = Deadline(row, limit_s, self.env.clock)
        self.lease = replace(self.lease, attempt=self._history.attempt)
        self._turnstile = Turnstile(on_idle=self._on_idle, on_closed=self._on_closed)
        self._runlog = RunLog(
            store=self.env.store, lease=self.lease, history=self._history,
            turnstile=self._turnstile, on_committed=self._on_committed,
        )  # fmt: skip
        terms = row.supervision or Supervision(
            run_id=row.run_id, root_id=row.root or row.run_id, parent_id=row.parent,
            depth=row.depth, priority=row.priority,
        )  # fmt: skip
        meta = RunMeta(
            row.run_id, row.agent_id, self._history.attempt, self.token, terms,
            row.deadline_at, trace_id_of(row),
        )  # fmt: skip
        self._recorder = Recorder(
            row=row, history=self._history, refusals=dict(self.refusals),
            turnstile=self._turnstile, log=self._runlog,
            signals=Signals(self.env.store, row.run_id, self._runlog),
            answers=Answers(self.env.store, row.run_id, self._runlog),
            clock=self.env.clock, entropy=self.env.entropy, may_act=self.env.may_act,
            hooks=Hooks(self.agent, meta, self.env.clock), results=self.env.results,
            meters=self.env.meters,
            # A later attempt writes nothing before its first effect: it may have begun already.
            recovering=self._history.started and row.status is not RunStatus.SUSPENDED,
        )  # fmt: skip
        self._ctx = RunContext(
            self._recorder, meta, env=self.env, mail=self.env.mail_of(row.agent_id),
            toolkit=Toolkit.of(self.agent), model=getattr(self.agent, "model", None),
        )  # fmt: skip
        if self._history.started:
            self._recorder.answers.poke()
        was_waiting = row.parked is not None or (row.wake is not None and row.wake.runs)
        if self.was_running or was_waiting:
            self._runlog.known_waits = None
        self._runlog.waits_of = lambda resting: self._ctx.waits.rows(resting=resting)

    # --- from outside ---------------------------------------------------------------------------

    def poke_mail(self) -> bool:
        """The agent has new mail; False when the run is leaving memory and did not see it."""
        self._ctx.waits.poke_mail()
        return self._wake is None

    def poke_signals(self) -> bool:
        """The run has new signals; False when it is leaving memory and did not see them."""
        self._ctx.waits.poke_signals()
        return self._wake is None

    def fail_wait(self, cycle: WaitCycle) -> bool:
        """A wait can never end; False when the run is leaving memory and does not see that."""
        self._ctx.waits.fail(cycle.position, circle_of(cycle))
        return self._wake is None

    def cancel(self, reason: str) -> None:
        """Somebody asked the run to stop."""
        if not self.token.is_cancelled:
            self.token.cancel(reason)
            self._interrupt(asyncio.CancelledError())

    def drop(self, why: str) -> None:
        """Leave memory now without writing anything; whoever owns the run replays it."""
        self._stopped = True
        self._turnstile.cancel_running()
        self._runlog.break_off(CancellationError(why))
        self._arm_abandoning()

    def doubt(self) -> bool:
        """The store may be behind; False when nothing of this execution is in it, nor done outside.

        Else it goes on, and writes its waits once more: the first write tells whether the log ends
        where it thinks.
        """
        self.known_seq = self._runlog.durable_seq
        if self.known_seq < 0:
            return False
        self._runlog.known_waits = None
        self._runlog.show_waits()
        self.poke_mail()
        self.poke_signals()
        return True

    def hand_over(self) -> None:
        """Leave memory now, as rows: whoever owns the run goes on by replay, without a death."""
        is_ending = self._wake is not None or self._turnstile.unwinding is not None
        if not is_ending and not (self._over is not None and self._over.done()):
            self._is_handed_over = True
            keys = self._ctx.waits.wake_set().runs
            self._wake = Suspend(WakeSet(at=self.env.clock.now(), runs=keys))
            self._interrupt(RunSuspended())
        self._arm_abandoning()

    @property
    def has_unrepeatable_effect(self) -> bool:
        """Whether an at-most-once effect is under way: dropped now, it would be in doubt."""
        return self._recorder.unrepeatable > 0

    @property
    def unwritten(self) -> tuple[NewEntry, ...]:
        """What was recorded and is not written; for who replays a log without a store."""
        return tuple(self._runlog.unwritten)

    @property
    def unmet(self) -> str | None:
        """Position of a recorded call that the code has not made so far, if there is one."""
        return self._history.never_asked()

    def _wake_set(self) -> WakeSet:
        """Return what the run waits for now; at its deadline it goes on in any case."""
        wake, deadline = self._ctx.waits.wake_set(), self.loaded.row.deadline_at
        return wake if deadline is None else replace(wake, at=min(wake.at or deadline, deadline))

    def _interrupt(self, signal: BaseException) -> None:
        self._turnstile.cancel_running()
        self._turnstile.unwind(signal)
        self._arm_abandoning()

    def _arm_abandoning(self) -> None:
        if self._over is not None and not self._over.done():
            loop = asyncio.get_running_loop()
            loop.call_later(UNWIND_LIMIT_S, self._abandon)

    def _abandon(self) -> None:
        if self._over is not None and not self._over.done():
            _log.error(
                "agent code does not stop; it is left behind and can write nothing any more",
                extra={"agent": str(self.lease.agent_id), "run": self.lease.run_id},
            )
            self._over.set_result(None)

    # --- the execution --------------------------------------------------------------------------

    async def run(self) -> Ended:
        """Replay, go on live, and write what became of the run."""
        self.env.meters.began(recovered=self.was_running)
        spans = self._recorder.spans = self._spans()
        try:
            ended = await self._run()
            self.env.meters.ended(ended.then)
            if spans is not None:
                is_left = ended.lost or self._stopped
                spans.end(ended.then, upto=self._runlog.durable_seq, is_left=is_left)
            return ended
        finally:
            # Freed at once, not by the garbage collector: of many short runs that is half of the time.
            self._turnstile.detach()
            self._runlog.detach()

    def _spans(self) -> TurnSpans | None:
        if self.env.tracing is None:
            return None
        return TurnSpans(
            self.env.tracing, self.loaded, self.lease, clock=self.env.clock,
            was_running=self.was_running, mail=self.mail or self.loaded.messages,
        )  # fmt: skip

    async def _run(self) -> Ended:
        deaths = self._history.deaths + 1  # the last one has left no entry
        if self.was_running and deaths >= MAX_DEATHS:
            detail = f"{deaths} hosts in a row died while executing this run"
            return await self._write(parked("poison", detail))
        if self.loaded.row.parked is not None:
            while await self._recorder.signals.take(RETRY) is not None:
                pass  # they have had their effect: the run executes
        if self._misfit is not None:
            return await self._write(parked("version", self._misfit))
        beginning = (self._runlog, self._history, self.loaded)
        inbox = inbox_of(
            *beginning, agent=self.agent, create=self.create, mail=self.mail,
            was_running=self.was_running,
        )  # fmt: skip
        self._beginning = self._runlog.seq
        if self.refused is not None:
            return await self._write(parked("store_refused", self.refused))
        blocked = 0 if self.blocking is None else self._history.without_progress(self.blocking.seqs)
        if self.blocking is not None and blocked >= MAX_BLOCKED:
            detail = f"{blocked} hosts gave it up because it blocked them: {self.blocking.place}"
            return await self._write(parked("blocked", detail))
        if self._deadline.has_passed and not self.token.is_cancelled:
            return await self._write(late(self._deadline.error(), self._history.attempt))
        hooks = self._recorder.hooks
        if hooks:
            await hooks.dispatch(HookKind.RUN_START)
        error = await self._call(inbox)
        ended = await self._close(error)
        if hooks:
            if isinstance(error, MiddlewareTermination):
                await hooks.dispatch(HookKind.GUARDRAIL_TRIP, name=str(error))
            status = type(ended.then).__name__.lower() if ended.then else "dropped"
            await hooks.dispatch(HookKind.RUN_END, data={"status": status})
        return ended

    async def _call(self, inbox: list[Message]) -> BaseException | None:
        """Run the agent's code in its own task; return what escaped it."""
        self._over = asyncio.get_running_loop().create_future()
        over = self._over
        outcome: list[BaseException | None] = []

        async def body() -> None:
            executing.set(self._ctx.meta)
            if self._recorder.spans is not None:
                self._recorder.spans.enter()
            self._turnstile.adopt_root(self._recorder.generation_prefix)
            try:
                self._output = await call_agent(self.agent, self._ctx, inbox)
                if self._turnstile.unwinding is None:
                    await clear_turns(self.agent, self._ctx.meta)
                outcome.append(None)
            except BaseException as exc:  # noqa: BLE001 - judged in _close
                outcome.append(presentable(exc))
            finally:
                self._turnstile.end_root()

        def done(task: asyncio.Task[Any]) -> None:
            if not over.done():
                over.set_result(None)

        self._deadline.arm(self._interrupt)
        task = start_task(body(), name=f"run {self.lease.run_id}", done=done)
        try:
            await over
        except asyncio.CancelledError:
            self.drop("the worker stops")
            task.cancel()
            raise
        finally:
            self._deadline.disarm()
            if self._suspend is not None:
                self._suspend.cancel()
        return outcome[0] if outcome else asyncio.CancelledError()

    # --- its end --------------------------------------------------------------------------------

    async def _close(self, error: BaseException | None) -> Ended:
        if self._runlog.broken is not None:
            return self._broken()
        signal = self._turnstile.unwinding
        if isinstance(signal, ContinueAsNew) and error is signal:
            return await self._write(Verdict((self._continued(signal),), CONTINUE), again=True)
        has_left = self._is_handed_over or isinstance(error, RunSuspended)
        if self._wake is not None and has_left:
            return await self._leave(self._wake)
        if self._others() and not await self._runlog.over():
            return self._broken()
        return await self._write(self._judge(error))

    def _others(self) -> tuple[MessageKey, ...]:
        """Return the run's messages beside its first, if its code has begun nothing that concerns all.

        Nothing but its beginning is durable then, and no effect executes or has executed.
        """
        log, row = self._runlog, self.loaded.row
        has_begun = log.durable_seq > self._beginning or not self._history.is_at_beginning
        if has_begun or row.fork is not None or any(e.kind in EXECUTES for e in log.unwritten):
            return ()
        given = self.mail or self.loaded.messages
        if self._history.inputs:
            return tuple(key_of_input(entry, row.agent_id) for entry in self._history.inputs[1:])
        return tuple(MessageKey(m.agent_id, m.sender, m.message.id) for m in given[1:])

    def _continued(self, signal: ContinueAsNew) -> NewEntry:
        """Return the entry that begins a generation, with the newest version of the agent."""
        payload = {"generation": self._history.generation + 1, "input": signal.input}
        newest = self.env.agents.find(self.loaded.row.agent_id)
        if newest is not None:
            payload |= pinned(newest, self.loaded.row)
        return NewEntry(EntryKind.RUN_CONTINUED, "", payload)

    def _judge(self, error: BaseException | None) -> Verdict:
        if self.token.is_cancelled:
            return cancelled(self.token.reason)
        if self._deadline.is_final:
            return late(self._deadline.error(), self._history.attempt)
        if self._wake is not None or isinstance(self._turnstile.unwinding, ContinueAsNew):
            did = "returned" if error is None else f"raised {type(error).__name__}"
            error = SuspensionSwallowedError(str(self.lease.agent_id), did)
        if self._recorder.diverged is not None:
            error = self._recorder.diverged
        if self._deadline.expired is not None:
            error = self._deadline.expired
        if error is None:
            try:
                where = f"output of agent {self.lease.agent_id}"
                self._output = recordable(self._output, where=where)
            except Exception as exc:  # noqa: BLE001 - judged like any other error
                error = exc
            missed = self._history.never_asked()
            if error is None and missed is not None:
                error = NonDeterminismError(missed, "an entry", "the end of the run")
        if error is None:
            return completed(self._output)
        return self._judge_error(error)

    def _judge_error(self, error: BaseException) -> Verdict:
        if isinstance(error, asyncio.CancelledError):
            error = CancellationError("the agent's code cancelled itself")
        row = self.loaded.row
        policy = row.retry_policy or self._history.retry or DEFAULT_RETRY
        attempt = Attempt(
            self._history.attempt, policy, self._runlog.seq, self.env.clock.now(),
            self.env.entropy.random(), tuple(self._history.failures), row.deadline_at,
        )  # fmt: skip
        if others := self._others():
            attempt = replace(attempt, last_seq=self._beginning, others=others)
        try:
            verdict = judge(error, attempt)
        except Exception:  # noqa: BLE001 - an error of the author's that lacks what its class has
            record = record_error(error)
            verdict = judge(EffectError(str(record["type"]), str(record["message"])), attempt)
        if isinstance(verdict.then, Retry) and verdict.then.release:
            self._runlog.forget_calls(self._beginning, others)
        return verdict

    async def _leave(self, wake: Suspend) -> Ended:
        """Suspend; without writing anything when nothing happened since the run was woken."""
        unwritten = [entry.kind for entry in self._runlog.unwritten]
        is_at_rest = not self.was_running and self.loaded.row.parked is None and self.known_seq < 0
        if unwritten == [EntryKind.RUN_RESUMED] and is_at_rest:
            return Ended(wake)
        entry = NewEntry(EntryKind.RUN_SUSPENDED, "", {"wake": wake.wake.to_json()})
        return await self._write(Verdict((entry,), wake))

    async def _write(self, verdict: Verdict, *, again: bool = False) -> Ended:
        terms = self.loaded.row.supervision
        policy = terms.retention if terms is not None else HistoryRetention.RUN
        verdict = with_orphans(verdict, policy, self._history.left_behind)
        for entry in verdict.entries:
            self._runlog.record(entry.kind, entry.position, entry.payload)
        try:
            # Attempts count from 1 again after continue_as_new, the only verdict that continues.
            attempt = 1 if verdict.then is CONTINUE else None
            if self._misfit is not None:
                attempt = self.loaded.row.attempt  # none was made
            committed = await self._runlog.commit_end(
                verdict.then, attempt=attempt, waits=self._left_open(verdict.then),
                orphans=policy if isinstance(verdict.then, Finish) else None,
            )  # fmt: skip
        except RunSuspended:
            return self._broken()
        again = again or committed.wake_now or bool(committed.cycles)
        refusals = {cycle.position: circle_of(cycle) for cycle in committed.cycles}
        return Ended(verdict.then, again=again, output=self._output, refusals=refusals)

    def _left_open(self, then: Then) -> tuple[Wait, ...] | None:
        """Return the waits that are rows from now on; None: as they are."""
        if isinstance(then, Suspend):
            return self._open_waits
        is_untouched = isinstance(then, Finish) or self._misfit is not None
        return None if is_untouched else ()

    def _broken(self) -> Ended:
        if self._stopped:
            return Ended(None)
        is_meant = self._runlog.is_stale or self._runlog.over_budget is not None
        if not (self._runlog.lost_lease or is_meant):
            _log.warning(
                "a run could not be written and is loaded again",
                extra={"run": self.lease.run_id, "why": str(self._runlog.broken)},
            )
        refusals = dict(self._recorder.refusals)
        if (over := self._runlog.over_budget) is not None:
            denied = SpawnDenied(self.lease.run_id, over.limit)
            refusals |= dict.fromkeys(over.positions, denied)
        lost, setback = self._runlog.lost_lease, None
        if over is None:
            setback = Setback(self._runlog.durable_seq, refusal_of(self._runlog.broken))
        return Ended(None, lost=lost, again=not lost, refusals=refusals, setback=setback)

    # --- callbacks ------------------------------------------------------------------------------

    def _on_committed(self, committed: Committed) -> None:
        if committed.spawned:
            self._on_spawned(committed)
        if committed.routed:
            self.env.on_routed(committed.routed)
        if committed.nudges:
            self.env.on_nudges(committed.nudges)
        for cycle in committed.cycles:
            self.fail_wait(cycle)
        if committed.cancel_requested is not None:
            self.cancel(committed.cancel_requested)

    def _on_spawned(self, committed: Committed) -> None:
        stopped = {nudge.run_id for nudge in committed.nudges if nudge.kind == "cancel"}
        if committed.cancel_requested is not None:
            stopped.update(child.run.run_id for child, _ in committed.spawned)
        born = [place for place in committed.spawned if place[0].run.run_id not in stopped]
        if born:
            self.env.on_spawned(born)
        # Those asked to stop in the moment of their birth never execute: their rows tell.
        runs = [child.run for child, _ in committed.spawned if child.run.run_id in stopped]
        self.env.on_nudges([Nudge("run", run.agent_id, run.run_id) for run in runs])

    def _on_closed(self, branch: Any) -> None:
        for position, verb in branch.begun.items():
            self._runlog.record(EntryKind.EFFECT_ABANDONED, position, {"effect": verb})
        branch.begun.clear()

    def _on_idle(self) -> None:
        if self.env.suspend_after > 0:
            self._runlog.flush_behind()  # timers that were set survive a crash of a hot wait
        loop = asyncio.get_running_loop()
        now = loop.time()
        rest_s = self._rest_s(now)
        if self._suspend is not None:
            if self._suspend.when() <= now + rest_s:
                return
            self._suspend.cancel()
        self._suspend = loop.call_later(rest_s, self._leave_memory, self._turnstile.moves)

    def _rest_s(self, now: float) -> float:
        """Seconds at rest until the run leaves memory.

        A moment before its time it stays for that, if all that happened is written: once, for should
        the clock stand still, time does not come.
        """
        rest_s, unwritten = self.env.suspend_after, self._runlog.unwritten
        if rest_s >= 2 * LEAD_S or any(e.kind != EntryKind.RUN_RESUMED for e in unwritten):
            return rest_s
        due = self._wake_set().at
        early_s = 0.0 if due is None else (due - self.env.clock.now()).total_seconds()
        if not 0 < early_s <= LEAD_S:
            return rest_s
        self._stays_until = self._stays_until or now + early_s + LEAD_S
        return max(rest_s, self._stays_until - now)

    def _leave_memory(self, moves: int) -> None:
        self._suspend = None
        if not self._turnstile.is_idle:
            return
        if moves != self._turnstile.moves:
            self._on_idle()
            return
        self._wake = Suspend(self._wake_set())
        self._open_waits = self._ctx.waits.rows(resting=True)
        self._turnstile.unwind(RunSuspended())


def circle_of(cycle: WaitCycle) -> WaitCycleError:
    """Return the error that a wait in a circle raises."""
    return WaitCycleError([str(agent) for agent in cycle.agents])
