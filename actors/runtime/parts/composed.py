"""ComposedStore: a RunStore out of foreign parts, for `Runtime(event_log=…, inbox=…, …)`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from typing_extensions import override

from actors.errors import ConcurrentAppendError
from actors.inmemory.runs.commit import MemoryCommits, refusal
from actors.inmemory.runs.operators import MemoryOperators
from actors.inmemory.runs.reads import MemoryLists, MemoryReads
from actors.inmemory.runs.rows import MemoryRole, MemoryRows, check_entries
from actors.inmemory.runs.schedules import InMemorySchedules
from actors.inmemory.runs.shards import MemoryArrivals, MemoryBacklog
from actors.inmemory.runs.store import MemoryStore
from actors.inmemory.runs.topics import MemoryFollows
from actors.kernel.agent.message import Message, MessageKey
from actors.kernel.basics import Clock
from actors.kernel.json import JsonValue
from actors.kernel.runtime.commit import Commit, CommitOutcome, Committed, Conflict, OutOfOrder
from actors.kernel.runtime.effects import Journal
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.log_entry import EventLog, NewEntry, RunLogEntry
from actors.kernel.runtime.rows import Arrived, LoadedRun, NewRun, RunRow, SignalOutcome
from actors.kernel.runtime.scheduler import Lease, Scheduler
from actors.kernel.runtime.sources import Inbox, fold
from actors.kernel.runtime.waits import SignalBus
from actors.kernel.stores.runs import OnConflict, Submitted
from actors.runtime.parts.given_parts import GivenParts
from actors.runtime.parts.mirror import SchedulerMirror


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
        self._appendable(lease, expected_seq)
        await self._parts.record(lease.run_id, entries, expected_seq)
        last_seq = await super().append(lease, entries, expected_seq=expected_seq)
        await self._parts.executes(lease)
        return last_seq

    @override
    async def commit(self, commit: Commit) -> CommitOutcome:
        check_entries(commit.entries)
        refused = refusal(self._rows, commit)
        if isinstance(refused, OutOfOrder) and not await self._has_older(commit):
            commit = replace(commit, any_order=True)
            refused = refusal(self._rows, commit)
        if refused is not None:
            return refused
        try:
            await self._parts.record(commit.lease.run_id, commit.entries, commit.expected_seq)
        except ConcurrentAppendError as exc:
            return Conflict(exc.actual)
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
        taken: set[str] = set()
        for item in reversed(await self._parts.pending(commit.lease.agent_id)):
            key = MessageKey(item.agent_id, item.sender, item.message.id)
            if key in commit.bind:
                taken.add(item.sender)
            elif item.sender in taken:
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
        """The bus gets a payload that is no object as ``{"value": …}``."""
        outcome = await super().signal(run_id, name, payload, message_id=message_id, sender=sender)
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
        loaded = await super().load(run_ids)
        if self._parts.log is None:
            return loaded
        runs = []
        for run in loaded:
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
            await self._parts.keep(self._rows.record(submitted.run_id).loaded().messages)
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
        clock: For the rows in memory.
        event_log: The store of logs; None: in memory.
        inbox: The store of messages; None: in memory.
        journal: A journal that gets every result; None: the log is enough.
        scheduler: Notified of every change of status; None: there is none.
        signal_bus: Notified of every signal and timer; None: there is none.
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
