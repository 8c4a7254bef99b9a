"""The branches of a run as tasks: how one pauses, is let go, and is interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from actors.errors import ForeignCancellationError
from actors.runtime.replay.branches import Branch, BranchState, OpenGroups, innermost
from actors.runtime.replay.pace import Pace

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
        unwinding: The signal that ends all branches; None: the run goes on.
    """

    __slots__ = ("_groups", "moves", "on_move", "pace", "running", "unwinding", "working")

    def __init__(self, groups: OpenGroups, on_move: Callable[[], None]) -> None:
        self._groups, self.on_move = groups, on_move
        self.running = self.working = self.moves = 0
        self.unwinding: BaseException | None = None
        self.pace = Pace()

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
        """The branch works no more, and waits."""
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
        """The branch runs agent code again, out of order, because something went wrong."""
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
            branch.go, thrown, branch.thrown = False, branch.thrown, None
            if thrown is not None:
                raise thrown
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
        was, branch.state = branch.state, BranchState.CODE
        if was is BranchState.WORK:
            self.working -= 1
        if branch.flushing:
            return  # it sees that it is closed when the flush is over: a write is never cut off
        if was is BranchState.WORK and branch.task is not None:
            branch.task.cancel()
        else:
            self._let_go(branch, signal)
