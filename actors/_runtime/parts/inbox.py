"""The mailboxes: a view over one RunStore, and one over a store of its own.

A message is handled by a run. Acknowledging one here writes the shortest run there is: started with the
message, completed. Giving one back is a failed attempt of that run, which is tried again.

`StoreView` is what this view and those of the other parts share: leases of runs, and their entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, TypeAlias

from actors._kernel.agent.message import Message, MessageKey
from actors._kernel.basics import Clock
from actors._kernel.json import JsonValue
from actors._kernel.runtime.commit import (
    Commit,
    Committed,
    Conflict,
    Finish,
    LeaseLost,
    OverBudget,
    Retry,
    Then,
)
from actors._kernel.runtime.ids import AgentId, RunId, run_id_of_mail
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.rows import Arrived, DeadLetter, NewRun, RunRow
from actors._kernel.runtime.scheduler import Lease, RunStatus, ShardLease
from actors._kernel.stores.run_store import RunStore
from actors.errors import ConcurrentAppendError, IllegalTransitionError, LeaseLostError, SpawnDenied

LeaseOf: TypeAlias = "Callable[[AgentId], ShardLease | None]"
"""Function that returns this host's lease on the shard of an agent, or None if another host owns it."""


class StoreView:
    """A view that writes commits of runs, under the leases of this host."""

    def __init__(self, store: RunStore, *, lease_of: LeaseOf) -> None:
        self._store, self._lease_of = store, lease_of

    def _lease(self, run_id: RunId, agent_id: AgentId, *, attempt: int) -> Lease:
        """Return the right to write for a run.

        Raises:
            LeaseLostError: The agent's shard is not this host's.
        """
        shard = self._lease_of(agent_id)
        if shard is None:
            raise LeaseLostError(self._store.shards.shard_of(agent_id), "nobody here", 0)
        return Lease(
            shard.shard, shard.owner, shard.epoch, shard.expires_at, run_id, agent_id, attempt
        )

    async def _write(
        self, lease: Lease, expected_seq: int, *entries: NewEntry, then: Then, **parts: object
    ) -> Committed:
        """Write one commit that has to succeed.

        Raises:
            LeaseLostError: The shard belongs to another host.
            ConcurrentAppendError: The run went on meanwhile.
            IllegalTransitionError: The run has ended, or what the commit takes is gone.
            SpawnDenied: The tree's budget does not allow its children.
        """
        commit = Commit(
            lease,
            expected_seq,
            entries,
            then,
            attempt=lease.attempt,
            **parts,  # type: ignore[arg-type]
        )
        match await self._store.commits.commit(commit):
            case Committed() as committed:
                return committed
            case LeaseLost():
                raise LeaseLostError(lease.shard, lease.owner, lease.epoch)
            case Conflict(actual):
                raise ConcurrentAppendError(lease.run_id, expected_seq, actual)
            case OverBudget(_, limit):
                raise SpawnDenied(lease.run_id, limit)
            case _:
                raise IllegalTransitionError(lease.run_id, "gone", "written")


def run_started(agent_id: AgentId) -> NewEntry:
    """Return a run's first entry."""
    return NewEntry(EntryKind.RUN_STARTED, "", {"agent": str(agent_id)})


def run_resumed(reason: str) -> NewEntry:
    """Return the entry that ends a wait."""
    return NewEntry(EntryKind.RUN_RESUMED, "", {"reason": reason})


def failure(message: str) -> dict[str, JsonValue]:
    """Return the error of an attempt that was given up from outside the run."""
    return {"type": "actors.errors:AgentCrashError", "message": message}


def attempt_failed(
    attempt: int, error: dict[str, JsonValue], retry_from: int, *, at: datetime
) -> tuple[NewEntry, Retry]:
    """Return the entry of an attempt that failed, and the wait for the next one."""
    payload: dict[str, JsonValue] = {
        "attempt": attempt,
        "error": error,
        "retry_from": retry_from,
        "at": at.isoformat(),
    }
    return NewEntry(EntryKind.RUN_ATTEMPT_FAILED, "", payload), Retry(at, error, retry_from)


VIEW_SENDER: Final = "client:inbox"
_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class _WaitingMessage:
    """A waiting message: with the run that failed on it, or still without any."""

    message: Message
    sender: str
    arrival: int
    row: RunRow | None = None


class InboxView(StoreView):
    """The `Inbox` of a store. Durable when the store is.

    Where a worker runs, it starts a run for what is delivered; draining, acknowledging and giving
    back are for callers that handle messages themselves. They write, so they need the agent's shard.

    Args:
        store: The store of the rows.
        lease_of: This host's shard leases.
        clock: The clock by which a returned message may be tried again.
        max_retries: After so many nacks a message becomes a dead letter.
    """

    def __init__(
        self, store: RunStore, *, lease_of: LeaseOf, clock: Clock, max_retries: int = 3
    ) -> None:
        super().__init__(store, lease_of=lease_of)
        self._clock = clock
        self._max_retries = max_retries
        self._hook: Callable[[AgentId], None] | None = None

    async def deliver(self, agent_id: AgentId, msg: Message, *, notify: bool = True) -> bool:
        """Store a message for an agent; return False if its id is known from its sender.

        A message without sender is from ``client:inbox``.
        """
        stored_message = replace(msg, target=agent_id, sender=msg.sender or VIEW_SENDER)
        is_new = bool(await self._store.arrivals.deliver([stored_message]))
        if is_new and notify and self._hook is not None:
            self._hook(agent_id)
        return is_new

    async def drain(self, agent_id: AgentId, *, max: int = 100) -> list[Message]:  # noqa: A002
        """Return waiting messages, oldest first. Includes messages whose last attempt failed."""
        arrived = await self._store.backlog.pending_mail(agent=agent_id, limit=max)
        waiting_messages = [
            _waiting_message(item) for item in arrived
        ] + await self._returned_messages(agent_id)
        waiting_messages.sort(key=lambda item: item.arrival)
        return [item.message for item in waiting_messages[:max]]

    async def ack(self, agent_id: AgentId, msg_id: str) -> None:
        """Note that a message was handled. Unknown and handled ids are ignored."""
        waiting_message = await self._find(agent_id, msg_id)
        if waiting_message is not None:
            entry = NewEntry(EntryKind.RUN_COMPLETED, "", {"output": None})
            await self._attempt(agent_id, waiting_message, entry, Finish(RunStatus.COMPLETED))

    async def nack(self, agent_id: AgentId, msg_id: str, *, error: str = "") -> None:
        """Return a message that could not be handled, or bury it. Unknown and handled ids are ignored."""
        waiting_message = await self._find(agent_id, msg_id)
        if waiting_message is None:
            return
        attempt, problem = _attempt_of(waiting_message), failure(error)
        if attempt >= self._max_retries:
            entry = NewEntry(EntryKind.RUN_FAILED, "", {"status": "nack", "error": problem})
            then: Then = Finish(RunStatus.FAILED, error=problem, dead_letter="max_retries")
        else:
            retry_from = waiting_message.row.last_seq if waiting_message.row else 1
            entry, then = attempt_failed(attempt, problem, retry_from, at=self._clock.now())
        await self._attempt(agent_id, waiting_message, entry, then)

    async def dead_letters(self, agent_id: AgentId) -> list[DeadLetter]:
        """Return dead letters of an agent. Newest first, at most 1,000."""
        return await self._store.lists.dead_letters(agent=agent_id, limit=_PAGE)

    async def redrive(self, agent_id: AgentId, msg_id: str) -> bool:
        """Deliver a dead letter again; return False if there is none of this id.

        The message waits under a new id, derived from the old one.
        """
        for dead_letter in await self.dead_letters(agent_id):
            if dead_letter.message.id == msg_id and await self._store.operators.redrive(
                [dead_letter.id]
            ):
                if self._hook is not None:
                    self._hook(agent_id)
                return True
        return False

    async def pending_count(self, agent_id: AgentId) -> int:
        """Return the number of messages that wait for an agent."""
        return await self._store.lists.pending_count(agent_id)

    def set_deliver_hook(self, hook: Callable[[AgentId], None] | None) -> None:
        """Call `hook` with the agent of each new message; other processes' deliveries come as nudges."""
        self._hook = hook

    async def _attempt(
        self, agent_id: AgentId, waiting_message: _WaitingMessage, entry: NewEntry, then: Then
    ) -> None:
        """Write a whole attempt of the message's run: its start, and `entry`, which ends it."""
        key = MessageKey(agent_id, waiting_message.sender, waiting_message.message.id)
        run_id = _run_of(key)
        lease = self._lease(run_id, agent_id, attempt=_attempt_of(waiting_message))
        if waiting_message.row is not None:
            await self._write(
                lease, waiting_message.row.last_seq, run_resumed("retry"), entry, then=then
            )
            return
        new_run = NewRun(run_id, agent_id)
        payload: dict[str, JsonValue] = {
            "message": waiting_message.message.to_json(),
            "arrival": waiting_message.arrival,
        }
        received_entry = NewEntry(EntryKind.MSG_RECEIVED, "in.0", payload)
        await self._write(
            lease,
            -1,
            run_started(agent_id),
            received_entry,
            entry,
            then=then,
            create=new_run,
            bind=(key,),
            any_order=True,
        )

    async def _find(self, agent_id: AgentId, msg_id: str) -> _WaitingMessage | None:
        page, after = await self._returned_messages(agent_id), -1
        while True:
            for item in page:
                if item.message.id == msg_id:
                    return item
            arrived = await self._store.backlog.pending_mail(
                agent=agent_id, after=after, limit=_PAGE
            )
            if not arrived:
                return None
            page, after = [_waiting_message(item) for item in arrived], arrived[-1].arrival

    async def _returned_messages(self, agent_id: AgentId) -> list[_WaitingMessage]:
        rows = await self._store.lists.runs(agent=agent_id, status=[RunStatus.PENDING], limit=_PAGE)
        runs = await self._store.reads.load([row.run_id for row in rows if row.attempt > 0])
        returned_messages = []
        for run in runs:
            for entry in run.entries:
                body = entry.payload.get("message")
                if entry.kind != EntryKind.MSG_RECEIVED or not isinstance(body, dict):
                    continue
                message = Message.from_json(body)
                key = MessageKey(agent_id, message.sender or "", message.id)
                if run.row.run_id == _run_of(key):
                    returned_messages.append(
                        _WaitingMessage(message, key.sender, run.row.arrival, run.row)
                    )
        return returned_messages


class InMemoryInbox(InboxView):
    """An `Inbox` in memory. Nothing survives the process.

    Args:
        clock: The clock that stamps dead letters.
        max_retries: After so many nacks a message becomes a dead letter.
    """

    def __init__(self, *, clock: Clock, max_retries: int = 3) -> None:

        from actors._inmemory.runs.store import PrivateStore  # noqa: PLC0415 - hosts have another store

        store = PrivateStore(clock=clock)
        super().__init__(store, lease_of=store.lease_of, clock=clock, max_retries=max_retries)


def key_kept(
    row: Arrived, messages_by_key: Mapping[tuple[str, str], Message]
) -> tuple[str, str] | None:
    """Return the key of the inbox's copy of a row. A copy without a sender is there under no name."""
    for sender in (row.sender, ""):
        if (sender, row.message.id) in messages_by_key:
            return sender, row.message.id
    return None


def _run_of(key: MessageKey) -> RunId:
    return run_id_of_mail(key.agent, key.sender, key.message_id)


def _waiting_message(item: Arrived) -> _WaitingMessage:
    return _WaitingMessage(item.message, item.sender, item.arrival)


def _attempt_of(waiting_message: _WaitingMessage) -> int:
    return 1 if waiting_message.row is None else waiting_message.row.attempt + 1
