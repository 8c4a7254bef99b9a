"""The writing end of one run: entries get their seq when recorded, and become durable in flushes.

One flush is in flight at most. What is recorded meanwhile rides with the next one. Here a run's
turn becomes durable: `RunLog.durable` is the only caller of `RunStore.append` and, with `commit_end`,
of `RunStore.commit`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from actors.errors import (
    ActorsError,
    ConcurrentAppendError,
    LeaseLostError,
    RunSuspended,
    StoreUnreachableError,
)
from actors.kernel.runtime.commit import (
    CONTINUE,
    Answered,
    Commit,
    Committed,
    Conflict,
    Deleted,
    LeaseLost,
    Missing,
    OutOfOrder,
    OverBudget,
    Then,
)
from actors.kernel.runtime.log_entry import EntryKind, NewEntry
from actors.runtime.tasks import start_task
from actors.runtime.turn import Parts, with_answers, without, without_mail

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from actors.kernel.agent.message import MessageKey
    from actors.kernel.agent.supervision import HistoryRetention
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import (
        Answer,
        BudgetDelta,
        CommitOutcome,
        FollowChange,
        NewRun,
        Outgoing,
        SignalKey,
        Spawned,
        Wait,
    )
    from actors.kernel.runtime.scheduler import Lease
    from actors.kernel.runtime.store import RunStore
    from actors.runtime.branch import Branch
    from actors.runtime.history import History
    from actors.runtime.turn import LateEnd
    from actors.runtime.turnstile import Turnstile

T = TypeVar("T")
ASK_AGAIN_S: Final = 1.0
"""Pause before a server that gave no answer within its limit is asked again."""


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
        self._parts = Parts(first=True)
        self._in_flight = False
        self._behind: asyncio.Task[Any] | None = None
        self._showing: asyncio.Task[Any] | None = None
        self._is_ending = False
        self._waiters: list[asyncio.Future[None]] = []
        self.waits_of: Callable[[bool], tuple[Wait, ...]] = lambda _: ()
        """Returns the run's open asks, joins and approvals; whether it is at rest is given."""
        self.known_waits: tuple[Wait, ...] | None = ()
        """Those that are rows; None: perhaps some of an execution that was broken off."""
        self._refusable: dict[str, Callable[[str], dict[str, JsonValue]]] = {}
        self._refused: dict[str, dict[str, JsonValue]] = {}
        self._received: dict[MessageKey, tuple[str, Callable[[], None]]] = {}
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

    def receive(self, key: MessageKey, position: str, put_back: Callable[[], None]) -> None:
        """Let the next flush take a message for a call; `put_back` is called if it may not yet.

        An older one of its sender has to be read first. The call's entry has become one that says
        that nothing came of it, so nothing else is disturbed.
        """
        self._parts.bind.append(key)
        self._received[key] = position, put_back

    def send(self, outgoing: Outgoing) -> None:
        """Let a message leave with the next flush."""
        self._parts.outgoing.append(outgoing)

    def withdraw(self, question: MessageKey) -> None:
        """Let the next flush take a question back that was refused."""
        self._parts.withdraw.append(question)

    def unless_answered(self, end: LateEnd) -> None:
        """Let the next flush record the end of a wait, or the answer that came before."""
        self._parts.unless_answered.append(end)

    def take_signal(self, key: SignalKey) -> None:
        """Let the next flush consume a signal."""
        self._parts.take_signals.append(key)

    def take_answer(self, key: str) -> None:
        """Let the next flush consume an answer."""
        self._parts.take_answers.append(key)

    def answer(self, answer: Answer) -> None:
        """Let an answer to another run leave with the next flush."""
        self._parts.answers.append(answer)

    def spawn(self, child: Spawned) -> None:
        """Let the next flush create a child."""
        self._parts.spawned.append(child)

    def follow(self, change: FollowChange) -> None:
        """Let the next flush change what the agent follows."""
        self._parts.follows.append(change)

    def spend(self, delta: BudgetDelta) -> None:
        """Let the next flush count what was used."""
        self._parts.spend(delta)

    async def durable_unless_refused(
        self, branch: Branch, position: str, refusal: Callable[[str], dict[str, JsonValue]]
    ) -> dict[str, JsonValue] | None:
        """Return when all is durable; what `refusal(limit)` gave if the call at `position` was refused.

        Its own entry has become that refusal, so nothing else is disturbed.
        """
        self._refusable[position] = refusal
        try:
            await self.durable(branch, self.seq)
        finally:
            del self._refusable[position]
        return self._refused.pop(position, None)

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

    async def _flush(self, *, resting: bool = False) -> None:
        if self._in_flight or self.broken is not None:
            return  # somebody flushed before this one, beside the run, had its first step
        entries, self._entries = self._entries, []
        parts, self._parts = self._parts, Parts()
        expected = self._turnstile.durable
        waits = self._new_waits(self.waits_of(resting))
        self._in_flight = True
        try:
            if parts.is_turn or waits is not None:
                turn = self._turn(entries, parts, CONTINUE, waits)
                await self._commit(turn, parts.unless_answered)
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

    async def _commit(self, turn: Commit, ends: Sequence[LateEnd]) -> Committed:
        outcome = await self._store.commit(turn)
        while True:
            if isinstance(outcome, Answered):
                found = await self._store.answers(self.lease.run_id)
                turn = with_answers(turn, ends, found)
            elif (less := self._without_refused(turn, outcome)) is not None:
                turn = less
            else:
                break
            outcome = await self._store.commit(turn)
        if self._received:
            for key in turn.bind:
                self._received.pop(key, None)
        if not isinstance(outcome, Committed):
            self.break_off(outcome)
            raise RunSuspended
        if turn.waits is not None:
            self.known_waits = turn.waits
        self._on_committed(outcome)
        return outcome

    def _without_refused(self, turn: Commit, outcome: CommitOutcome) -> Commit | None:
        """Return the turn without what was refused, if that disturbs only who asked for it."""
        match outcome:
            case OverBudget(positions, limit) if self._refusable.keys() >= set(positions):
                refused = {p: self._refusable[p](limit) for p in positions}
                self._refused.update(refused)
                return without(turn, refused)
            case OutOfOrder(keys) if self._received.keys() >= set(keys):
                calls = {key: self._received.pop(key) for key in keys}
                for _, put_back in calls.values():
                    put_back()
                return without_mail(turn, {key: position for key, (position, _) in calls.items()})
        return None

    def _turn(
        self,
        entries: list[NewEntry],
        parts: Parts,
        then: Then,
        waits: tuple[Wait, ...] | None,
    ) -> Commit:
        expected, attempt = self._turnstile.durable, self.history.attempt
        return parts.commit(self.lease, expected, entries, then, waits=waits, attempt=attempt)

    def _new_waits(self, waits: tuple[Wait, ...]) -> tuple[Wait, ...] | None:
        return None if waits == self.known_waits else waits

    async def commit_end(
        self,
        then: Then,
        *,
        attempt: int | None = None,
        waits: tuple[Wait, ...] | None = None,
        orphans: HistoryRetention | None = None,
    ) -> Committed:
        """Write everything left together with what becomes of the run. The code has ended.

        `attempt` is the run's from now on, when it is not the one that executed. `waits` are the open
        ones of a run that suspends; None leaves the rows as they are.

        Raises:
            RunSuspended: The write failed; see `broken`.
        """
        if not await self.over():
            raise RunSuspended
        entries, self._entries = self._entries, []
        parts, self._parts = self._parts, Parts()
        new_waits = None if waits is None else self._new_waits(waits)
        turn = self._turn(entries, parts, then, new_waits)
        turn = replace(turn, orphans=orphans, attempt=attempt or turn.attempt)
        try:
            committed = await self._commit(turn, parts.unless_answered)
        except Exception as exc:
            self.break_off(exc)
            raise RunSuspended from exc
        self._turnstile.durable = committed.last_seq
        return committed

    async def over(self) -> bool:
        """Return, when no write is under way any more, whether the execution can still write.

        Its code has ended, and nothing is flushed any more but by `commit_end`.
        """
        self._is_ending = True
        while self._in_flight:
            await self._flight_over()
        return self.broken is None

    def forget_calls(self, beginning: int, release: Sequence[MessageKey]) -> None:
        """Leave of what is not written how the run began, up to seq `beginning`, without some messages.

        Nothing of the rest has left this process.
        """
        del self._entries[max(beginning - self.durable_seq, 0) :]
        self.seq = self.durable_seq + len(self._entries)
        parts, gone = self._parts, set(release)
        bound = [key for key in parts.bind if self._entries and key not in gone]
        self._parts = Parts(create=parts.create, bind=bound, first=parts.first)
        self._received.clear()

    async def reading(self, rows: Awaitable[T] | Callable[[], Awaitable[T]]) -> T:
        """Return what the store gives; when it cannot, the run is dropped and loaded again.

        Agent code never sees the store's errors: replay would not repeat them. A server that is away is
        asked again for as long as this process lives, where that is possible: the run's other branches
        may hold results that are written nowhere yet.

        Raises:
            RunSuspended: The store could not be read.
        """
        while True:
            try:
                return await (rows() if callable(rows) else rows)
            except StoreUnreachableError as exc:
                if not callable(rows) or self.broken is not None:
                    self.break_off(exc)
                    raise RunSuspended from exc
                await asyncio.sleep(ASK_AGAIN_S)
            except ActorsError as exc:
                self.break_off(exc)
                raise RunSuspended from exc

    def flush_behind(self) -> None:
        """Make durable what was recorded, beside the run: every branch waits for something outside."""
        is_new = bool(self._entries) or self._new_waits(self.waits_of(True)) is not None
        if is_new and not self._in_flight and self.broken is None:
            self._behind = start_task(
                self._flush(resting=True), name=f"flush {self.lease.run_id}", done=_is_told
            )

    def show_waits(self) -> None:
        """Make open waits, and the questions asked, durable beside the run while others in it work."""
        if self._showing is None or self._showing.done():
            self._showing = start_task(
                self._show_waits(), name=f"show {self.lease.run_id}", done=_is_told
            )

    async def _show_waits(self) -> None:
        while self.broken is None and self._new_waits(self.waits_of(False)) is not None:
            if self._in_flight:
                await self._flight_over()
            elif self._is_ending:
                return
            else:
                await self._flush()

    def break_off(self, why: BaseException | CommitOutcome) -> None:
        """Give this execution up: nothing more is written, all branches unwind."""
        if self.broken is None:
            self.broken = why
            self._turnstile.unwind(RunSuspended())

    def detach(self) -> None:
        """Tell nobody any more, as `Turnstile.detach` does; not while a write is under way."""
        if not self._in_flight:
            self._on_committed = _ignore
            self.waits_of = lambda _: ()

    @property
    def over_budget(self) -> OverBudget | None:
        """What the tree's budget has no place for, if that broke this execution off."""
        return self.broken if isinstance(self.broken, OverBudget) else None

    @property
    def lost_lease(self) -> bool:
        """Whether the shard belongs to somebody else now."""
        return isinstance(self.broken, LeaseLost | LeaseLostError)

    @property
    def is_stale(self) -> bool:
        """Whether the log went on without this execution: load it again, same attempt."""
        return isinstance(self.broken, Conflict | Missing | OutOfOrder | ConcurrentAppendError)


def _ignore(committed: Committed) -> None:
    """Nobody has to know."""


def _is_told(task: asyncio.Task[Any]) -> None:
    """A flush beside the run that failed has broken the run off already."""
    if not task.cancelled():
        task.exception()
