"""ComposedStore: a RunStore out of foreign parts, for `Runtime(event_log=…, inbox=…, …)`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from actors.errors import (
    ConcurrentAppendError,
    IllegalTransitionError,
    LeaseLostError,
    UnknownRunError,
)
from actors.kernel.agent.message import MessageKey
from actors.kernel.runtime.commit import (
    Commit,
    Committed,
    Conflict,
    Finish,
    LeaseLost,
    Missing,
    OutOfOrder,
    Retry,
    Suspend,
)
from actors.kernel.runtime.fold import fold
from actors.kernel.runtime.ids import AgentId
from actors.kernel.runtime.store import ANY_RUN
from actors.runtime.backends._inbox_view import VIEW_SENDER
from actors.runtime.backends._mirror import SchedulerMirror
from actors.runtime.backends._rows import check_entries
from actors.runtime.backends.memory import MemoryStore
from actors.runtime.backends.views import RESULT_KINDS, result_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from actors.kernel.agent.message import Message
    from actors.kernel.clock import Clock
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.blocking import Blocking
    from actors.kernel.runtime.commit import (
        Answer,
        Arrived,
        BufferedSignal,
        CancelReport,
        CommitOutcome,
        DeadLetter,
        HostReport,
        LoadedRun,
        NewRun,
        OpenWait,
        RunRow,
        SignalOutcome,
        Spawned,
        Then,
        Timer,
        WaitCycle,
        WaitKind,
    )
    from actors.kernel.runtime.effects import Journal
    from actors.kernel.runtime.fanout import PostStore
    from actors.kernel.runtime.follow_graph import FollowGraph
    from actors.kernel.runtime.ids import HostIncarnation, RunId, ShardId
    from actors.kernel.runtime.inbox import Inbox
    from actors.kernel.runtime.insight import InsightStore
    from actors.kernel.runtime.limits import LimitStore
    from actors.kernel.runtime.log_entry import EventLog, NewEntry, RunLogEntry
    from actors.kernel.runtime.schedule import ScheduleStore
    from actors.kernel.runtime.scheduler import Lease, RunStatus, Scheduler, ShardLease
    from actors.kernel.runtime.store import Nudge, OnConflict, RunFilter, Serves, Submitted
    from actors.kernel.runtime.wakeup import SignalBus

_ALL: Final = 100_000
"""So many unhandled messages of one agent are read back at most."""


class ComposedStore:
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
        event_log: Where logs are; None: in memory.
        inbox: Where messages are; None: in memory.
        journal: Told every result; None: the log is enough.
        scheduler: Told every change of status; None: nobody is.
        signal_bus: Told every signal and timer; None: nobody is.
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
        self._rows = MemoryStore(clock=clock)
        self._log, self._inbox, self._journal = event_log, inbox, journal
        self._bus = signal_bus
        self._mirror = SchedulerMirror(scheduler) if scheduler is not None else None
        self._bound: dict[RunId, list[MessageKey]] = {}
        self._rows.on_fired = self._put_fired

    # --- writing by the owner -------------------------------------------------------------------

    async def append(self, lease: Lease, entries: Sequence[NewEntry], *, expected_seq: int) -> int:
        """See `RunStore.append`."""
        check_entries(entries)
        match self._rows.refusal(Commit(lease, expected_seq, tuple(entries))):
            case LeaseLost():
                raise LeaseLostError(lease.shard, lease.owner, lease.epoch)
            case Conflict(actual):
                raise ConcurrentAppendError(lease.run_id, expected_seq, actual)
            case Missing():
                row = await self._rows.run(lease.run_id)
                if row is None:
                    raise UnknownRunError(lease.run_id)
                raise IllegalTransitionError(lease.run_id, row.status, "RUNNING")
        await self._record(lease.run_id, entries, expected_seq)
        last_seq = await self._rows.append(lease, entries, expected_seq=expected_seq)
        await self._tell_executing(lease)
        return last_seq

    async def commit(self, commit: Commit) -> CommitOutcome:
        """See `RunStore.commit`, and this class about crashes."""
        check_entries(commit.entries)
        refused = self._rows.refusal(commit)
        if isinstance(refused, OutOfOrder) and not await self._has_older(commit):
            commit = replace(commit, any_order=True)
            refused = self._rows.refusal(commit)
        if refused is not None:
            return refused
        try:
            await self._record(commit.lease.run_id, commit.entries, commit.expected_seq)
        except ConcurrentAppendError as exc:
            return Conflict(exc.actual)
        targets = [out.target for out in commit.outgoing if isinstance(out.target, AgentId)]
        for agent in dict.fromkeys(targets):
            await self._take_up(agent)
        for out in commit.outgoing:
            if self._inbox is not None and isinstance(out.target, AgentId):
                message = out.message.sent_by(out.sender)
                await self._inbox.deliver(out.target, message, notify=False)
        for child in commit.spawned:
            await self._boot(child, f"spawn:{commit.lease.agent_id}")
        outcome = await self._rows.commit(commit)
        if isinstance(outcome, Committed):
            await self._tell(commit)
        return outcome

    # --- writing by anybody -----------------------------------------------------------------------

    async def submit(
        self, new_run: NewRun, message: Message, *, on_conflict: OnConflict = "queue"
    ) -> Submitted:
        """See `RunStore.submit`."""
        submitted = await self._rows.submit(new_run, message, on_conflict=on_conflict)
        arrived = submitted.arrived
        if arrived is not None and self._inbox is not None:
            await self._inbox.deliver(new_run.agent_id, arrived.message, notify=False)
        if arrived is not None and arrived.run_id is not None:
            key = MessageKey(arrived.agent_id, arrived.sender, arrived.message.id)
            self._bound.setdefault(arrived.run_id, []).append(key)
        row = await self._rows.run(submitted.run_id)
        if arrived is not None and self._mirror is not None and row is not None:
            await self._mirror.queued(row)
        return submitted

    async def deliver(self, messages: Sequence[Message]) -> list[Arrived]:
        """See `RunStore.deliver`."""
        for agent in dict.fromkeys(m.target for m in messages if isinstance(m.target, AgentId)):
            await self._take_up(agent)
        arrived = await self._rows.deliver(messages)
        if self._inbox is not None:
            for item in arrived:
                await self._inbox.deliver(item.agent_id, item.message, notify=False)
        return arrived

    async def signal(
        self, run_id: RunId, name: str, payload: JsonValue, *, message_id: str, sender: str
    ) -> SignalOutcome:
        """See `RunStore.signal`. The bus gets a payload that is no object as ``{"value": …}``."""
        outcome = await self._rows.signal(
            run_id, name, payload, message_id=message_id, sender=sender
        )
        if outcome.accepted and self._bus is not None:
            data: dict[str, JsonValue] = (
                payload if isinstance(payload, dict) else {"value": payload}
            )
            await self._bus.signal(run_id, name, data)
        return outcome

    async def request_cancel(self, run_id: RunId, *, reason: str) -> CancelReport:
        """See `RunStore.request_cancel`."""
        return await self._rows.request_cancel(run_id, reason=reason)

    async def answer(self, answer: Answer) -> SignalOutcome:
        """See `RunStore.answer`."""
        return await self._rows.answer(answer)

    # --- ownership --------------------------------------------------------------------------------

    def shard_of(self, agent_id: AgentId) -> ShardId:
        """See `RunStore.shard_of`."""
        return self._rows.shard_of(agent_id)

    async def declare(self, serves: Serves, *, partitions: int = 16) -> None:
        """See `RunStore.declare`."""
        await self._rows.declare(serves, partitions=partitions)

    async def claim_shards(
        self, *, owner: HostIncarnation, serves: Serves, limit: int
    ) -> list[ShardLease]:
        """See `RunStore.claim_shards`."""
        return await self._rows.claim_shards(owner=owner, serves=serves, limit=limit)

    async def release_shards(self, leases: Sequence[ShardLease]) -> None:
        """See `RunStore.release_shards`."""
        await self._rows.release_shards(leases)

    async def heartbeat(self, owner: HostIncarnation, known: Sequence[ShardLease]) -> HostReport:
        """See `RunStore.heartbeat`."""
        return await self._rows.heartbeat(owner, known)

    def set_nudge_hook(self, hook: Callable[[Nudge], None] | None) -> None:
        """See `RunStore.set_nudge_hook`."""
        self._rows.set_nudge_hook(hook)

    # --- reading for the owner, in pages ----------------------------------------------------------

    async def open_runs(
        self, shards: Sequence[ShardId], *, after: RunId | None = None, limit: int = 1000
    ) -> list[RunRow]:
        """See `RunStore.open_runs`."""
        return await self._rows.open_runs(shards, after=after, limit=limit)

    async def blockings(self, shards: Sequence[ShardId]) -> list[Blocking]:
        """See `RunStore.blockings`."""
        return await self._rows.blockings(shards)

    async def pending_mail(
        self,
        *,
        shards: Sequence[ShardId] = (),
        agent: AgentId | None = None,
        after: int = -1,
        limit: int = 1000,
    ) -> list[Arrived]:
        """See `RunStore.pending_mail`.

        With `agent`, messages that others put into the inbox are taken up first; the bodies are
        those the inbox gives.
        """
        if self._inbox is None or agent is None:
            return await self._rows.pending_mail(
                shards=shards, agent=agent, after=after, limit=limit
            )
        kept = await self._take_up(agent)
        rows = await self._rows.pending_mail(agent=agent, after=after, limit=limit)
        return [
            replace(row, message=replace(kept[key], sender=row.sender))
            for row in rows
            if (key := _key_of(row, kept)) is not None
        ]

    async def _take_up(self, agent: AgentId) -> dict[tuple[str, str], Message]:
        """Make rows of what others put into an inbox, before anything younger of its senders is one.

        Return all that the inbox holds, by sender and id.
        """
        if self._inbox is None:
            return {}
        kept = {
            (message.sender or "", message.id): message
            for message in await self._inbox.drain(agent, max=_ALL)
        }
        await self._rows.deliver(
            [replace(m, target=agent, sender=m.sender or VIEW_SENDER) for m in kept.values()]
        )
        return kept

    async def load(self, run_ids: Sequence[RunId]) -> list[LoadedRun]:
        """See `RunStore.load`. Logs are read back from the event log."""
        loaded = await self._rows.load(run_ids)
        if self._log is None:
            return loaded
        runs = []
        for run in loaded:
            first = run.entries[0].seq if run.entries else 0
            log = self._log.read(run.row.run_id, from_seq=first)
            runs.append(replace(run, entries=tuple([entry async for entry in log])))
        return runs

    async def signals(self, run_id: RunId) -> list[BufferedSignal]:
        """See `RunStore.signals`. Signals given to the bus by others are not seen."""
        return await self._rows.signals(run_id)

    async def answers(self, run_id: RunId) -> list[Answer]:
        """See `RunStore.answers`."""
        return await self._rows.answers(run_id)

    async def wait_cycles(
        self, shards: Sequence[ShardId], *, younger_than_s: float
    ) -> list[WaitCycle]:
        """See `RunStore.wait_cycles`."""
        return await self._rows.wait_cycles(shards, younger_than_s=younger_than_s)

    async def unnoticed(self, shards: Sequence[ShardId], *, younger_than_s: float) -> list[Nudge]:
        """See `RunStore.unnoticed`."""
        return await self._rows.unnoticed(shards, younger_than_s=younger_than_s)

    async def state(self, agent_id: AgentId) -> dict[str, JsonValue]:
        """See `RunStore.state`."""
        return await self._rows.state(agent_id)

    async def due(
        self, shards: Sequence[ShardId], *, within_s: float, limit: int = 10_000
    ) -> list[Timer]:
        """See `RunStore.due`."""
        return await self._rows.due(shards, within_s=within_s, limit=limit)

    # --- reading for everybody ----------------------------------------------------------------------

    def entries(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """See `RunStore.entries`."""
        if self._log is not None:
            return self._log.read(run_id, from_seq=from_seq)
        return self._rows.entries(run_id, from_seq=from_seq)

    def tail(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """See `RunStore.tail`."""
        if self._log is not None:
            return self._log.tail(run_id, from_seq=from_seq)
        return self._rows.tail(run_id, from_seq=from_seq)

    async def run(self, run_id: RunId) -> RunRow | None:
        """See `RunStore.run`."""
        return await self._rows.run(run_id)

    async def find_run_for_agent(self, agent_id: AgentId) -> RunRow | None:
        """See `RunStore.find_run_for_agent`."""
        return await self._rows.find_run_for_agent(agent_id)

    async def list_runs(
        self,
        *,
        status: Sequence[RunStatus] = (),
        agent: AgentId | None = None,
        parked: bool | None = None,
        among: RunFilter = ANY_RUN,
        limit: int = 100,
    ) -> list[RunRow]:
        """See `RunStore.list_runs`."""
        return await self._rows.list_runs(
            status=status, agent=agent, parked=parked, among=among, limit=limit
        )

    async def children(self, run_id: RunId) -> list[RunRow]:
        """See `RunStore.children`."""
        return await self._rows.children(run_id)

    async def run_of_message(
        self, agent_id: AgentId, sender: str, message_id: str
    ) -> RunRow | None:
        """See `RunStore.run_of_message`."""
        return await self._rows.run_of_message(agent_id, sender, message_id)

    async def waits(
        self, *, kind: WaitKind | None = None, run_id: RunId | None = None, limit: int = 100
    ) -> list[OpenWait]:
        """See `RunStore.waits`."""
        return await self._rows.waits(kind=kind, run_id=run_id, limit=limit)

    async def pending_count(self, agent_id: AgentId) -> int:
        """See `RunStore.pending_count`."""
        if self._inbox is not None:
            return await self._inbox.pending_count(agent_id)
        return await self._rows.pending_count(agent_id)

    async def refold(self, run_id: RunId) -> RunRow:
        """See `RunStore.refold`."""
        row = await self._rows.run(run_id)
        if row is None:
            raise UnknownRunError(run_id)
        return fold(row, [entry async for entry in self.entries(run_id)])

    # --- dead letters -------------------------------------------------------------------------------

    async def dead_letters(
        self, *, agent: AgentId | None = None, ids: Sequence[int] = (), limit: int = 100
    ) -> list[DeadLetter]:
        """See `RunStore.dead_letters`."""
        return await self._rows.dead_letters(agent=agent, ids=ids, limit=limit)

    async def discard(self, ids: Sequence[int]) -> int:
        """See `RunStore.discard`."""
        return await self._rows.discard(ids)

    async def redrive(self, ids: Sequence[int]) -> list[Arrived]:
        """See `RunStore.redrive`."""
        arrived = await self._rows.redrive(ids)
        if self._inbox is not None:
            for item in arrived:
                await self._inbox.deliver(item.agent_id, item.message, notify=False)
        return arrived

    async def redrive_run(self, run_id: RunId) -> Submitted:
        """See `RunStore.redrive_run`."""
        submitted = await self._rows.redrive_run(run_id)
        row = await self._rows.run(submitted.run_id)
        loaded = await self._rows.load([submitted.run_id])
        if submitted.arrived is None or row is None:
            return submitted
        for item in loaded[0].messages:
            key = MessageKey(item.agent_id, item.sender, item.message.id)
            self._bound.setdefault(submitted.run_id, []).append(key)
            if self._inbox is not None:
                await self._inbox.deliver(item.agent_id, item.message, notify=False)
        if self._mirror is not None:
            await self._mirror.queued(row)
        return submitted

    async def fork(self, run_id: RunId, *, at_seq: int, copy: int = 0) -> Submitted:
        """See `RunStore.fork`."""
        submitted = await self._rows.fork(run_id, at_seq=at_seq, copy=copy)
        row = await self._rows.run(submitted.run_id)
        if self._mirror is not None and row is not None and row.last_seq < 0:
            await self._mirror.queued(row)
        return submitted

    # --- followers ----------------------------------------------------------------------------------

    @property
    def follows(self) -> FollowGraph:
        """See `RunStore.follows`."""
        return self._rows.follows

    @property
    def posts(self) -> PostStore:
        """See `RunStore.posts`. What followers get is put into the inbox, too."""
        return self._rows.posts_into(self._inbox)

    # --- limits -------------------------------------------------------------------------------------

    @property
    def limits(self) -> LimitStore:
        """See `RunStore.limits`."""
        return self._rows.limits

    # --- for operators ------------------------------------------------------------------------------

    @property
    def insight(self) -> InsightStore:
        """See `RunStore.insight`. Of messages that others put into the inbox it does not know."""
        return self._rows.insight

    # --- schedules ----------------------------------------------------------------------------------

    @property
    def schedules(self) -> ScheduleStore:
        """See `RunStore.schedules`. What they send goes to the inbox, too."""
        return self._rows.schedules

    async def _put_fired(self, arrived: Sequence[Arrived]) -> None:
        if self._inbox is not None:
            for item in arrived:
                await self._inbox.deliver(item.agent_id, item.message, notify=False)

    async def sweep(self, *, older_than_s: float, limit: int = 200) -> int:
        """See `RunStore.sweep`. A log that was given to the store keeps its entries."""
        return await self._rows.sweep(older_than_s=older_than_s, limit=limit)

    # --- inside -------------------------------------------------------------------------------------

    async def _has_older(self, commit: Commit) -> bool:
        """Whether the inbox has something older of a sender whose message a turn takes.

        A message that others have taken from it holds nothing back.
        """
        taken: set[str] = set()
        for item in reversed(await self.pending_mail(agent=commit.lease.agent_id, limit=_ALL)):
            key = MessageKey(item.agent_id, item.sender, item.message.id)
            if key in commit.bind:
                taken.add(item.sender)
            elif item.sender in taken:
                return True
        return False

    async def _boot(self, child: Spawned, sender: str) -> None:
        if self._inbox is None or child.boot is None:
            return
        agent, boot = child.run.agent_id, child.boot.sent_by(sender)
        if await self._inbox.deliver(agent, boot, notify=False):
            key = MessageKey(agent, sender, boot.id)
            self._bound.setdefault(child.run.run_id, []).append(key)

    async def _record(self, run_id: RunId, entries: Sequence[NewEntry], expected_seq: int) -> None:
        if self._journal is not None:
            for entry in entries:
                if entry.kind in RESULT_KINDS:
                    await self._journal.record(result_of(entry))
        if self._log is not None:
            for n, entry in enumerate(entries):
                await self._log.append(run_id, entry, expected_seq=expected_seq + n)

    async def _tell(self, commit: Commit) -> None:
        run_id, then = commit.lease.run_id, commit.then
        if commit.bind:
            self._bound.setdefault(run_id, []).extend(commit.bind)
        if isinstance(then, Retry) and run_id in self._bound:
            self._bound[run_id] = [key for key in self._bound[run_id] if key not in then.release]
        for child in commit.spawned:
            row = await self._rows.run(child.run.run_id)
            if self._mirror is not None and row is not None:
                await self._mirror.queued(row)
        await self._tell_executing(commit.lease)
        if self._mirror is not None:
            await self._mirror.became(run_id, then)
        if self._bus is not None and isinstance(then, Suspend) and then.wake.at is not None:
            await self._bus.timer(run_id, then.wake.at)
        await self._tell_inbox(run_id, then, commit.withdraw)

    async def _tell_executing(self, lease: Lease) -> None:
        row = await self._rows.run(lease.run_id)
        if self._mirror is not None and row is not None:
            await self._mirror.executing(row, lease.owner)

    async def _tell_inbox(self, run_id: RunId, then: Then, withdrawn: Sequence[MessageKey]) -> None:
        if self._inbox is None:
            return
        for key in withdrawn:
            if self._rows.is_done(key):
                await self._inbox.ack(key.agent, key.message_id)
        for key in self._bound.get(run_id, ()):
            error = then.error if isinstance(then, Retry | Finish) else None
            if error is not None:
                text = str(error.get("message", ""))
                await self._inbox.nack(key.agent, key.message_id, error=text)
            if isinstance(then, Finish):
                # Also one that was given up: the dead letter is a row of the store.
                await self._inbox.ack(key.agent, key.message_id)
        if isinstance(then, Finish):
            self._bound.pop(run_id, None)


def _key_of(row: Arrived, kept: Mapping[tuple[str, str], Message]) -> tuple[str, str] | None:
    """Return where the inbox's copy of a row is; one without sender is there under no name."""
    for sender in (row.sender, ""):
        if (sender, row.message.id) in kept:
            return sender, row.message.id
    return None
