"""The scheduler of a run's branches. It runs one at a time, in an order that is the same live and on replay.

The rules are docs/replay.md, "Order". A *branch* is one line of control of a run. Agent code runs in at most
one branch at any moment; when none runs the run is quiet and `_quiet` picks what happens. Nothing here uses a
store: `durable_upto` passes in the log's durable end.

`LiveBranches` has the branches as tasks: how one pauses, is let go, and is interrupted. `Pace` limits those
that continue before the event loop gets its turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from actors._runtime.loop.tasks import start_task
from actors._runtime.loop.timers import has_time_limit
from actors._runtime.replay.branches import (
    Branch,
    BranchQueue,
    BranchState,
    Group,
    OpenGroups,
    innermost,
)
from actors.errors import EffectOutsideScopeError, ForeignCancellationError

_log = logging.getLogger("callboard.replay")

_WAITING: Final = (BranchState.WAKE, BranchState.GROUP)
STALL_S: Final = 1.0
"""Seconds that the code of one branch may await something outside ctx before other branches continue."""


class BranchScheduler:
    """Runs the branches of one run, one at a time.

    Args:
        durable: The last durable seq of the log.
        on_idle: Called when every branch waits for something outside and nothing is left to do.
        on_move: Called when a branch continues.
        on_closed: Called when the code of a closed branch has ended, before any branch continues.

    Attributes:
        root: The first branch, or None before it begins.
        groups: The open groups.
        live: The branches that do something, and their common end.
    """

    def __init__(
        self,
        *,
        durable: int = -1,
        on_idle: Callable[[], None],
        on_move: Callable[[], None],
        on_closed: Callable[[Branch], None],
    ) -> None:
        self.root: Branch | None = None
        self.groups: OpenGroups = OpenGroups()
        self.live: LiveBranches = LiveBranches(self.groups, on_move)
        self._durable = durable
        self._on_idle, self._on_closed = on_idle, on_closed
        self._by_task: dict[asyncio.Task[Any] | None, Branch] = {}
        self._queue = BranchQueue()
        self._stall_watch: asyncio.TimerHandle | None = None

    def detach(self) -> None:
        """Drop all callbacks: the execution is over, and they would keep it in memory."""
        self._on_idle = self.live.on_move = self._on_closed = _ignore
        if self._stall_watch is not None:
            self._stall_watch.cancel()
        if (signal := self.live.unwinding) is not None:
            signal.__traceback__ = None  # its frames hold all there is of the execution

    @property
    def is_idle(self) -> bool:
        """True if every branch waits for something outside the run."""
        return self.live.running == 0 and not self.live.working and self.live.unwinding is None

    def adopt_root(self, prefix: str) -> Branch:
        """Make the current task the root branch; from here on agent code runs."""
        branch = self.root = Branch(prefix)
        branch.task = asyncio.current_task()
        self.live.enter_code(branch)
        self._by_task[branch.task] = branch
        return branch

    def end_root(self) -> None:
        """Note that the agent's code has ended. Branches that it left behind end, too."""
        if self.root is not None:
            self.root.state = BranchState.DONE
            self._by_task.pop(self.root.task, None)
        for branch in self._queue.new or ():
            branch.drop_code()
        for task, branch in self._by_task.items():
            # A write is never cut off: a branch that flushes sees the end when the flush is over.
            if task is not None and not branch.flushing:
                task.cancel()

    def enter(self, verb: str) -> Branch:
        """Return the branch that calls a verb.

        Raises:
            EffectOutsideScopeError: The current task is not a branch of this run.
            asyncio.CancelledError: The branch is closed or the run cancelled.
            RunSuspended: The run is being evicted from memory.
        """
        branch = self._by_task.get(_current())
        if branch is None:
            raise EffectOutsideScopeError(verb)
        if branch.closed:
            raise asyncio.CancelledError
        if self.live.unwinding is not None:
            raise self.live.unwinding
        return branch

    def add(self, group: Group, branch: Branch) -> None:
        """Add a child; it begins when the run is quiet."""
        group.add(branch)
        self._queue.add(branch)

    def open_group(self, group: Group) -> None:
        """Add a gather, select or scope that a branch opened."""
        self.groups.open(group)
        if self._stall_watch is None:
            self._watch()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._stall_watch = loop.call_later(STALL_S, self._check_stall, self.live.moves)

    def _check_stall(self, moves: int) -> None:
        """Let other branches continue if a branch awaits something that another one may have to provide."""
        self._stall_watch = None
        if not self.groups or self.live.unwinding is not None:
            return
        if moves == self.live.moves and self.live.running:
            for branch in self._by_task.values():
                if branch.state is BranchState.CODE and not (branch.overdue or branch.flushing):
                    _log.warning(
                        "a branch awaits something outside ctx; the others go on, in an order that "
                        "replay may not repeat. Use ctx verbs between branches.",
                        extra={"branch": branch.prefix},
                    )
                    branch.overdue = True
                    self.live.running -= 1
            self._resume_next()
        self._watch()

    async def resume_at(self, branch: Branch, seq: int, verb: str) -> None:
        """Return when the entry `seq` is durable and the branch is next to go on."""
        live, queue = self.live, self._queue
        has_others = queue.new or self.groups or queue.hits or live.running > 1
        is_next = not has_others and seq <= self._durable and live.unwinding is None
        if is_next and live.pace.may_go():  # alone, as in most of a replay
            live.moves += 1
            return
        queue.hit(branch, seq)
        await self._park(branch, BranchState.HIT, verb)

    def queue_resume(self, branch: Branch, seq: int, *, is_input: bool = False) -> None:
        """As `resume_at`, in two steps: the branch is in the queue while it flushes.

        An input is what the run was given, and is given again, or something instead of it, when a crash
        keeps the entry from the log: it has to be durable before anything outside is touched. A branch
        that is alone goes on with it at once.
        """
        self._queue.hit(branch, seq, is_input=is_input and not self.groups)
        branch.state = BranchState.HIT

    def go_on_working(self, branch: Branch) -> bool:
        """Take back `queue_resume`; return False if the branch was interrupted, and goes on with that."""
        if branch.state is not BranchState.HIT:
            return False
        branch.state, branch.resume_seq = BranchState.WORK, -1
        return True

    async def await_resume(self, branch: Branch, verb: str) -> None:
        """Wait until the branch that `queue_resume` has queued is next to go on."""
        self.live.leave_work(branch, branch.state)
        self.raise_if_interrupted(branch)
        self._resume_next()
        await self.live.wait(branch, verb)

    async def take(
        self, branch: Branch, verb: str, on_taken: Callable[[], None], *, together: bool = False
    ) -> None:
        """Return after `on_taken` was called: when no recorded entry waits for its branch.

        So the branch that consumes it also continues with it: no branch recorded earlier can
        win against it and close it. The branch works before and after. With `together` nobody else
        could want the same: all such branches take in one go, and what they record is one flush.
        """
        self._queue.take(branch, on_taken, together=together)
        await self._stop_work(branch, BranchState.TAKE, verb)

    def raise_if_interrupted(self, branch: Branch) -> None:
        """Raise what a flush kept from a branch: that it was closed, or the run is unwinding."""
        if branch.closed or self.live.unwinding is not None:
            branch.forget_go()
            interruption = asyncio.CancelledError()
            self.live.interrupted(branch, "", interruption)
            raise interruption

    async def begin(
        self, branch: Branch, verb: str, on_begin: Callable[[], None] | None = None
    ) -> None:
        """Return when nothing recorded is waited for; the branch then works, beside agent code.

        `on_begin` is called at that moment, in the order in which the branches asked.
        """
        self._queue.miss(branch, on_begin)
        await self._park(branch, BranchState.MISS, verb)

    async def stay(self, branch: Branch, verb: str) -> None:
        """Wait without end: only closing, cancelling or suspending ends it."""
        await self._park(branch, BranchState.HIT, verb)

    async def wake(self, branch: Branch, verb: str) -> None:
        """Return when `woken` was called; the branch works before and after."""
        await self._stop_work(branch, BranchState.WAKE, verb)

    def woken(self, branch: Branch) -> None:
        """Continue a branch whose awaited event has happened: it works on it."""
        if branch.state is BranchState.WAKE:
            self.live.set_to_work(branch)

    async def group(self, group: Group, verb: str) -> None:
        """Return when the group lets its parent go on."""
        group.is_awaited = True
        self.groups.touch(group)
        try:
            await self._park(group.parent, BranchState.GROUP, verb)
        finally:
            group.is_awaited = False

    async def _park(self, branch: Branch, state: BranchState, verb: str) -> None:
        self.live.leave_code(branch, state)
        self._resume_next()
        await self.live.wait(branch, verb)

    async def _stop_work(self, branch: Branch, state: BranchState, verb: str) -> None:
        self.live.leave_work(branch, state)
        self._resume_next()
        await self.live.wait(branch, verb)

    def durable_upto(self, seq: int) -> None:
        """Note that the log is durable up to `seq`."""
        self._durable = max(self._durable, seq)
        if self.root is not None:  # else the code is not called yet, and nobody waits
            self._resume_next()

    def _ended(self, branch: Branch) -> None:
        """Note that a child's code has ended."""
        self._by_task.pop(branch.task, None)
        self.live.leave_code(branch, BranchState.DONE)
        self.groups.end(branch)
        self._resume_next()

    def _resume_next(self) -> None:
        """Let a ready branch continue after a change from outside."""
        while self.live.running == 0 and self._quiet():
            pass  # a branch that had not begun has ended: no branch runs yet

    def _quiet(self) -> bool:
        """Do the first thing that applies (docs/replay.md, "Order"); return False if no branch goes on."""
        live, queue = self.live, self._queue
        if live.unwinding is not None:
            if self.root is None or self.root.is_done:
                return False
            live.interrupt(innermost(self.root), live.unwinding)
            return True
        if queue.new:
            self._start(queue.new.popleft())
            return True
        if self.groups.due and self.groups.step(live):
            return True
        if queue.hits and (branch := queue.next_hit(self._durable)) is not None:
            live.release(branch)
            return True
        # A branch that would consume a signal or a message waits for all recorded entries: one of them may
        # close it, and what it had consumed would be lost.
        beginners = queue.next_misses() or (not queue.hits and queue.next_takers())
        for branch in beginners or ():
            live.set_to_work(branch)
        if not (beginners or queue.hits or live.working):
            self._on_idle()
        return False

    def _start(self, branch: Branch) -> None:
        if branch.is_done:
            return
        self.live.enter_code(branch)
        branch.task = start_task(
            self._run_child(branch), name=f"branch {branch.prefix}", done=self._after_child
        )
        self._by_task[branch.task] = branch

    async def _run_child(self, branch: Branch) -> None:
        coro, branch.coro = branch.coro, None
        assert coro is not None
        try:
            branch.value = await coro
        except BaseException as exc:  # noqa: BLE001 - kept as the branch's outcome, raised by its group
            # A traceback that is never shown would keep the execution in memory: see `detach`.
            branch.error = exc.with_traceback(None) if branch.closed else exc
        finally:
            if branch.closed:
                self._on_closed(branch)
            self._ended(branch)

    def _after_child(self, task: asyncio.Task[Any]) -> None:
        branch = self._by_task.get(task)
        if branch is not None:  # cancelled before its first step: none of its code ran
            branch.drop_code()
            branch.error = asyncio.CancelledError()
            self._ended(branch)

    def unwind(self, signal: BaseException) -> None:
        """End all branches, innermost first, with `signal`; ctx calls raise it from now on."""
        if self.live.unwinding is None:
            self.live.unwinding = signal
            self._resume_next()

    def refuse_time_limit(self) -> bool:
        """Raise `ForeignCancellationError` in a branch that waits within `asyncio.timeout`, if there is one.

        To be called before the run is evicted, which would lose the limit. Returns False if there is none.
        """
        for task, branch in self._by_task.items():
            if task is not None and branch.state in _WAITING and has_time_limit(task):
                # As the limit itself does when it is over.
                self.live.interrupt(branch, asyncio.CancelledError())
                return True
        return False

    def cancel_running(self) -> None:
        """Cancel agent code that awaits something of its own, and every effect that executes."""
        for task, branch in list(self._by_task.items()):
            if branch.state is BranchState.CODE and task is not None and task is not _current():
                task.cancel()
            elif (
                branch.state is BranchState.WORK and not branch.flushing and task is not _current()
            ):
                self.live.interrupt(branch, asyncio.CancelledError())


def _current() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _ignore(*_: object) -> None:
    """Do nothing: the callback of an event that no branch waits for any more."""


T = TypeVar("T")


class LiveBranches:
    """Resumes branches one by one, and counts those that do something.

    Args:
        groups: Notified of branches that end before they began.
        on_move: Called when any branch continues.

    Attributes:
        running: Number of branches that run agent code and await nothing that is unknown to the runtime.
        working: Number of branches that execute, record or flush: the run cannot be suspended now.
        moves: Grows whenever any branch continues.
        unwinding: The signal that ends all branches, or None while the run goes on.
    """

    moves: int
    on_move: Callable[[], None]
    running: int
    working: int

    __slots__ = ("_groups", "moves", "on_move", "pace", "running", "unwinding", "working")

    def __init__(self, groups: OpenGroups, on_move: Callable[[], None]) -> None:
        self._groups, self.on_move = groups, on_move
        self.running = self.working = self.moves = 0
        self.unwinding: BaseException | None = None
        self.pace: Pace = Pace()

    def enter_code(self, branch: Branch) -> None:
        """Note that the branch begins to run agent code."""
        self.moves += 1
        branch.state = BranchState.CODE
        self.running += 1

    def leave_code(self, branch: Branch, state: BranchState) -> None:
        """Note that the branch has left agent code: it waits, or has ended."""
        branch.state = state
        if branch.overdue:
            branch.overdue = False
        else:
            self.running -= 1

    def leave_work(self, branch: Branch, state: BranchState) -> None:
        """Note that the branch works no more, and waits."""
        branch.state = state
        self.working -= 1

    def release(self, branch: Branch) -> None:
        """Let the branch run agent code."""
        branch.state = BranchState.CODE
        self.running += 1
        self._let_go(branch)

    def set_to_work(self, branch: Branch) -> None:
        """Let the branch work, beside agent code of others."""
        branch.state = BranchState.WORK
        self.working += 1
        if branch.on_begin is not None:
            on_begin, branch.on_begin = branch.on_begin, None  # it may hold the branch
            on_begin()
        self._let_go(branch)

    def _to_code(self, branch: Branch) -> None:
        """Note that the branch runs agent code again, out of order, because something went wrong."""
        if branch.state is BranchState.WORK:
            self.working -= 1
        if branch.state is not BranchState.CODE:
            branch.state = BranchState.CODE
            self.running += 1

    async def wait(self, branch: Branch, verb: str) -> None:
        """Return when the branch is let go, or was since it waited last.

        Raises:
            ForeignCancellationError: It was cancelled from nowhere.
            BaseException: What it was interrupted with.
        """
        if branch.go:
            branch.go, interruption, branch.thrown = False, branch.thrown, None
            if interruption is not None:
                raise interruption
            if self.pace.may_go():
                return
            future = self.pace.hold()
        else:
            future = branch.future = asyncio.get_running_loop().create_future()
        try:
            await future
        except asyncio.CancelledError:
            branch.forget_go()
            if branch.closed or self.unwinding is not None:
                raise
            self._to_code(branch)
            raise ForeignCancellationError(verb) from None
        finally:
            branch.future = None

    def _let_go(self, branch: Branch, exc: BaseException | None = None) -> None:
        """Let the branch go on from where it waits, or from its next wait.

        It is let go twice before its first step when what it took is durable by then: see
        `BranchScheduler.take`.
        """
        self.moves += 1
        self.on_move()
        future, branch.future = branch.future, None
        if future is None:
            branch.go, branch.thrown = True, exc
        else:
            self.pace.let(future, exc)

    async def hold(self, branch: Branch, writing: Awaitable[T]) -> T:
        """Await a flush in agent code: no other branch runs any meanwhile."""
        branch.state = BranchState.WORK
        self.working += 1
        try:
            return await writing
        finally:
            self.leave_work(branch, BranchState.CODE)
            if self.unwinding is not None:
                raise self.unwinding

    def interrupted(self, branch: Branch, verb: str, exc: BaseException) -> None:
        """Put a branch whose work failed with `exc` back into agent code, where that is raised.

        Raises:
            BaseException: For a cancellation: the signal that unwinds the run, or, when it came
                from nowhere, `ForeignCancellationError`.
        """
        self._to_code(branch)
        if isinstance(exc, asyncio.CancelledError) and not branch.closed:
            raise (self.unwinding or ForeignCancellationError(verb)) from None

    def close(self, branch: Branch) -> None:
        """Close the innermost open descendant of `branch`, or the branch itself; called when quiet."""
        target = innermost(branch)
        target.closed = True
        self.interrupt(target, asyncio.CancelledError())

    def interrupt(self, branch: Branch, signal: BaseException) -> None:
        """Raise `signal` in the branch's code. If the code has not started, it never starts."""
        if branch.state is BranchState.NEW:
            branch.drop_code()
            self._groups.end(branch)
            return
        self.running += 1
        if branch.overdue and branch.task is not None:
            branch.overdue = False
            branch.task.cancel()
            return
        previous_state, branch.state = branch.state, BranchState.CODE
        if previous_state is BranchState.WORK:
            self.working -= 1
        if branch.flushing:
            return  # it sees that it is closed when the flush is over: a write is never cut off
        if previous_state is BranchState.WORK and branch.task is not None:
            branch.task.cancel()
        else:
            self._let_go(branch, signal)


MOVES: Final = 100
"""Number of branches that continue between two passes of the event loop."""


class Pace:
    """The order in which branches continue. After every `MOVES` of them the other tasks of the loop run."""

    def __init__(self) -> None:
        self._left = MOVES
        self._held: list[tuple[asyncio.Future[None], BaseException | None]] = []

    def let(self, future: asyncio.Future[None], exc: BaseException | None = None) -> None:
        """Resume the branch that awaits `future`, with an error if one is given."""
        if self.may_go():
            _settle(future, exc)
        else:
            self._held.append((future, exc))

    def hold(self) -> asyncio.Future[None]:
        """Return the future that a branch awaits if it may not go on at once."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held.append((future, None))
        return future

    def may_go(self) -> bool:
        """Return True if a branch may continue at once, and count it."""
        if not self._left:
            return False
        self._left -= 1
        if not self._left:
            asyncio.get_running_loop().call_soon(self._begin_again)
        return True

    def _begin_again(self) -> None:
        self._left = MOVES
        batch, self._held = self._held[:MOVES], self._held[MOVES:]
        for future, exc in batch:
            self.let(future, exc)


def _settle(future: asyncio.Future[None], exc: BaseException | None) -> None:
    if future.done():
        return
    if exc is None:
        future.set_result(None)
    else:
        future.set_exception(exc)
