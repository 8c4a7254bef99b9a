"""The rows of the in-memory store."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import count, dropwhile
from typing import Any, Final, Literal

from pydantic_core import to_json

from actors._inmemory.administration import InMemoryAudit, InMemoryTokens, UsageRows, count_usage
from actors._inmemory.artifacts import InMemoryArtifacts
from actors._inmemory.conversations import MemoryTranscripts
from actors._inmemory.flows import InMemoryFlowBundles, InMemoryRunSnapshots
from actors._inmemory.memories import InMemoryLongTermMemories
from actors._inmemory.runs.follow_rows import FollowRows
from actors._inmemory.runs.records import (
    InboxRow,
    LogLine,
    RunRecord,
    ShardRow,
    TreeAccount,
    unpack,
)
from actors._inmemory.sessions import InMemorySessions
from actors._kernel.agent.message import Message, MessageKey
from actors._kernel.agent.transcript import answer_of
from actors._kernel.basics import Clock
from actors._kernel.json import JsonValue
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId, ShardId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry, check_entry
from actors._kernel.runtime.rows import Arrived, DeadLetter, NewRun, Timer
from actors._kernel.runtime.scheduler import Lease
from actors._kernel.stores.runs import RunFilter
from actors._kernel.stores.shards import Serves
from actors.errors import UnknownRunError

MEMORY_SHARD: Final = ShardId("memory")


class MemoryRows:
    """The rows of one in-memory store, shared by its siblings."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.home, self.shard = MEMORY_SHARD, ShardRow()
        self.types: dict[str, Literal["type", "agent"]] = {}
        self.serves: dict[HostIncarnation, Serves] = {}
        """Agents and types that each host last declared."""
        self.runs: dict[RunId, RunRecord] = {}
        self.open_by_agent: defaultdict[AgentId, dict[RunId, RunRecord]] = defaultdict(dict)
        self.inbox: dict[MessageKey, InboxRow] = {}
        self.pending: dict[AgentId, dict[int, InboxRow]] = {}
        self.dropped: set[RunId] = set()
        """Runs that were here and are deleted: a reader of their logs has reached the end."""
        self.signal_ids: set[tuple[RunId, str, str]] = set()
        self.waiting: dict[RunId, RunRecord] = {}
        """Runs with open waits."""
        self.waiters: dict[RunId, dict[RunId, None]] = {}
        """Waiting runs, by the run that they wait for."""
        self.accounts: dict[RunId, TreeAccount] = {}
        """Accounts of trees, by root run, from the tree's first spawn on."""
        self.follows = FollowRows()
        self.transcripts = MemoryTranscripts(clock.now)
        self.sessions = InMemorySessions(clock.now, self.transcripts, self._open_runs_of)
        self.artifacts = InMemoryArtifacts(clock.now)
        self.flow_bundles = InMemoryFlowBundles(clock.now, self.artifacts, self._open_runs_at)
        self.run_snapshots = InMemoryRunSnapshots(clock.now, lambda run_id: run_id in self.runs)
        self.memories = InMemoryLongTermMemories(clock.now, self._is_held)
        self.tokens = InMemoryTokens(clock.now)
        self.audit = InMemoryAudit(clock.now)
        self.usage: UsageRows = {}
        self.states: defaultdict[AgentId, dict[str, bytes]] = defaultdict(dict)
        self.dead: dict[int, tuple[DeadLetter, InboxRow]] = {}
        self.given_back: defaultdict[RunId, list[DeadLetter]] = defaultdict(list)
        """Dead letters that were redriven, by the run that failed on them."""
        self.arrivals, self.signal_numbers, self.dead_ids = count(), count(), count(1)
        self.hooks: dict[object, Callable[[Nudge], None]] = {}
        self._readers: defaultdict[RunId, set[asyncio.Event]] = defaultdict(set)

    def _is_held(self, lease: Lease) -> bool:
        return self.shard.is_held_by(lease)  # another row may take the shard's place

    def _open_runs_of(self, agent: AgentId) -> int:
        return len(self.open_by_agent.get(agent, ()))

    def _open_runs_at(self, heads: Sequence[str]) -> int:
        addresses = (str(run.cause.agent_id) for run in self.open_runs())
        return sum(agent.startswith(tuple(heads)) for agent in addresses)

    def create_run(self, new: NewRun, *, arrival: int | None = None) -> RunRecord:
        """Return the run's record; a new one is PENDING, and asked to stop if its parent is."""
        existing = self.runs.get(new.run_id)
        if existing is not None:
            return existing
        now = self.clock.now()
        record = RunRecord(new, next(self.arrivals) if arrival is None else arrival, now, now)
        self.runs[new.run_id] = self.open_by_agent[new.agent_id][new.run_id] = record
        parent = self.runs.get(new.parent) if new.parent else None
        if parent is not None:
            parent.children.append(new.run_id)
            # A child that is spawned after its parent was asked to stop would miss the request.
            record.cancel_requested = parent.cancel_requested
        return record

    def drop_run(self, record: RunRecord) -> None:
        """Forget a run that has ended; the ids of its messages stay."""
        cause = record.cause
        del self.runs[cause.run_id]
        self.dropped.add(cause.run_id)
        self.given_back.pop(cause.run_id, None)
        parent = self.runs.get(cause.parent) if cause.parent else None
        if parent is not None:
            parent.children.remove(cause.run_id)
        for event in self._readers.get(cause.run_id, ()):
            event.set()

    def add_entries(self, record: RunRecord, entries: Iterable[NewEntry]) -> None:
        """Append checked entries to the log and wake its readers."""
        now = self.clock.now()
        for entry in entries:
            line = LogLine(
                len(record.log), str(entry.kind), entry.position, to_json(entry.payload), now
            )
            record.log.append(line)
            if entry.kind == "run.continued":
                record.continued_at = line.seq
            is_call = entry.kind == EntryKind.LLM_CALL
            if is_call and (answer := answer_of(entry.payload)) is not None:
                count_usage(self.usage, record.cause.agent_id, answer, now.date())
        record.updated_at = now
        for event in self._readers.get(record.cause.run_id, ()):
            event.set()

    def record(self, run_id: RunId) -> RunRecord:
        """Return the run's record.

        Raises:
            UnknownRunError: There is no such run.
        """
        record = self.runs.get(run_id)
        if record is None:
            raise UnknownRunError(run_id)
        return record

    def open_runs(self) -> Iterable[RunRecord]:
        """Yield the runs that have not ended."""
        return (run for runs_by_id in self.open_by_agent.values() for run in runs_by_id.values())

    def timers(self, until: datetime) -> list[Timer]:
        """Return when waiting runs go on, up to an instant, the earliest first."""
        timers = [timer for run in self.open_runs() if (timer := run.timer())]
        return sorted(
            (timer for timer in timers if timer.at <= until), key=lambda t: (t.at, t.run_id)
        )

    def newest(self, among: RunFilter) -> Iterable[RunRecord]:
        """Yield the runs that are wanted, newest first."""
        runs: Iterator[RunRecord] = reversed(self.runs.values())
        if among.after is not None:
            runs = dropwhile(lambda run: run.cause.run_id != among.after, runs)
            next(runs, None)
        for run in runs:
            agent = run.cause.agent_id
            if (
                among.type in (None, agent.type)
                and among.tenant in (None, agent.tenant)
                and (among.since is None or run.created_at >= among.since)
                and (among.until is None or run.created_at < among.until)
                and among.parent in (None, run.cause.parent)
            ):
                yield run

    def holder(self, agent_id: AgentId) -> RunRecord | None:
        """Return the run that has started and not ended, else the oldest queued one."""
        runs = self.open_by_agent.get(agent_id)
        if not runs:
            return None
        return min(runs.values(), key=lambda run: (not run.log, run.arrival))

    def started_by(self, record: RunRecord) -> str | None:
        """Return the sender of the messages with which the root began, or None if there are several or none."""
        root = self.runs.get(record.cause.root or record.cause.run_id, record)
        senders = {row.key.sender for row in root.bound}
        for line in root.log:
            if line.kind == EntryKind.MSG_RECEIVED and line.position.startswith("in."):
                message: Any = line.entry(root.cause.run_id).payload["message"]
                senders.add(message["sender"])
        return senders.pop() if len(senders) == 1 else None

    def started(self, agent_id: AgentId) -> RunRecord | None:
        """Return the run that holds the agent: it has started and not ended."""
        record = self.holder(agent_id)
        return record if record is not None and record.log else None

    def subtree(self, record: RunRecord) -> list[RunRecord]:
        """Return the run and everything below it, parents first."""
        # The list grows while it is read, so that each run's children follow it.
        runs = [record]
        for run in runs:
            runs.extend(self.runs[child] for child in run.children)
        return runs

    def listen(self, run_id: RunId) -> asyncio.Event:
        """Return an event that is set at each append to this log."""
        event = asyncio.Event()
        self._readers[run_id].add(event)
        return event

    def unlisten(self, run_id: RunId, event: asyncio.Event) -> None:
        """Forget an event that `listen` returned."""
        self._readers[run_id].discard(event)
        if not self._readers[run_id]:
            del self._readers[run_id]

    def put_mail(
        self, message: Message, sender: str, agent_id: AgentId, *, is_lazy: bool = False
    ) -> InboxRow | None:
        """Return a new pending row, or None when (agent, sender, id) is known."""
        key = MessageKey(agent_id, sender, message.id)
        if key in self.inbox:
            return None
        stored_message, now = replace(message, sender=sender), self.clock.now()
        row = InboxRow.of(key, stored_message, next(self.arrivals), at=now)
        row.is_lazy = is_lazy
        self.inbox[key] = row
        self.pending.setdefault(agent_id, {})[row.arrival] = row
        return row

    def waiting_mail(self, agent_id: AgentId) -> Iterable[tuple[int, InboxRow]]:
        """Return the agent's pending messages with their arrivals, oldest first."""
        return self.pending.get(agent_id, {}).items()

    def message_row(self, agent_id: AgentId, sender: str, message_id: str) -> InboxRow | None:
        """Return the message's row, whatever became of it."""
        return self.inbox.get(MessageKey(agent_id, sender, message_id))

    def bind(self, row: InboxRow, record: RunRecord) -> None:
        """Give a pending message to a run."""
        self._unqueue(row)
        row.state, row.run_id = "bound", record.cause.run_id
        record.bound.append(row)

    def release(self, keys: Iterable[MessageKey], record: RunRecord) -> None:
        """Let messages of a run, or pending ones, wait at their positions, each for a run of its own."""
        for row in map(self.inbox.__getitem__, keys):
            if row.state == "bound" and row.run_id == record.cause.run_id:
                record.bound.remove(row)
                row.state, row.run_id = "pending", None
                messages = {**self.pending.get(row.key.agent, {}), row.arrival: row}
                self.pending[row.key.agent] = dict(sorted(messages.items()))
            if row.state == "pending":
                row.is_alone, row.is_lazy = True, False

    def withdraw(self, key: MessageKey) -> None:
        """Withdraw a message that has not begun; its id stays known."""
        row = self.inbox.get(key)
        if row is not None and row.state == "pending":
            self._unqueue(row)
            row.drop_body()

    def end_run(self, record: RunRecord, *, dead_letter: str | None) -> None:
        """Drop what only an open run needs: its messages become done, or dead letters."""
        for row in record.bound:
            if dead_letter is not None:
                self._add_dead_letter(row, record, dead_letter)
        for row in record.bound:
            row.drop_body()
        record.bound.clear()
        record.signals.clear()
        runs = self.open_by_agent[record.cause.agent_id]
        runs.pop(record.cause.run_id, None)
        if not runs:
            del self.open_by_agent[record.cause.agent_id]

    def _unqueue(self, row: InboxRow) -> None:
        messages = self.pending[row.key.agent]
        del messages[row.arrival]
        if not messages:
            del self.pending[row.key.agent]

    def _add_dead_letter(self, row: InboxRow, record: RunRecord, reason: str) -> None:
        error = unpack(record.error)
        letter = DeadLetter(
            id=next(self.dead_ids),
            agent_id=row.key.agent,
            message=row.message(),
            reason=reason,
            attempts=record.attempt,
            last_error=last_error(error, others=len(record.bound) - 1),
            run_id=record.cause.run_id,
            at=self.clock.now(),
        )
        # A copy: the row itself loses its body when its run ends, and a redrive needs the message.
        copy = InboxRow(row.key, row.arrival, row.shell, row.payload, row.received_at)
        self.dead[letter.id] = (letter, copy)

    def nudge(self, source: object, nudge: Nudge) -> None:
        """Tell the siblings of `source` what it changed."""
        # A copy: a hook that closes its store removes itself from `hooks`.
        for handle, hook in list(self.hooks.items()):
            if handle is not source:
                hook(nudge)


class MemoryRole:
    """A part of a store in memory: it changes the rows and notifies the siblings.

    Args:
        rows: Shared by all siblings.
        source: The store, as `MemoryRows.hooks` knows it.
    """

    def __init__(self, rows: MemoryRows, source: object) -> None:
        self._rows, self._source = rows, source

    def _notify(self, nudge: Nudge) -> None:
        self._rows.nudge(self._source, nudge)

    def _arrive(self, rows: Sequence[InboxRow | None]) -> list[Arrived]:
        arrivals = [row.arrived() for row in rows if row is not None]
        for agent in dict.fromkeys(item.agent_id for item in arrivals):
            self._notify(Nudge("mail", agent))
        return arrivals


def last_error(error: JsonValue, *, others: int) -> str:
    """Return what a dead letter says of the error, and of the messages given up with it."""
    text = str(error.get("message", "")) if isinstance(error, dict) else ""
    if not others:
        return text
    return f"{text} (given up with {others} other message(s) of its run)".lstrip()


def check_entries(entries: Iterable[NewEntry]) -> None:
    """Check that all may be appended.

    Raises:
        InvalidEntryError: One may not; nothing was written.
    """
    for entry in entries:
        check_entry(entry)


def both_ways(type_: str) -> str:
    """Return what is wrong when a type is declared as a whole and as single agents."""
    return f"type {type_!r} is registered as a whole and as single agents: choose one"
