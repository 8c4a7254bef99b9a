"""The writing end of one run: entries get their seq when recorded, and become durable in flushes.

One flush is in flight at most. What is recorded meanwhile rides with the next one. Here a run's
turn becomes durable: `RunLog.durable` is the only caller of `RunStore.append` and, with `commit_end`,
of `RunStore.commit`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from actors.errors import ActorsError, ConcurrentAppendError, LeaseLostError, RunSuspended
from actors.kernel.runtime.commit import (
    CONTINUE,
    Commit,
    Committed,
    Conflict,
    Deleted,
    LeaseLost,
    Missing,
    Then,
)
from actors.kernel.runtime.log_entry import EntryKind, NewEntry
from actors.runtime.tasks import start_task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors.kernel.agent.message import MessageKey
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import CommitOutcome, NewRun, Outgoing, SignalKey
    from actors.kernel.runtime.scheduler import Lease
    from actors.kernel.runtime.store import RunStore
    from actors.runtime.branch import Branch
    from actors.runtime.history import History
    from actors.runtime.turnstile import Turnstile

T = TypeVar("T")


@dataclass(slots=True)
class _Parts:
    """What rides with the next flush beside entries."""

    create: NewRun | None = None
    bind: list[MessageKey] = field(default_factory=list)
    outgoing: list[Outgoing] = field(default_factory=list)
    take_signals: list[SignalKey] = field(default_factory=list)
    state: dict[str, JsonValue | Deleted] = field(default_factory=dict)
    first: bool = False
    """The run's row has to become RUNNING."""

    @property
    def is_turn(self) -> bool:
        return bool(
            self.first
            or self.bind
            or self.outgoing
            or self.take_signals
            or self.state
            or self.create
        )


class RunLog:
    """Records what one execution of a run does.

    Args:
        store: Where flushes go.
        lease: Fences every write.
        history: What the log holds so far; `last_seq` is where it ends.
        turnstile: Told how far the log is durable.
        on_committed: Called after each turn: new inbox rows, cancel requests.
    """

    def __init__(
        self,
        *,
        store: RunStore,
        lease: Lease,
        history: History,
        turnstile: Turnstile,
        on_committed: Callable[[Committed], None],
    ) -> None:
        self.lease = lease
        self.history = history
        self.seq = history.last_seq
        self.broken: BaseException | CommitOutcome | None = None
        """Why nothing can be written any more; the run is dropped and loaded again."""
        self._store = store
        self._turnstile = turnstile
        self._on_committed = on_committed
        self._entries: list[NewEntry] = []
        self._parts = _Parts(first=True)
        self._in_flight = False
        self._behind: asyncio.Task[Any] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        turnstile.durable = self.seq

    @property
    def durable_seq(self) -> int:
        """Where the log ends for sure."""
        return self._turnstile.durable

    def record(self, kind: EntryKind, position: str, payload: dict[str, JsonValue]) -> int:
        """Put an entry at the end of the log, in memory, and return its seq."""
        self._entries.append(NewEntry(kind, position, payload))
        self.seq += 1
        return self.seq

    @property
    def unwritten(self) -> list[NewEntry]:
        """What the next flush will write."""
        return self._entries

    def create(self, run: NewRun) -> None:
        """Let the next flush create the run's row."""
        self._parts.create = run

    def bind(self, key: MessageKey) -> None:
        """Let the next flush make a pending message this run's."""
        self._parts.bind.append(key)

    def send(self, outgoing: Outgoing) -> None:
        """Let a message leave with the next flush."""
        self._parts.outgoing.append(outgoing)

    def take_signal(self, key: SignalKey) -> None:
        """Let the next flush consume a signal."""
        self._parts.take_signals.append(key)

    def set_state(self, key: str, value: JsonValue | Deleted) -> None:
        """Let the next flush write a value of the agent's state."""
        self._parts.state[key] = value

    async def durable(self, branch: Branch, seq: int) -> None:
        """Return when the log is durable up to `seq`; the branch is counted as working.

        Raises:
            RunSuspended: The write failed in a way that only loading the run again can mend.
        """
        branch.flushing = True
        try:
            while self._turnstile.durable < seq:
                if self.broken is not None:
                    raise RunSuspended
                if self._in_flight:
                    await self._flight_over()
                else:
                    await self._flush()
        finally:
            branch.flushing = False

    async def _flush(self) -> None:
        entries, self._entries = self._entries, []
        parts, self._parts = self._parts, _Parts()
        expected = self._turnstile.durable
        self._in_flight = True
        try:
            if parts.is_turn:
                await self._commit(self._turn(entries, parts, expected, CONTINUE))
            else:
                await self._store.append(self.lease, entries, expected_seq=expected)
        except RunSuspended:
            raise
        except BaseException as exc:
            self.break_off(exc)
            if isinstance(exc, ActorsError | asyncio.CancelledError):
                raise RunSuspended from exc
            raise
        finally:
            self._in_flight = False
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        self._turnstile.durable_upto(expected + len(entries))

    async def _flight_over(self) -> None:
        """Return when the flush that is under way has ended, well or not."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def _commit(self, turn: Commit) -> Committed:
        outcome = await self._store.commit(turn)
        if not isinstance(outcome, Committed):
            self.break_off(outcome)
            raise RunSuspended
        self._on_committed(outcome)
        return outcome

    def _turn(self, entries: list[NewEntry], parts: _Parts, expected: int, then: Then) -> Commit:
        return Commit(
            lease=self.lease,
            expected_seq=expected,
            entries=tuple(entries),
            then=then,
            create=parts.create,
            bind=tuple(parts.bind),
            outgoing=tuple(parts.outgoing),
            take_signals=tuple(parts.take_signals),
            state=parts.state,
            attempt=self.history.attempt,
        )

    async def commit_end(self, then: Then, *, attempt: int | None = None) -> Committed:
        """Write everything left together with what becomes of the run. The code has ended.

        `attempt` is the run's from now on, when it is not the one that executed.

        Raises:
            RunSuspended: The write failed; see `broken`.
        """
        while self._in_flight:
            await self._flight_over()
        if self.broken is not None:
            raise RunSuspended
        entries, self._entries = self._entries, []
        parts, self._parts = self._parts, _Parts()
        turn = self._turn(entries, parts, self._turnstile.durable, then)
        if attempt is not None:
            turn = replace(turn, attempt=attempt)
        try:
            committed = await self._commit(turn)
        except ActorsError as exc:
            self.break_off(exc)
            raise RunSuspended from exc
        self._turnstile.durable = committed.last_seq
        return committed

    async def reading(self, rows: Awaitable[T]) -> T:
        """Return what the store gives; when it cannot, the run is dropped and loaded again.

        Agent code never sees the store's errors: replay would not repeat them.

        Raises:
            RunSuspended: The store could not be read.
        """
        try:
            return await rows
        except ActorsError as exc:
            self.break_off(exc)
            raise RunSuspended from exc

    def flush_behind(self) -> None:
        """Make durable what was recorded, beside the run: every branch waits for something outside."""
        if self._entries and not self._in_flight and self.broken is None:
            self._behind = start_task(
                self._flush(), name=f"flush {self.lease.run_id}", done=_is_told
            )

    def break_off(self, why: BaseException | CommitOutcome) -> None:
        """Give this execution up: nothing more is written, all branches unwind."""
        if self.broken is None:
            self.broken = why
            self._turnstile.unwind(RunSuspended())

    @property
    def lost_lease(self) -> bool:
        """Whether the shard belongs to somebody else now."""
        return isinstance(self.broken, LeaseLost | LeaseLostError)

    @property
    def is_stale(self) -> bool:
        """Whether the log went on without this execution: load it again, same attempt."""
        return isinstance(self.broken, Conflict | Missing | ConcurrentAppendError)


def _is_told(task: asyncio.Task[Any]) -> None:
    """A flush beside the run that failed has broken the run off already."""
    if not task.cancelled():
        task.exception()
