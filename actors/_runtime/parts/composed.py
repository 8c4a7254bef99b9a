"""ComposedStore: a RunStore out of foreign parts, for `Runtime(event_log=…, inbox=…, …)`.

The parts that it was given are notified of its rows. A foreign Scheduler is too, so that its statuses and
leases follow the store's.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from typing_extensions import override

from actors._inmemory.runs.commit import MemoryCommits, refusal
from actors._inmemory.runs.operators import MemoryOperators
from actors._inmemory.runs.reads import MemoryLists, MemoryReads
from actors._inmemory.runs.rows import MemoryRole, MemoryRows, check_entries
from actors._inmemory.runs.schedules import InMemorySchedules
from actors._inmemory.runs.shards import MemoryArrivals, MemoryBacklog
from actors._inmemory.runs.store import MemoryStore
from actors._inmemory.runs.topics import MemoryFollows
from actors._kernel.agent.message import Message, MessageKey
from actors._kernel.basics import Clock
from actors._kernel.json import JsonValue
from actors._kernel.runtime.commit import (
    Commit,
    CommitOutcome,
    Committed,
    Conflict,
    Continue,
    Finish,
    OutOfOrder,
    Park,
    Retry,
    Spawned,
    Suspend,
    Then,
)
from actors._kernel.runtime.effects import Journal
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EventLog, NewEntry, RunLogEntry
from actors._kernel.runtime.rows import Arrived, LoadedRun, NewRun, RunRow, SignalOutcome
from actors._kernel.runtime.scheduler import Lease, RunStatus, Scheduler
from actors._kernel.runtime.sources import Inbox, fold
from actors._kernel.runtime.waits import SignalBus, WakeSet, Wakeup
from actors._kernel.stores.runs import OnConflict, Submitted
from actors._runtime.parts.inbox import VIEW_SENDER, key_kept
from actors._runtime.parts.logs import RESULT_KINDS, result_of
from actors.errors import ConcurrentAppendError, ConflictError, IllegalTransitionError

_log = logging.getLogger("callboard.parts")


class SchedulerMirror:
    """Enqueues, leases and releases runs on a foreign scheduler as they go on here.

    The store decides which host executes a run: a run that the scheduler would hand out later is taken
    from it when it begins here. What it refuses is logged, because the commit has happened.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held: dict[RunId, Lease] = {}

    async def queued(self, row: RunRow) -> None:
        """Queue a run that was created or woken."""
        self._scheduler.register_run(row.run_id, row.agent_id)
        try:
            await self._scheduler.enqueue(
                row.run_id,
                priority=row.priority,
                tenant=row.agent_id.tenant,
                retry_policy=row.retry_policy,
            )
        except IllegalTransitionError as exc:
            _log.debug("the scheduler refused a run", extra={"run": row.run_id}, exc_info=exc)

    async def executing(self, row: RunRow, worker_id: str) -> None:
        """Take the lease of a run that executes, and those of the runs before it in the queue."""
        held_lease = self._held.get(row.run_id)
        if held_lease is not None and await self._scheduler.heartbeat(held_lease) != "lost":
            return
        self._held.pop(row.run_id, None)
        await self.queued(row)
        while row.run_id not in self._held:
            leases = await self._scheduler.lease(worker_id=worker_id, capacity=1)
            if not leases:
                return
            self._held.update({lease.run_id: lease for lease in leases})

    async def became(self, run_id: RunId, then: Then) -> None:
        """Give the lease back with the new status that a commit gave the run."""
        status, wake_on = _release_of(then)
        lease = None if status is None else self._held.pop(run_id, None)
        if lease is None or status is None:
            return
        try:
            await self._scheduler.release(lease, status=status, wake_on=wake_on)
        except (ConflictError, IllegalTransitionError) as exc:
            _log.debug("the scheduler refused a release", extra={"run": run_id}, exc_info=exc)


def _release_of(then: Then) -> tuple[RunStatus | None, Wakeup | None]:
    match then:
        case Continue():
            return None, None
        case Suspend(wake):
            return RunStatus.SUSPENDED, _wakeup(wake)
        case Retry():
            return RunStatus.FAILED, None
        case Park():
            return RunStatus.SUSPENDED, None
        case Finish(status):
            return status, None


def _wakeup(wake: WakeSet) -> Wakeup | None:
    """Return the set's first cause in the order timer, signal, child, message: a `Wakeup` has only one."""
    if wake.at is not None:
        return Wakeup(kind="timer", at=wake.at)
    if wake.signals:
        return Wakeup(kind="signal", signal=wake.signals[0])
    if wake.runs:
        return Wakeup(kind="child_done", child_run=wake.runs[0])
    return Wakeup(kind="message") if wake.message else None


_ALL: Final = 100_000
"""Number of unhandled messages of one agent that are read back, at most."""


@dataclass(slots=True)
class GivenParts:
    """Foreign parts beside rows in memory; None for a part that was not handed in.

    Attributes:
        rows: The rows that no part keeps.
        arrivals: The store role that writes rows of messages, and notifies no part.
        backlog: The store role that reads them.
    """

    rows: MemoryRows
    arrivals: MemoryArrivals
    backlog: MemoryBacklog
    log: EventLog | None
    inbox: Inbox | None
    journal: Journal | None
    mirror: SchedulerMirror | None
    bus: SignalBus | None
    _bound: dict[RunId, list[MessageKey]] = field(default_factory=dict)

    async def pending(self, agent: AgentId, *, after: int = -1, limit: int = _ALL) -> list[Arrived]:
        """Return the agent's messages, with the bodies that the inbox gives.

        Messages that others put into the inbox are taken up first.
        """
        if self.inbox is None:
            return await self.backlog.pending_mail(agent=agent, after=after, limit=limit)
        messages_by_key = await self.take_up(agent)
        return [
            replace(row, message=replace(messages_by_key[key], sender=row.sender))
            for row in await self.backlog.pending_mail(agent=agent, after=after, limit=limit)
            if (key := key_kept(row, messages_by_key)) is not None
        ]

    async def take_up(self, agent: AgentId) -> dict[tuple[str, str], Message]:
        """Make rows of what others put into an inbox, before anything younger of its senders is one.

        Return all that the inbox holds, by sender and id.
        """
        if self.inbox is None:
            return {}
        messages_by_key = {
            (message.sender or "", message.id): message
            for message in await self.inbox.drain(agent, max=_ALL)
        }
        await self.arrivals.deliver(
            [
                replace(m, target=agent, sender=m.sender or VIEW_SENDER)
                for m in messages_by_key.values()
            ]
        )
        return messages_by_key

    async def keep(self, arrived: Sequence[Arrived]) -> None:
        """Put messages that are rows now into the inbox, and note which run has which."""
        if self.inbox is not None:
            for item in arrived:
                await self.inbox.deliver(item.agent_id, item.message, notify=False)
                if item.run_id is not None:
                    key = MessageKey(item.agent_id, item.sender, item.message.id)
                    self._bound.setdefault(item.run_id, []).append(key)

    async def boot(self, child: Spawned, sender: str) -> None:
        """Put a child's first message into the inbox."""
        if self.inbox is None or child.boot is None:
            return
        agent, boot = child.run.agent_id, child.boot.sent_by(sender)
        if await self.inbox.deliver(agent, boot, notify=False):
            key = MessageKey(agent, sender, boot.id)
            self._bound.setdefault(child.run.run_id, []).append(key)

    async def record(self, run_id: RunId, entries: Sequence[NewEntry], expected_seq: int) -> None:
        """Write entries that may be written: results to the journal, all to the event log."""
        if self.journal is not None:
            for entry in entries:
                if entry.kind in RESULT_KINDS:
                    await self.journal.record(result_of(entry))
        if self.log is not None:
            for n, entry in enumerate(entries):
                await self.log.append(run_id, entry, expected_seq=expected_seq + n)

    async def queue(self, run_id: RunId) -> None:
        """Notify the scheduler of a new run."""
        record = self.rows.runs.get(run_id)
        if self.mirror is not None and record is not None:
            await self.mirror.queued(record.row())

    async def executes(self, lease: Lease) -> None:
        """Notify the scheduler of the host that executes a run."""
        record = self.rows.runs.get(lease.run_id)
        if self.mirror is not None and record is not None:
            await self.mirror.executing(record.row(), lease.owner)

    async def notify(self, commit: Commit) -> None:
        """Notify scheduler, signal bus and inbox of a commit that was written."""
        run_id, then = commit.lease.run_id, commit.then
        for child in commit.spawned:
            await self.queue(child.run.run_id)
        await self.executes(commit.lease)
        if self.mirror is not None:
            await self.mirror.became(run_id, then)
        if self.bus is not None and isinstance(then, Suspend) and then.wake.at is not None:
            await self.bus.timer(run_id, then.wake.at)
        if self.inbox is not None:
            await self._notify_inbox(self.inbox, commit)

    async def _notify_inbox(self, inbox: Inbox, commit: Commit) -> None:
        run_id, then = commit.lease.run_id, commit.then
        for key in commit.withdraw:
            row = self.rows.inbox.get(key)
            if row is not None and row.state == "done":
                await inbox.ack(key.agent, key.message_id)
        bound_keys = [*self._bound.pop(run_id, ()), *commit.bind]
        if isinstance(then, Retry):
            bound_keys = [key for key in bound_keys if key not in then.release]
        for key in bound_keys:
            error = then.error if isinstance(then, Retry | Finish) else None
            if error is not None:
                text = str(error.get("message", ""))
                await inbox.nack(key.agent, key.message_id, error=text)
            if isinstance(then, Finish):
                # Also one that was given up: the dead letter is a row of the store.
                await inbox.ack(key.agent, key.message_id)
        if bound_keys and not isinstance(then, Finish):
            self._bound[run_id] = bound_keys


class _OfParts(MemoryRole):
    """A role that notifies the parts."""

    def __init__(self, rows: MemoryRows, source: object, parts: GivenParts) -> None:
        super().__init__(rows, source)
        self._parts = parts


class ComposedCommits(_OfParts, MemoryCommits):
    """Writes commits, and notifies the parts; see `ComposedStore` about crashes."""

    @override
    async def append(self, lease: Lease, entries: Sequence[NewEntry], *, expected_seq: int) -> int:
        check_entries(entries)
        # Checked before any part is written: no part can take an entry back.
        self._appendable(lease, expected_seq)
        await self._parts.record(lease.run_id, entries, expected_seq)
        last_seq = await super().append(lease, entries, expected_seq=expected_seq)
        await self._parts.executes(lease)
        return last_seq

    @override
    async def commit(self, commit: Commit) -> CommitOutcome:
        check_entries(commit.entries)
        reason = refusal(self._rows, commit)
        if isinstance(reason, OutOfOrder) and not await self._has_older(commit):
            commit = replace(commit, any_order=True)
            reason = refusal(self._rows, commit)
        if reason is not None:
            return reason
        try:
            await self._parts.record(commit.lease.run_id, commit.entries, commit.expected_seq)
        except ConcurrentAppendError as exc:
            return Conflict(exc.actual)
        # Messages that others have put into the inboxes of receivers came first, and become rows first.
        targets = [out.target for out in commit.outgoing if isinstance(out.target, AgentId)]
        for agent in dict.fromkeys(targets):
            await self._parts.take_up(agent)
        inbox = self._parts.inbox
        for out in commit.outgoing:
            if inbox is not None and isinstance(out.target, AgentId):
                await inbox.deliver(out.target, out.message.sent_by(out.sender), notify=False)
        for child in commit.spawned:
            await self._parts.boot(child, f"spawn:{commit.lease.agent_id}")
        outcome = await super().commit(commit)
        if isinstance(outcome, Committed):
            await self._parts.notify(commit)
        return outcome

    async def _has_older(self, commit: Commit) -> bool:
        """Return True if the inbox has an older message of a sender whose message a commit takes.

        A message that others have taken from it holds nothing back.
        """
        senders: set[str] = set()
        for item in reversed(await self._parts.pending(commit.lease.agent_id)):
            key = MessageKey(item.agent_id, item.sender, item.message.id)
            if key in commit.bind:
                senders.add(item.sender)
            elif item.sender in senders:
                return True
        return False


class ComposedArrivals(_OfParts, MemoryArrivals):
    """Arrivals that are also put into the inbox."""

    @override
    async def submit(
        self,
        new_run: NewRun,
        message: Message,
        *,
        on_conflict: OnConflict = "queue",
        is_apart: bool = False,
    ) -> Submitted:
        submitted = await super().submit(
            new_run, message, on_conflict=on_conflict, is_apart=is_apart
        )
        if submitted.arrived is not None:
            await self._parts.keep([submitted.arrived])
            await self._parts.queue(submitted.run_id)
        return submitted

    @override
    async def deliver(self, messages: Sequence[Message]) -> list[Arrived]:
        for agent in dict.fromkeys(m.target for m in messages if isinstance(m.target, AgentId)):
            await self._parts.take_up(agent)
        arrived = await super().deliver(messages)
        await self._parts.keep(arrived)
        return arrived

    @override
    async def signal(
        self, run_id: RunId, name: str, payload: JsonValue, *, message_id: str, sender: str
    ) -> SignalOutcome:
        outcome = await super().signal(run_id, name, payload, message_id=message_id, sender=sender)
        # The bus takes objects only.
        if outcome.accepted and self._parts.bus is not None:
            data: dict[str, JsonValue] = (
                payload if isinstance(payload, dict) else {"value": payload}
            )
            await self._parts.bus.signal(run_id, name, data)
        return outcome


class ComposedBacklog(_OfParts, MemoryBacklog):
    """Messages are read back from the inbox."""

    @override
    async def pending_mail(
        self, *, agent: AgentId, after: int = -1, limit: int = 1000
    ) -> list[Arrived]:
        return await self._parts.pending(agent, after=after, limit=limit)


class ComposedReads(_OfParts, MemoryReads):
    """Logs are read back from the event log."""

    @override
    async def load(self, run_ids: Sequence[RunId]) -> list[LoadedRun]:
        loaded_runs = await super().load(run_ids)
        if self._parts.log is None:
            return loaded_runs
        runs = []
        for run in loaded_runs:
            first = run.entries[0].seq if run.entries else 0
            log = self._parts.log.read(run.row.run_id, from_seq=first)
            runs.append(replace(run, entries=tuple([entry async for entry in log])))
        return runs

    @override
    def entries(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        if self._parts.log is not None:
            return self._parts.log.read(run_id, from_seq=from_seq)
        return super().entries(run_id, from_seq=from_seq)

    @override
    def tail(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        if self._parts.log is not None:
            return self._parts.log.tail(run_id, from_seq=from_seq)
        return super().tail(run_id, from_seq=from_seq)


class ComposedLists(_OfParts, MemoryLists):
    """Lists whose waiting messages are counted by the inbox."""

    @override
    async def pending_count(self, agent_id: AgentId) -> int:
        if self._parts.inbox is not None:
            return await self._parts.inbox.pending_count(agent_id)
        return await super().pending_count(agent_id)


class ComposedOperators(_OfParts, MemoryOperators):
    """Operators' changes whose returned messages also go to the inbox."""

    @override
    async def fork(self, run_id: RunId, *, at_seq: int, copy: int = 0) -> Submitted:
        submitted = await super().fork(run_id, at_seq=at_seq, copy=copy)
        if self._rows.record(submitted.run_id).last_seq < 0:
            await self._parts.queue(submitted.run_id)
        return submitted

    @override
    async def redrive(self, ids: Sequence[int]) -> list[Arrived]:
        arrived = await super().redrive(ids)
        await self._parts.keep(arrived)
        return arrived

    @override
    async def redrive_run(self, run_id: RunId) -> Submitted:
        submitted = await super().redrive_run(run_id)
        if submitted.arrived is not None:
            await self._parts.keep(self._rows.record(submitted.run_id).to_loaded_run().messages)
            await self._parts.queue(submitted.run_id)
        return submitted

    @override
    async def refold(self, run_id: RunId) -> RunRow:
        if self._parts.log is None:
            return await super().refold(run_id)
        base = self._rows.record(run_id).base()
        return fold(base, [entry async for entry in self._parts.log.read(run_id)])


class ComposedStore(MemoryStore):
    """A `RunStore` that performs each commit as ordered calls on the parts it was given.

    Rows that no part keeps (runs, leases, state, bindings) are in memory. Every append goes to the
    event log, every delivery and acknowledgement to the inbox, every result to the journal, every
    change of status to the scheduler, every signal and timer to the signal bus; logs and messages
    are read back from them. The order of one commit: look whether it may be written, journal, event
    log, inbox, rows, then scheduler, signal bus and acknowledgements.

    **A crash between two of these calls is not covered**: the parts then disagree, and the rows in
    memory are gone in any case. For runs that survive use a store that commits everything at once.

    Args:
        clock: The clock of the rows in memory.
        event_log: The store of logs; by default in memory.
        inbox: The store of messages; by default in memory.
        journal: A journal that gets every result, or None if the log is enough.
        scheduler: A scheduler that is notified of every change of status, or None.
        signal_bus: A bus that is notified of every signal and timer, or None.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        event_log: EventLog | None = None,
        inbox: Inbox | None = None,
        journal: Journal | None = None,
        scheduler: Scheduler | None = None,
        signal_bus: SignalBus | None = None,
    ) -> None:
        super().__init__(clock=clock)
        rows, schedules, _ = self._shared
        mirror = SchedulerMirror(scheduler) if scheduler is not None else None
        parts = GivenParts(
            rows, self.arrivals, self.backlog, event_log, inbox, journal, mirror, signal_bus
        )
        self.commits = ComposedCommits(rows, self, parts)
        self.arrivals = ComposedArrivals(rows, self, parts)
        self.backlog = ComposedBacklog(rows, self, parts)
        self.reads = ComposedReads(rows, self, parts)
        self.lists = ComposedLists(rows, self, parts)
        self.operators = ComposedOperators(rows, self, parts)
        self.posts = MemoryFollows(rows, self, inbox)
        self.schedules = InMemorySchedules(clock, rows, schedules, source=self, on_fired=parts.keep)
