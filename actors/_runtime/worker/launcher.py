"""The choice of an agent's next execution: a run that continues, a queued run, or one for waiting messages.

A fork is a run that continues from another run's log as if its host had died right after one of the entries.
What is recorded up to that entry is replayed and happens no second time; all behind it is executed anew. A
place in the middle of something that is answered to the other run, or that may have happened outside, is
refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Final

from actors._kernel.agent.agent import MAX_MESSAGES, Agent
from actors._kernel.json import JsonValue, Unreadable
from actors._kernel.runtime.commit import Commit, Committed, Finish
from actors._kernel.runtime.ids import RunId, run_id_of_mail
from actors._kernel.runtime.log_entry import EntryKind, NewEntry, RunLogEntry
from actors._kernel.runtime.rows import Arrived, LoadedRun, NewRun, RunRow
from actors._kernel.runtime.scheduler import RunStatus, ShardLease
from actors._kernel.runtime.sources import fold
from actors._kernel.stores.run_store import RunStore
from actors._kernel.stores.runs import Submitted
from actors._kernel.tracing import caused_by
from actors._runtime.execution.execution import Execution
from actors._runtime.execution.start import row_of
from actors._runtime.execution.suspects import Standing
from actors._runtime.registry import batch_of, terms_of_mail
from actors._runtime.replay.history import History
from actors._runtime.replay.verdict import row_of as stored_row_of
from actors._runtime.verbs.host_services import ExecutionResult, HostServices
from actors._runtime.worker.adoption import ShardAdoption
from actors._runtime.worker.held_shards import run_lease
from actors._runtime.worker.intake import Intake
from actors._runtime.worker.mailbox import Holding, Mailbox, StartMail, StartRun
from actors._runtime.worker.worker_state import WorkerState
from actors.errors import ContractError, LeaseLostError


class Launcher:
    """Makes executions, from what mailboxes hold and the store has.

    Args:
        env: What executions share.
        state: What the worker knows.
        intake: Ends runs that were cancelled, and reads messages that are not in memory.
        adoption: Puts a run into its queue again.
    """

    def __init__(
        self, env: HostServices, state: WorkerState, intake: Intake, adoption: ShardAdoption
    ) -> None:
        self._env, self._state = env, state
        self._intake, self._adoption, self._loader = intake, adoption, intake.loader
        self._mailboxes, self._dispatcher = state.mailboxes, state.dispatcher

    async def prepare(self, mailbox: Mailbox) -> Execution | None:
        """Return the agent's next execution, or None if nothing can be executed now.

        While an agent is on its way here, a cancel may end the run that was to go on, and let the agent start
        what is next: the one of the two that comes first executes it.
        """
        if mailbox.holding is Holding.EXECUTING:
            return None
        mailbox.holding = Holding.EXECUTING  # from here on no other task starts it
        if mailbox.run_id is not None:
            broke_off = mailbox.taken_arrivals is not None
            return await self._resume(mailbox, mailbox.run_id, broke_off=broke_off)
        return await self._start_next(mailbox)

    async def _start_next(self, mailbox: Mailbox) -> Execution | None:
        await self._loader.fill(mailbox)
        # Asked once: a factory makes a new agent each time.
        agent = self._env.agents.find(mailbox.agent_id) if mailbox.is_mail_next else None
        mailbox.holding = Holding.NOTHING
        if not self._mailboxes.may_start(mailbox):
            return None
        start = mailbox.take_next(MAX_MESSAGES if agent is None else batch_of(agent))
        if start is None:  # what was queued has been cancelled
            self._mailboxes.forget_empty(mailbox)
            return None
        mailbox.holding = Holding.EXECUTING
        match start:
            case StartRun(run_id=run_id, first=first):
                mailbox.run_id = run_id
                new_run = self._state.fresh.pop(run_id, None)
                if new_run is None:
                    return await self._resume(mailbox, run_id)
                row = replace(row_of(new_run), arrival=first.arrival)
                return self._execution(mailbox, LoadedRun(row, (), (first,)))
            case StartMail(mail=mail):
                agent_id = mailbox.agent_id
                first = mail[0]
                run_id = run_id_of_mail(agent_id, first.sender, first.message.id)
                run = NewRun(
                    run_id,
                    agent_id,
                    trace=caused_by(first.message.metadata),
                    supervision=terms_of_mail(agent, run_id),
                )
                mailbox.run_id = run.run_id
                is_unreadable = isinstance(first.message.payload, Unreadable)
                problem = f"message {first.message.id}: {first.message.payload}"
                loaded_run = LoadedRun(
                    replace(row_of(run), arrival=first.arrival),
                    (),
                    unreadable=problem if is_unreadable else None,
                )
                return self._execution(mailbox, loaded_run, create=run, mail=mail, agent=agent)

    async def go_on(self, mailbox: Mailbox, result: ExecutionResult) -> Execution | None:
        """Return the execution that follows one that is over, if it can begin at once."""
        if self._dispatcher.is_stopping or result.lost or not self._mailboxes.is_known(mailbox):
            return None
        if mailbox.holding is Holding.EXECUTING and mailbox.run_id is not None and result.again:
            return await self._execute_again(mailbox, mailbox.run_id, result)
        if self._dispatcher.goes_on(mailbox):
            return await self.prepare(mailbox)
        self._dispatcher.consider(mailbox)
        self._mailboxes.forget_empty(mailbox)
        return None

    async def _execute_again(
        self, mailbox: Mailbox, run_id: RunId, result: ExecutionResult
    ) -> Execution | None:
        """Return another execution of a run that was broken off, at once or after a pause."""
        setback = result.setback
        pause_s = 0.0 if setback is None else self._state.setbacks.note(run_id, setback)
        if result.overtaken:
            await self._put_back(mailbox, run_id)
        elif pause_s > 0:
            mailbox.broke_off()
        if pause_s > 0:
            self._dispatcher.try_later(mailbox, pause_s)
            return None
        if result.overtaken:
            return await self.go_on(mailbox, ExecutionResult(None))
        if self._mailboxes.may_start(mailbox):
            return await self._resume(mailbox, run_id, broke_off=result.then is None)
        mailbox.set_aside()
        return None

    async def _resume(
        self, mailbox: Mailbox, run_id: RunId, *, broke_off: bool = False
    ) -> Execution | None:
        """Return the execution of the run that holds the agent, loaded anew, or None if it cannot begin now.

        With `broke_off`, the execution before this one ended without a durable suspension or end.
        """
        if broke_off:  # what the execution had taken may not have been written: it waits again
            mailbox.taken_arrivals = None
            mailbox.spill()
        if broke_off or mailbox.wants_mail:
            await self._loader.fill(mailbox)
        loaded_runs = await self._env.store.reads.load([run_id])
        if mailbox.run_id != run_id or not self._mailboxes.confirms(mailbox, loaded_runs):
            return None  # a cancel has ended it and let the agent go on, or another run holds it
        if not loaded_runs or loaded_runs[0].row.status.is_terminal:
            mailbox.free()
            if loaded_runs:  # else a message begins it again: no refused write of it is in the rows
                self._state.forget(run_id)
            # Callers that were notified of its end here read its row.
            self._state.completions.complete(run_id, None)
            return await self.go_on(mailbox, ExecutionResult(None))
        loaded_run = loaded_runs[0]
        if (
            broke_off
            and loaded_run.row.status is RunStatus.PENDING
            and loaded_run.row.wake_at is not None
        ):
            mailbox.free()  # that it backs off was written, the answer was lost
            self._dispatcher.hold(mailbox, loaded_run.row)
            return None
        if loaded_run.row.cancel_requested is not None:
            await self._intake.cancel_waiting(mailbox, run_id)
            return None
        if loaded_run.row.fork is not None and loaded_run.row.last_seq < 0:
            return await self._begin_fork(mailbox, loaded_run.row)
        mailbox.nudged = False
        return self._execution(mailbox, loaded_run, was_running=mailbox.recovering)

    async def _put_back(self, mailbox: Mailbox, run_id: RunId) -> None:
        """Queue a run again, because something older waits of which no hint came."""
        reading = self._state.held.readings
        # The store's answer, not a hint: without the older run in the queue this one would be overtaken again.
        first = await self._env.store.lists.find_run_for_agent(mailbox.agent_id)
        loaded_runs = await self._env.store.reads.load(
            list({run_id, first.run_id if first else run_id})
        )
        if mailbox.run_id != run_id:
            return  # as in `_resume`
        mailbox.free()
        mailbox.spill()
        mailbox.holding = Holding.EXECUTING  # no task starts it before all is there
        for loaded_run in loaded_runs:
            self._adoption.adopt(loaded_run.row, loaded_run.messages, reading=reading)
        mailbox.holding = Holding.NOTHING

    async def _begin_fork(self, mailbox: Mailbox, run: RunRow) -> Execution | None:
        lease = self._state.held.get(mailbox.shard)
        if lease is None or not self._mailboxes.may_start(mailbox):
            mailbox.set_aside()
            return None
        await begin_fork(self._env.store, lease, run)
        return await self._resume(mailbox, run.run_id)

    def _execution(
        self,
        mailbox: Mailbox,
        loaded_run: LoadedRun,
        *,
        create: NewRun | None = None,
        mail: tuple[Arrived, ...] = (),
        was_running: bool = False,
        agent: Agent | None = None,
    ) -> Execution | None:
        lease = self._state.held.get(mailbox.shard)
        if lease is None or not self._mailboxes.may_start(mailbox):
            mailbox.set_aside()
            return None
        if agent is None:
            agent = self._env.agents.find(mailbox.agent_id)
        if agent is None:
            mailbox.holding = Holding.SUSPENDED
            return None
        row, legacy = loaded_run.row, self._state.held.legacies.get(mailbox.shard)
        was_broken_off = legacy is not None and legacy.may_have_begun(
            row,
            was_running=was_running,
            # A plain message in memory arrived before the shard was taken over.
            has_mail=any(
                arrived.run_id is None and arrival < legacy.arrival
                for arrival, arrived in mailbox.queue or ()
            ),
        )
        execution = Execution(
            self._env,
            agent,
            run_lease(lease, row),
            loaded_run,
            create,
            mail,
            Standing(was_running=was_running, broken=was_broken_off),
            self._state.refusals.pop(row.run_id, {}),
            self._state.setbacks.refusal(row.run_id, row.last_seq),
            self._state.blockings.get(row.run_id),
        )
        standing, lane = execution.standing, self._state.suspects
        if standing.is_suspect and not lane.admits(mailbox, standing):
            mailbox.holding = Holding.BACKOFF
            return None
        mailbox.recovering = False
        return execution


MAX_FORKED_ENTRIES: Final = 50_000
"""A copy is written at once: a longer log would hold the store up for seconds."""

_OUTSIDE: Final = {
    EntryKind.EFFECT_INTENT: "an effect that had begun",
    EntryKind.TOOL_CALLED: "a tool call that had begun",
    EntryKind.ASK_SENT: "a question whose answer goes to the other run",
}


async def fork_run(store: RunStore, run_id: RunId, *, at_seq: int, copy: int) -> Submitted:
    """Queue a run that continues after entry `at_seq`; see `OperatorStore.fork`.

    Raises:
        UnknownRunError: There is no such run, or it was swept.
        ContractError: The log does not reach so far, or nothing can go on from there.
    """
    row = await stored_row_of(store, run_id)
    if row.swept:
        raise ContractError(f"run {run_id} was swept: its log is not kept any more")
    if not 0 <= at_seq <= row.last_seq:
        msg = f"run {run_id} has entries 0 to {row.last_seq}, none with seq {at_seq}"
        raise ContractError(msg)
    if at_seq >= MAX_FORKED_ENTRIES:
        msg = f"seq {at_seq} of run {run_id}: logs of up to {MAX_FORKED_ENTRIES} entries are forked"
        raise ContractError(msg)
    entries = [entry async for entry in _until(store, run_id, at_seq)]
    refuse_open(entries)
    for child in History.of(entries).unjoined_children:
        await _refuse_open_child(store, entries, child)
    return await store.operators.fork(run_id, at_seq=at_seq, copy=copy)


def refuse_open(entries: Sequence[RunLogEntry]) -> None:
    """Check that a run can continue after the last of these entries without executing an effect twice.

    Raises:
        ContractError: It cannot; names the entry and one to fork at instead.
    """
    last = entries[-1]
    run_id = last.run_id
    if last.is_terminal:
        msg = f"entry {last.seq} is the end of run {run_id}: nothing goes on behind it; fork at "
        raise ContractError(f"{msg}{last.seq - 1} or before")
    for call_entries in History.of(entries).calls.values():
        intent = call_entries.begin
        kind_of_call = _OUTSIDE.get(EntryKind(intent.kind)) if intent is not None else None
        if (
            intent is None
            or kind_of_call is None
            or call_entries.end is not None
            or call_entries.abandonment is not None
        ):
            continue
        name = intent.payload.get("name") or intent.payload.get("target") or ""
        msg = f"entry {last.seq} of run {run_id} is inside of {kind_of_call}: {name} (entry {intent.seq}, "
        remedy = (
            f"position {intent.position}); fork at {intent.seq - 1} or before, or behind its end"
        )
        raise ContractError(msg + remedy)


async def _refuse_open_child(
    store: RunStore, entries: Sequence[RunLogEntry], child_id: str
) -> None:
    row = await store.reads.run(RunId(child_id))
    if row is None or row.status.is_terminal:
        return
    seq = next(
        entry.seq
        for entry in entries
        if entry.kind == EntryKind.CHILD_SPAWNED and entry.payload["child"] == child_id
    )
    msg = f"child {child_id} ({row.agent_id}) is open and belongs to run {entries[-1].run_id}: fork at "
    raise ContractError(f"{msg}{seq - 1} or before, or once the child has ended")


async def begin_fork(store: RunStore, shard: ShardLease, row: RunRow) -> None:
    """Give a fork whose agent is free its log: the other run's entries, whole or not at all.

    After an earlier crash the run is queued, after a later one it counts as broken off; both continue. When the
    other run was swept meanwhile, the fork fails with an error that says so.

    Raises:
        LeaseLostError: The shard is not this host's any more.
        ConcurrentAppendError: It was begun already.
        PersistenceError: The outcome is unknown; read again.
    """
    point = row.fork
    assert point is not None, "only forks begin like this"
    entries = [entry async for entry in _until(store, point.run_id, point.seq)]
    # A fork waits in its agent's queue, and retention may sweep the other run's log meanwhile.
    if len(entries) <= point.seq:
        await _fail(store, shard, row, f"run {point.run_id} was swept before its fork had its turn")
        return
    # With a copied entry that cannot be read no attempt could replay: the fork ends at once, with the reason.
    for entry in entries:
        if isinstance(problem := entry.payload.get("unreadable"), Unreadable):
            await _fail(store, shard, row, f"entry {entry.seq} of run {point.run_id} {problem}")
            return
    resumed_entry = RunLogEntry(
        row.run_id, point.seq + 1, EntryKind.RUN_RESUMED, "", {"reason": "forked"}, entries[-1].ts
    )
    copied_entries = [*entries, resumed_entry]
    attempt = fold(row, copied_entries).attempt
    lease = run_lease(shard, row, attempt=attempt)
    new_entries = [NewEntry(EntryKind(e.kind), e.position, e.payload) for e in copied_entries]
    await store.commits.append(lease, new_entries, expected_seq=-1)


async def _fail(store: RunStore, shard: ShardLease, row: RunRow, text: str) -> None:
    error: dict[str, JsonValue] = {"type": "actors.errors:ContractError", "message": text}
    entries = (
        NewEntry(EntryKind.RUN_STARTED, "", {"agent": str(row.agent_id)}),
        NewEntry(EntryKind.RUN_FAILED, "", {"status": "failed", "error": error}),
    )
    then = Finish(RunStatus.FAILED, error=error)
    outcome = await store.commits.commit(Commit(run_lease(shard, row), -1, entries, then))
    if not isinstance(outcome, Committed):
        raise LeaseLostError(shard.shard, shard.owner, shard.epoch)


async def _until(store: RunStore, run_id: RunId, last: int) -> AsyncIterator[RunLogEntry]:
    async for entry in store.reads.entries(run_id):
        if entry.seq > last:
            return
        yield entry
