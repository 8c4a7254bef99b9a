"""An execution of a run: from its log to the next suspend point, failure or end."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import Any, Final

from actors._kernel.agent.agent import Agent, CancellationToken
from actors._kernel.agent.hooks import HookKind
from actors._kernel.agent.message import Message
from actors._kernel.runtime.commit import Committed, Suspend
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.rows import RETRY, Arrived, LoadedRun, NewRun
from actors._kernel.runtime.scheduler import Lease, RunStatus
from actors._kernel.runtime.waits import WaitCycle, WakeSet
from actors._kernel.stores.runs import Blocking
from actors._runtime.execution.ending import Deadline, Ending, wait_cycle_error
from actors._runtime.execution.start import (
    agent_of_run,
    begin,
    enter_code,
    meta_of,
    spans_of,
    terms_of,
    verdict_without_code,
    write_mark,
)
from actors._runtime.execution.suspects import Standing
from actors._runtime.journal.amendments import Refusal
from actors._runtime.journal.run_log import RunLog
from actors._runtime.loop.tasks import start_task
from actors._runtime.loop.timers import FEW, LEAD_S, idle_limit_s
from actors._runtime.replay.branch_scheduler import BranchScheduler
from actors._runtime.replay.failures import presentable
from actors._runtime.replay.history import History
from actors._runtime.replay.verdict import late_verdict, parked_verdict
from actors._runtime.verbs.buffers import AnswerBuffer, SignalBuffer
from actors._runtime.verbs.call import RunState
from actors._runtime.verbs.conversation.sessions import Sessions
from actors._runtime.verbs.host_services import ExecutionResult, HostServices, Refusals
from actors._runtime.verbs.middleware import Hooks, call_agent
from actors._runtime.verbs.run_context import RunContext
from actors._runtime.verbs.waits import Waits
from actors.errors import CancellationError, MiddlewareTermination, RunSuspended

_log = logging.getLogger("callboard.execution")

UNWIND_LIMIT_S: Final = 10.0
"""Seconds that an agent's code may continue after its cancellation."""


@dataclass(slots=True)
class Execution:
    """Executes one run once. `create` and `mail` are set when waiting messages start the run."""

    env: HostServices
    agent: Agent
    lease: Lease
    loaded_run: LoadedRun
    create: NewRun | None = None
    mail: tuple[Arrived, ...] = ()
    standing: Standing = field(default_factory=Standing)
    refusals: Refusals = field(default_factory=dict)
    refusal: Refusal | None = None
    """Reason to park the run without its code: the store refuses every next entry, or a row is unreadable."""
    blocking: Blocking | None = None
    token: CancellationToken = field(default_factory=CancellationToken)
    _code: Agent = field(init=False)
    _scheduler: BranchScheduler = field(init=False)
    _runlog: RunLog = field(init=False)
    _run_state: RunState = field(init=False)
    _waits: Waits = field(init=False)
    _ctx: RunContext = field(init=False)
    _ending: Ending = field(init=False)
    known_seq: int = -1
    """Least end of the log, in a store that has not lost any of it; see `invalidate`."""
    _suspend_timer: asyncio.TimerHandle | None = None
    _is_idle: bool = False
    _may_stay: bool = True
    _stays_until: float | None = None
    _end_future: asyncio.Future[None] | None = None

    def __post_init__(self) -> None:
        env, row, history = self.env, self.loaded_run.row, History.of_run(self.loaded_run)
        self.agent, misfit = env.agents.fitting(row.agent_id, self.agent, history.version)
        self.standing.read(history)
        self._code, mode = agent_of_run(self.agent, history, self.loaded_run, self.mail)
        self.lease = replace(self.lease, attempt=history.attempt)
        scheduler = self._scheduler = BranchScheduler(
            durable=history.last_seq,
            on_idle=self._on_idle,
            on_move=self._on_move,
            on_closed=self._on_closed,
        )
        log = RunLog(env.store, self.lease, history, scheduler, on_committed=self._on_committed)
        meta = meta_of(row, history.attempt, self.token)
        run = RunState(
            row=row,
            history=history,
            refusals=dict(self.refusals),
            scheduler=scheduler,
            log=log,
            signals=SignalBuffer(env.store, row.run_id, log),
            answers=AnswerBuffer(env.store, row.run_id, log),
            clock=env.clock,
            entropy=env.entropy,
            may_act=env.may_act,
            hooks=Hooks(self._code, meta, env.clock),
            store=env.store,
            embedder=getattr(self._code, "embedder", None),
            results=env.results,
            counters=env.counters,
            # A later attempt writes nothing before its first effect: it may have begun already.
            recovering=history.has_started and row.status is not RunStatus.SUSPENDED,
            mode=mode,
        )
        waits = self._waits = Waits(run, env.mail_of(row.agent_id))
        sessions = Sessions(
            run, terms_of(self._code, mode, row.agent_id), env.store.data.transcripts
        )
        self._ctx = RunContext(run, meta, env=env, waits=waits, agent=self._code, sessions=sessions)
        self._runlog, self._run_state = log, run
        deadline = Deadline(row, getattr(self._code, "deadline_s", None), env.clock)
        self._ending = Ending(
            run,
            self.loaded_run,
            self.mail,
            env.agents,
            self.token,
            deadline,
            misfit,
            self.standing.mark is not None,
            sessions,
        )
        # An answer may have been stored while the run was rows, without a hint for this execution.
        if history.has_started:
            run.answers.invalidate()
        was_waiting = row.parked is not None or (row.wake is not None and row.wake.runs)
        # Another execution may have left rows of waits that this one does not know: its first write replaces
        # them.
        if self.standing.was_running or was_waiting:
            log.known_waits = None
        log.waits_of = waits.rows

    def notify_mail(self) -> bool:
        """Notify the run of new messages; return False if it is being evicted and did not see them."""
        self._waits.notify_mail()
        return self._ending.wake is None

    def notify_signals(self) -> bool:
        """Notify the run of new signals; return False if it is being evicted and did not see them."""
        self._waits.notify_signals()
        return self._ending.wake is None

    def fail_wait(self, cycle: WaitCycle) -> bool:
        """Fail a wait that can never end; return False if the run is being evicted and does not see that."""
        self._waits.fail(cycle.position, wait_cycle_error(cycle))
        return self._ending.wake is None

    def cancel(self, reason: str) -> None:
        """Interrupt the run, because a cancel was requested."""
        if not self.token.is_cancelled:
            self.token.cancel(reason)
            self._interrupt(asyncio.CancelledError())

    def drop(self, reason: str) -> None:
        """Leave memory now without writing anything. The run's owner replays it."""
        self._ending.is_dropped = True
        self._scheduler.cancel_running()
        self._runlog.break_off(CancellationError(reason))
        self._arm_abandoning()

    def invalidate(self) -> bool:
        """Check the log again, because the store may have lost commits.

        Return False if the execution has no durable entry. Otherwise it continues and writes its waits again.
        That write fails if the log ends elsewhere than expected.
        """
        self.known_seq = self._runlog.durable_seq
        if self.known_seq < 0:
            return False
        self._runlog.known_waits = None
        self._runlog.show_waits()
        self.notify_mail()
        self.notify_signals()
        return True

    def hand_over(self) -> None:
        """Leave memory now and suspend the run. Its next owner continues by replay; no crash is counted."""
        # A run that is ending already writes its own outcome, and must not be suspended behind it.
        is_ending = self._ending.wake is not None or self._scheduler.live.unwinding is not None
        if not is_ending and not (self._end_future is not None and self._end_future.done()):
            self._ending.is_handed_over = True
            keys = self._waits.paused.wake_set().runs
            self._ending.wake = Suspend(WakeSet(at=self.env.clock.now(), runs=keys))
            self._interrupt(RunSuspended())
        self._arm_abandoning()

    @property
    def has_unrepeatable_effect(self) -> bool:
        """True if an at-most-once effect is under way. Dropped now, it would be in doubt."""
        return self._run_state.unrepeatable > 0

    @property
    def leftovers(self) -> tuple[list[NewEntry], str | None]:
        """The recorded entries that are not written, and the position of a recorded call that was not made."""
        return self._runlog.writes.entries, self._run_state.history.first_unmet_position()

    def _wake_set(self) -> WakeSet:
        """Return what the run waits for now; at its deadline it goes on in any case."""
        wake, deadline = self._waits.paused.wake_set(), self.loaded_run.row.deadline_at
        return wake if deadline is None else replace(wake, at=min(wake.at or deadline, deadline))

    def _interrupt(self, signal: BaseException) -> None:
        self._scheduler.cancel_running()
        self._scheduler.unwind(signal)
        self._arm_abandoning()

    def _arm_abandoning(self) -> None:
        if self._end_future is not None and not self._end_future.done():
            loop = asyncio.get_running_loop()
            loop.call_later(UNWIND_LIMIT_S, self._abandon)

    def _abandon(self) -> None:
        if self._end_future is not None and not self._end_future.done():
            _log.error(
                "agent code does not stop; it is left behind and can write nothing any more",
                extra={"agent": str(self.lease.agent_id), "run": self.lease.run_id},
            )
            self._end_future.set_result(None)

    async def run(self) -> ExecutionResult:
        """Replay, go on live, and write what became of the run."""
        self.env.counters.count_start(recovered=self.standing.was_running)
        spans = self._run_state.spans = spans_of(
            self.env, self.loaded_run, self.lease, self.mail, was_running=self.standing.was_running
        )
        try:
            if self.loaded_run.unreadable is None:
                result = await self._run()
            else:
                result = await self._ending.write_unreadable(self.refusal, self.create)
            self.env.counters.count_end(result.then)
            if spans is not None:
                is_left = result.lost or self._ending.is_dropped
                spans.end(result.then, upto=self._runlog.durable_seq, is_left=is_left)
            return result
        finally:
            self._on_move()  # an execution that was dropped is still counted as idle
            # Freed at once, not by the garbage collector: of many short runs that is half of the time.
            self._scheduler.detach()
            self._runlog.detach()
            self._waits.detach()

    async def _run(self) -> ExecutionResult:
        ending, run, loaded_run = self._ending, self._run_state, self.loaded_run
        if (verdict := self.standing.verdict) is not None:
            return await ending.write(verdict)
        if loaded_run.row.parked is not None:
            while await run.signals.take(RETRY) is not None:
                pass  # they have had their effect: the run executes
        if ending.misfit is not None:
            return await ending.write(parked_verdict("version", ending.misfit))
        mark, sessions = self.standing.mark, ending.sessions
        inbox = begin(
            run, loaded_run, self.agent, self.mail, create=self.create, mark=mark, sessions=sessions
        )
        ending.beginning = self._runlog.last_seq
        if (verdict := verdict_without_code(run, self.refusal, self.blocking)) is not None:
            return await ending.write(verdict)
        if ending.deadline.has_passed and not self.token.is_cancelled:
            return await ending.write(late_verdict(ending.deadline.error(), run.history.attempt))
        if mark is not None and not await write_mark(self._runlog, self.standing):
            return ending.result_without_write()
        self._runlog.on_progress = self.standing.on_clear
        return await self._execute(inbox)

    async def _execute(self, inbox: list[Message]) -> ExecutionResult:
        """Call the agent's code, and write what became of the run."""
        ending, hooks = self._ending, self._run_state.hooks
        if hooks:
            await hooks.dispatch(HookKind.RUN_START)
        self.standing.log = self._runlog
        error = await self._call(inbox)
        self.standing.log = None
        result = await ending.close(error, is_in_doubt=self.known_seq >= 0)
        if hooks:
            if isinstance(error, MiddlewareTermination):
                await hooks.dispatch(HookKind.GUARDRAIL_TRIP, name=str(error))
            status = type(result.then).__name__.lower() if result.then else "dropped"
            await hooks.dispatch(HookKind.RUN_END, data={"status": status})
        return result

    async def _call(self, inbox: list[Message]) -> BaseException | None:
        """Run the agent's code in its own task; return what escaped it."""
        self._end_future = asyncio.get_running_loop().create_future()
        end_future = self._end_future
        outcome: list[BaseException | None] = []

        async def body() -> None:
            enter_code(self._run_state, self._ctx.meta, self._ending.sessions)
            self._scheduler.adopt_root(self._run_state.generation_prefix)
            try:
                self._ending.output = await call_agent(self._code, self._ctx, inbox)
                outcome.append(None)
            except BaseException as exc:  # noqa: BLE001 - judged by Ending.close
                outcome.append(presentable(exc))
            finally:
                self._scheduler.end_root()

        def done(task: asyncio.Task[Any]) -> None:
            # `_abandon` may have set it, and left the code behind.
            if not end_future.done():
                end_future.set_result(None)

        # The code has a task of its own: if it ignores its cancellation, this one leaves it behind.
        self._ending.deadline.arm(self._interrupt)
        task = start_task(body(), name=f"run {self.lease.run_id}", done=done)
        try:
            await end_future
        except asyncio.CancelledError:
            self.drop("the worker stops")
            task.cancel()
            raise
        finally:
            self._ending.deadline.disarm()
            if self._suspend_timer is not None:
                self._suspend_timer.cancel()
        # Taken out: else the error is in what its own traceback holds.
        return outcome.pop() if outcome else asyncio.CancelledError()

    def _on_committed(self, committed: Committed) -> None:
        if committed.spawned:
            self.env.on_spawned(committed)
        if committed.routed:
            self.env.on_routed(committed.routed)
        if committed.nudges:
            self.env.on_nudges(committed.nudges)
        for cycle in committed.cycles:
            self.fail_wait(cycle)
        if committed.cancel_requested is not None:
            self.cancel(committed.cancel_requested)

    def _on_closed(self, branch: Any) -> None:
        for position, verb in branch.open_effects.items():
            self._runlog.record(EntryKind.EFFECT_ABANDONED, position, {"effect": verb})
        branch.open_effects.clear()

    def _on_move(self) -> None:
        if self._is_idle:
            self._is_idle = False
            self.env.idle.leave()

    def _on_idle(self) -> None:
        paused_waits = self._waits.paused
        awaits_others = bool(paused_waits.first("answer") or paused_waits.first("mail"))
        if not self._is_idle:
            self._is_idle = True
            self._ending.sessions.forget()
            self._may_stay = self.env.idle.enter(awaits_others=awaits_others)
        # A death of this host would count for the run: it has a mark, and no entry since.
        is_suspected = self.standing.is_counted and self._runlog.last_seq == self._ending.beginning
        hot_s = self.env.suspend_after if self._may_stay and not is_suspected else 0.0
        if hot_s > 0 and not awaits_others and len(self._waits.open_waits) <= FEW:
            hot_s = idle_limit_s(self._wake_set(), self.env.clock.now(), hot_s)
        if hot_s > 0:
            self._runlog.flush_behind()  # timers that were set survive a crash of a hot wait
        loop = asyncio.get_running_loop()
        now = loop.time()
        idle_s = self._idle_limit_s(hot_s, now)
        if self._suspend_timer is not None:
            # The timer that is set fires earlier, and is set again there if the run has moved.
            if self._suspend_timer.when() <= now + idle_s:
                return
            self._suspend_timer.cancel()
        self._suspend_timer = loop.call_later(
            idle_s, self._leave_memory, self._scheduler.live.moves
        )

    def _idle_limit_s(self, idle_s: float, now: float) -> float:
        """Return the seconds of idling until the run is evicted from memory.

        A run whose timer is due within `LEAD_S` stays for it, if its log has no unwritten entries. It stays
        only once, because the timer never comes if the clock stands still.
        """
        unwritten_entries = self._runlog.writes.entries
        if idle_s >= 2 * LEAD_S or any(e.kind != EntryKind.RUN_RESUMED for e in unwritten_entries):
            return idle_s
        wake_at = self._wake_set().at
        early_s = 0.0 if wake_at is None else (wake_at - self.env.clock.now()).total_seconds()
        if not 0 < early_s <= LEAD_S:
            return idle_s
        self._stays_until = self._stays_until or now + early_s + LEAD_S
        return max(idle_s, self._stays_until - now)

    def _leave_memory(self, moves: int) -> None:
        self._suspend_timer = None
        if not self._scheduler.is_idle:
            return
        # The run has moved since the timer was set: it is idle anew, and its time begins again.
        if moves != self._scheduler.live.moves:
            self._on_idle()
            return
        # An eviction would lose a time limit of asyncio: its branch gets an error instead.
        if self._scheduler.refuse_time_limit():
            return
        self._ending.wake = Suspend(self._wake_set())
        self._ending.open_waits = self._waits.rows(True)
        self._scheduler.unwind(RunSuspended())
