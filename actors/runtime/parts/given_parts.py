"""The parts that a composed store was given, and the notifications that they get of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from actors.inmemory.runs.rows import MemoryRows
from actors.inmemory.runs.shards import MemoryArrivals, MemoryBacklog
from actors.kernel.agent.message import Message, MessageKey
from actors.kernel.runtime.commit import Commit, Finish, Retry, Spawned, Suspend
from actors.kernel.runtime.effects import Journal
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.log_entry import EventLog, NewEntry
from actors.kernel.runtime.rows import Arrived
from actors.kernel.runtime.scheduler import Lease
from actors.kernel.runtime.sources import Inbox
from actors.kernel.runtime.waits import SignalBus
from actors.runtime.parts.inbox import VIEW_SENDER, key_kept
from actors.runtime.parts.journal import RESULT_KINDS, result_of
from actors.runtime.parts.mirror import SchedulerMirror

_ALL: Final = 100_000
"""Number of unhandled messages of one agent that are read back, at most."""


@dataclass(slots=True)
class GivenParts:
    """Foreign parts beside rows in memory; None: none was given.

    Attributes:
        rows: What no part keeps.
        arrivals: Writes rows of messages, and notifies no part.
        backlog: Reads them.
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
        kept = await self.take_up(agent)
        return [
            replace(row, message=replace(kept[key], sender=row.sender))
            for row in await self.backlog.pending_mail(agent=agent, after=after, limit=limit)
            if (key := key_kept(row, kept)) is not None
        ]

    async def take_up(self, agent: AgentId) -> dict[tuple[str, str], Message]:
        """Make rows of what others put into an inbox, before anything younger of its senders is one.

        Return all that the inbox holds, by sender and id.
        """
        if self.inbox is None:
            return {}
        kept = {
            (message.sender or "", message.id): message
            for message in await self.inbox.drain(agent, max=_ALL)
        }
        await self.arrivals.deliver(
            [replace(m, target=agent, sender=m.sender or VIEW_SENDER) for m in kept.values()]
        )
        return kept

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
        """Tell the scheduler of a new run."""
        record = self.rows.runs.get(run_id)
        if self.mirror is not None and record is not None:
            await self.mirror.queued(record.row())

    async def executes(self, lease: Lease) -> None:
        """Notify the scheduler of the host that executes a run."""
        record = self.rows.runs.get(lease.run_id)
        if self.mirror is not None and record is not None:
            await self.mirror.executing(record.row(), lease.owner)

    async def notify(self, commit: Commit) -> None:
        """Tell scheduler, signal bus and inbox of a commit that was written."""
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
        bound = [*self._bound.pop(run_id, ()), *commit.bind]
        if isinstance(then, Retry):
            bound = [key for key in bound if key not in then.release]
        for key in bound:
            error = then.error if isinstance(then, Retry | Finish) else None
            if error is not None:
                text = str(error.get("message", ""))
                await inbox.nack(key.agent, key.message_id, error=text)
            if isinstance(then, Finish):
                # Also one that was given up: the dead letter is a row of the store.
                await inbox.ack(key.agent, key.message_id)
        if bound and not isinstance(then, Finish):
            self._bound[run_id] = bound
