"""The log of one run: its entries get their seq when recorded, become durable in flushes, and guard its reads.

One flush is in flight at most. What is recorded meanwhile rides with the next one. Here a run's commit
becomes durable: `RunLog.durable` is the only caller of `CommitStore.append` and, with `commit_end`, of
`CommitStore.commit`.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.agent.message import MessageKey
from actors._kernel.json import JsonValue, check_readable
from actors._kernel.runtime.commit import CONTINUE, Answered, CommitOutcome, Committed, Then
from actors._kernel.runtime.log_entry import OUTLIVED, EntryKind, NewEntry, RunLogEntry
from actors._kernel.runtime.scheduler import Lease
from actors._kernel.runtime.waits import Wait
from actors._kernel.stores.run_store import RunStore
from actors._runtime.journal.amendments import Amendments, with_answers
from actors._runtime.journal.write_set import WriteSet
from actors._runtime.loop.tasks import start_task
from actors._runtime.replay.branch_scheduler import BranchScheduler
from actors._runtime.replay.branches import Branch
from actors._runtime.replay.history import NO_PROGRESS, History
from actors.errors import ActorsError, RunSuspended, StoreRefusedError, StoreUnreachableError

T = TypeVar("T")
_log = logging.getLogger("callboard.journal")
SHOW_AFTER_S: Final = 0.1
"""Seconds after which the intent of a graph's effect is flushed while it executes, with the steps before it."""
LONG_LOG: Final = 1000
"""At so many entries, and again at as many more, a run that suspends is named in the host's log."""


class RunLog:
    """Records the entries of one execution of a run.

    Args:
        store: The store that flushes write to.
        lease: Fences every write.
        history: What the log holds so far; `last_seq` is where it ends.
        scheduler: Scheduler of branches, notified of the last durable seq.
        on_committed: Called after each commit: new inbox rows, cancel requests.
    """

    last_seq: int
    durable_seq: int

    def __init__(
        self,
        store: RunStore,
        lease: Lease,
        history: History,
        scheduler: BranchScheduler,
        *,
        on_committed: Callable[[Committed], None],
    ) -> None:
        self.lease = lease
        self.history = history
        self.last_seq = self.durable_seq = history.last_seq
        """`last_seq`: seq of the last entry, written or not. `durable_seq`: seq of the last durable entry."""
        self.base_seq: int = history.last_seq
        """Seq of the last entry that is not a step of a graph: steps are decided from the entries before."""
        self.writes: WriteSet = WriteSet(first=True)
        """The rows of the next flush. They are replaced when that flush begins."""
        self.amendments: Amendments = Amendments()
        self.break_reason: BaseException | CommitOutcome | None = None
        """The reason why nothing can be written any more. The run is dropped and loaded again."""
        self._commits, self._reads = store.commits, store.reads
        self._scheduler = scheduler
        self._on_committed = on_committed
        self._in_flight = False
        self._flush_task: asyncio.Task[Any] | None = None
        self._waits_task: asyncio.Task[Any] | None = None
        self._is_ending = False
        self.on_progress: Callable[[], None] | None = None
        """Called when progress, or the end of its turn as a suspect, is durable. None if nobody asks."""
        self._waiters: list[asyncio.Future[None]] = []
        self._branches: list[tuple[int, int, asyncio.Future[None]]] = []
        """A heap of the branches that wait for a flush under way, by the entry they wait for."""
        self.waits_of: Callable[[bool], tuple[Wait, ...] | None] = lambda _: ()
        """Returns the run's open asks, joins and approvals, or None to leave the rows as they are. The argument
        says whether the run is idle."""
        self.known_waits: tuple[Wait, ...] | None = ()
        """The waits that are rows, or None if an execution that was broken off may have left some."""

    def record(self, kind: EntryKind, position: str, payload: dict[str, JsonValue]) -> int:
        """Put an entry at the end of the log, in memory, and return its seq."""
        self.writes.entries.append(NewEntry(kind, position, payload))
        self.last_seq += 1
        if kind is not EntryKind.GRAPH_STEP:
            self.base_seq = self.last_seq
        return self.last_seq

    async def durable_unless_refused(
        self, branch: Branch, position: str, refusal: Callable[[str], dict[str, JsonValue]]
    ) -> dict[str, JsonValue] | None:
        """Wait until all is durable; return what `refusal(limit)` gave if the call at `position` was refused.

        Its own entry has become that refusal, so nothing else is disturbed.
        """
        self.amendments.refusable[position] = refusal
        try:
            await self.durable(branch, self.last_seq)
        finally:
            del self.amendments.refusable[position]
        return self.amendments.refusals.pop(position, None)

    async def durable(self, branch: Branch, seq: int) -> None:
        """Wait until the log is durable up to `seq`. Meanwhile the branch counts as working.

        Raises:
            RunSuspended: The write failed in a way that only loading the run again can mend.
        """
        branch.flushing = True
        try:
            while self.durable_seq < seq:
                if self.break_reason is not None:
                    raise RunSuspended
                if self._in_flight:
                    await self._await_durable(seq)
                else:
                    await self._flush()
        finally:
            branch.flushing = False

    async def _await_durable(self, seq: int) -> None:
        """Return when the log is durable up to `seq`, or when the caller has to flush."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The id decides between branches that wait for the same entry: futures cannot be compared.
        heapq.heappush(self._branches, (seq, id(waiter), waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            self._let_branches_go()  # this branch may have been the one that had to flush
            raise

    def _let_branches_go(self) -> None:
        """Wake the waiters whose entries are durable, and one more waiter, which then flushes.

        If nothing can be written any more, wake all. Other waiters sleep until their own entries are durable.
        """
        while self._branches and not self._in_flight:
            seq, _, waiter = heapq.heappop(self._branches)
            if waiter.done():
                continue
            self._scheduler.live.pace.let(waiter)
            if seq > self.durable_seq and self.break_reason is None:
                return

    async def _flush(self, *, idle: bool = False) -> None:
        if self._in_flight or self.break_reason is not None:
            return  # another task flushed before this task had its first step
        writes, waits = self.writes, self._new_waits(self.waits_of(idle))
        entries = writes.entries
        self._in_flight = True
        try:
            if waits is not None or writes.is_commit:
                # Before the write: what a branch records meanwhile rides with the next flush, and is not lost
                # with this set.
                self.writes = WriteSet()
                await self._commit(writes, CONTINUE, waits)
            else:
                # Entries alone change no other row, and an append is the cheaper statement.
                writes.entries = []  # of a set that has nothing else
                expected = self.durable_seq
                await self._commits.append(self.lease, entries, expected_seq=expected)
            self.durable_seq += len(entries)
            # A run with such an entry is no suspect, or its turn is over.
            if self.on_progress is not None and any(
                entry.kind not in NO_PROGRESS or entry.payload.get("reason") == OUTLIVED
                for entry in entries
            ):
                self.on_progress()
        except RunSuspended:
            raise
        # The store may have written or not, and only it can tell: the run is loaded again.
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
            if self._branches:
                self._let_branches_go()
        self._scheduler.durable_upto(self.durable_seq)

    async def _await_flight(self) -> None:
        """Return when the flush that is under way has ended, well or not."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def _commit(
        self,
        writes: WriteSet,
        then: Then,
        waits: tuple[Wait, ...] | None,
        *,
        attempt: int | None = None,
        orphan_policy: HistoryRetention | None = None,
    ) -> Committed:
        attempt = attempt or self.history.attempt
        commit = writes.commit(
            self.lease,
            self.durable_seq,
            then,
            waits=waits,
            known_waits=self.known_waits,
            attempt=attempt,
            orphan_policy=orphan_policy,
        )
        # The store refuses a part at a time, and nothing of the commit is written then: try again without it.
        while True:
            outcome = await self._commits.commit(commit)
            if isinstance(outcome, Committed):
                break
            if isinstance(outcome, Answered):
                answers = await self._reads.answers(self.lease.run_id)
                commit = with_answers(commit, writes.unless_answered, answers)
            elif (smaller_commit := self.amendments.without_refused(commit, outcome)) is not None:
                commit = smaller_commit
            else:
                break
        if self.amendments.received_messages:
            for key in commit.bind:
                self.amendments.received_messages.pop(key, None)
        if not isinstance(outcome, Committed):
            self.break_off(outcome)
            raise RunSuspended
        if waits is not None:
            self.known_waits = waits
        self._on_committed(outcome)
        return outcome

    def _new_waits(self, waits: tuple[Wait, ...] | None) -> tuple[Wait, ...] | None:
        return None if waits == self.known_waits else waits

    async def commit_end(
        self,
        then: Then,
        *,
        attempt: int | None = None,
        waits: tuple[Wait, ...] | None = None,
        orphan_policy: HistoryRetention | None = None,
    ) -> Committed:
        """Write everything left together with what becomes of the run. The code has ended.

        `attempt` is the run's from now on, when it is not the one that executed. `waits` are the open
        ones of a run that suspends; None leaves the rows as they are.

        Raises:
            RunSuspended: The write failed; see `break_reason`.
        """
        if not await self.finish_writes():
            raise RunSuspended
        writes, self.writes = self.writes, WriteSet()
        new_waits = None if waits is None else self._new_waits(waits)
        try:
            committed = await self._commit(
                writes, then, new_waits, attempt=attempt, orphan_policy=orphan_policy
            )
        # As in `_flush`: whatever was raised, only the store can tell whether the end was written.
        except Exception as exc:
            self.break_off(exc)
            raise RunSuspended from exc
        self.durable_seq = committed.last_seq
        return committed

    async def finish_writes(self) -> bool:
        """Return, when no write is under way any more, whether the execution can still write.

        Its code has ended, and nothing is flushed any more but by `commit_end`.
        """
        # Before the wait: a flush that began beside the run now would write behind its terminal entry.
        self._is_ending = True
        while self._in_flight:
            await self._await_flight()
        return self.break_reason is None

    def forget_calls(self, beginning: int, release: Sequence[MessageKey]) -> None:
        """Drop what is not written, but for how the run began, up to seq `beginning`, without some messages.

        Nothing of the other entries has left this process.
        """
        writes, released_keys = self.writes, set(release)
        entries = writes.entries[: max(beginning - self.durable_seq, 0)]
        self.last_seq = self.durable_seq + len(entries)
        bound_keys = [key for key in writes.bind if entries and key not in released_keys]
        self.writes = WriteSet(
            entries,
            writes.create,
            bound_keys,
            facts=writes.facts,
            head=writes.head,
            first=writes.first,
        )
        self.amendments.received_messages.clear()

    def flush_behind(self, *, idle: bool = True) -> None:
        """Make durable what was recorded, beside the run: every branch waits for something outside.

        Without `idle` an effect of the run executes meanwhile.
        """
        is_new = bool(self.writes.entries) or self._new_waits(self.waits_of(idle)) is not None
        if is_new and not (self._in_flight or self._is_ending) and self.break_reason is None:
            self._flush_task = start_task(
                self._flush(idle=idle), name=f"flush {self.lease.run_id}", done=_ignore_failure
            )

    def show_waits(self) -> None:
        """Make open waits, and the questions asked, durable beside the run while others in it work."""
        if self._waits_task is None or self._waits_task.done():
            self._waits_task = start_task(
                self._show_waits(), name=f"show {self.lease.run_id}", done=_ignore_failure
            )

    async def _show_waits(self) -> None:
        while self.break_reason is None and self._new_waits(self.waits_of(False)) is not None:
            if self._in_flight:
                await self._await_flight()
            elif self._is_ending:
                return
            else:
                await self._flush()

    def break_off(self, reason: BaseException | CommitOutcome) -> None:
        """Give up this execution: nothing more is written, and all branches unwind."""
        # The first reason counts: an error of the unwinding branches would hide it.
        if self.break_reason is None:
            self.break_reason = reason
            self._let_branches_go()
            self._scheduler.unwind(RunSuspended())

    def detach(self) -> None:
        """Drop the callbacks, as `BranchScheduler.detach` does, unless a write is under way."""
        self.on_progress = None
        if not self._in_flight:
            self._on_committed = _ignore
            self.waits_of = lambda _: ()


def warn_of_length(log: RunLog, loaded_entries: Sequence[RunLogEntry]) -> None:
    """Warn of a log that costs at every wake, when it is a thousand entries longer than `loaded_entries`."""
    count = log.durable_seq + 1 - (loaded_entries[0].seq if loaded_entries else 0)
    if count // LONG_LOG > len(loaded_entries) // LONG_LOG:
        facts = {"agent": str(log.lease.agent_id), "run": log.lease.run_id, "entries": count}
        _log.warning(
            "a run's log is long, and each wake replays all of it: let its code go on by "
            "ctx.continue_as_new, which begins an empty one",
            extra=facts,
        )


def _ignore(committed: Committed) -> None:
    """Do nothing: the callback of a log that is detached."""


def _ignore_failure(task: asyncio.Task[Any]) -> None:
    """Take the error of a flush beside the run, which has broken the run off already."""
    # Else asyncio logs an exception that was never retrieved.
    if not task.cancelled():
        task.exception()


async def flush_if_slow(log: RunLog, part: Awaitable[T]) -> T:
    """Await a part of an effect. If it takes `SHOW_AFTER_S`, call `flush_behind` meanwhile.

    The timer is made in the loop's next turn, so what waits for nothing needs none.
    """
    loop = asyncio.get_running_loop()
    handle: asyncio.Handle

    def begin() -> None:
        nonlocal handle
        handle = loop.call_later(SHOW_AFTER_S, partial(log.flush_behind, idle=False))

    handle = loop.call_soon(begin)
    try:
        return await part
    finally:
        handle.cancel()


ASK_AGAIN_S: Final = 1.0
"""Pause before a server that gave no answer within its limit is asked again."""


async def reading(log: RunLog, rows: Callable[[], Awaitable[T]]) -> T:
    """Return the store's rows. If it fails, drop the run from memory, so that it is loaded again.

    Agent code never sees the store's errors, because replay would not repeat them. A server that does not
    answer is asked again for as long as this process lives, because the run's other branches may hold
    results that are not durable yet.

    Raises:
        RunSuspended: The store could not be read.
    """
    while True:
        try:
            return await rows()
        except ActorsError as exc:
            if log.break_reason is not None or not isinstance(exc, StoreUnreachableError):
                log.break_off(exc)
                raise RunSuspended from exc
        await asyncio.sleep(ASK_AGAIN_S)


def refuse_unreadable(log: RunLog, value: object, what: str) -> None:
    """Drop the run from memory if a value that its code would get cannot be decoded: see `Setbacks`.

    Raises:
        RunSuspended: It cannot.
    """
    try:
        check_readable(value, what)
    except StoreRefusedError as exc:
        log.break_off(exc)
        raise RunSuspended from exc
