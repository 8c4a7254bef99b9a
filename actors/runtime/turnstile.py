"""One branch at a time: who of a run's branches goes on next, decided the same live and on replay.

The rules are docs/replay.md, "Turns". A *branch* is one line of control of a run. Agent code runs in
at most one branch at any moment; when none runs the run is quiet and `_quiet` picks what happens.
Nothing here touches a store: the log's durable end is told by `durable_upto`.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

from actors.errors import EffectOutsideScopeError, ForeignCancellationError
from actors.runtime.branch import Branch, Doing, innermost
from actors.runtime.groups import Select
from actors.runtime.tasks import start_task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from actors.runtime.groups import Group

T = TypeVar("T")

_log = logging.getLogger(__name__)

STALL_S: Final = 1.0
"""How long agent code of one branch may await something outside ctx before the others go on."""


class Turnstile:
    """Lets the branches of one run through, one at a time.

    Args:
        on_idle: Called when every branch waits for something outside and nothing is left to do.
        on_closed: Called when the code of a closed branch has ended, before anybody goes on.
    """

    def __init__(self, *, on_idle: Callable[[], None], on_closed: Callable[[Branch], None]) -> None:
        self.root: Branch | None = None
        self.durable = -1
        self.unwinding: BaseException | None = None
        self.working = 0
        """Branches that execute, record or flush: the run cannot be suspended now."""
        self.moves = 0
        """Grows whenever anybody goes on."""
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._running = 0
        self._ends = 0
        self._by_task: dict[asyncio.Task[Any] | None, Branch] = {}
        self._new: list[Branch] = []
        self._groups: list[Group] = []
        self._hits: list[tuple[int, int, Branch]] = []
        self._misses: list[Branch] = []
        self._takers: list[Branch] = []
        self._takers_together: list[Branch] = []

    def detach(self) -> None:
        """Tell nobody any more: the execution is over, and would be kept in memory by this."""
        self._on_idle = self._on_closed = _ignore

    @property
    def is_idle(self) -> bool:
        """Whether every branch waits for something outside."""
        return self._running == 0 and not self.working and self.unwinding is None

    @property
    def is_selecting(self) -> bool:
        """Whether a branch waits in a `select`, so that another may end before it."""
        return any(isinstance(group, Select) for group in self._groups)

    # --- branches -------------------------------------------------------------------------------

    def adopt_root(self, prefix: str) -> Branch:
        """Make the current task the root branch; from here on agent code runs."""
        branch = self.root = Branch(prefix)
        branch.task = asyncio.current_task()
        branch.doing = Doing.CODE
        self._by_task[branch.task] = branch
        self._running = 1
        return branch

    def end_root(self) -> None:
        """The agent's code has ended."""
        if self.root is not None:
            self.root.doing = Doing.DONE
            self._by_task.pop(self.root.task, None)

    def enter(self, verb: str) -> Branch:
        """Return the branch that calls a verb.

        Raises:
            EffectOutsideScopeError: The current task is not a branch of this run.
            asyncio.CancelledError: The branch is closed or the run cancelled.
            RunSuspended: The run is leaving memory.
        """
        branch = self._by_task.get(asyncio.current_task())
        if branch is None:
            raise EffectOutsideScopeError(verb)
        if branch.closed:
            raise asyncio.CancelledError
        if self.unwinding is not None:
            raise self.unwinding
        return branch

    def add(self, branch: Branch) -> None:
        """Add a child; it begins when the run is quiet."""
        self._new.append(branch)

    def open_group(self, group: Group) -> None:
        """A parent opened a gather, select or scope."""
        if not self._groups:
            self._watch(self.moves)
        self._groups.append(group)
        group.parent.groups.append(group)

    def close_group(self, group: Group) -> None:
        """All children have ended and the parent goes on."""
        self._groups.remove(group)
        group.parent.groups.remove(group)

    def _watch(self, moves: int) -> None:
        asyncio.get_running_loop().call_later(STALL_S, self._look_for_stall, moves)

    def _look_for_stall(self, moves: int) -> None:
        """Let the others go on when a branch awaits something that perhaps another has to give."""
        if not self._groups or self.unwinding is not None:
            return
        if moves == self.moves and self._running:
            for branch in self._by_task.values():
                if branch.doing is Doing.CODE and not branch.overdue:
                    _log.warning(
                        "a branch awaits something outside ctx; the others go on, in an order that "
                        "replay may not repeat. Use ctx verbs between branches.",
                        extra={"branch": branch.prefix},
                    )
                    branch.overdue = True
                    self._running -= 1
            self.look()
        self._watch(self.moves)

    def _stop_code(self, branch: Branch) -> None:
        """The branch has come back from agent code."""
        if branch.overdue:
            branch.overdue = False
        else:
            self._running -= 1

    # --- waiting --------------------------------------------------------------------------------

    async def turn_for(self, branch: Branch, seq: int, verb: str) -> None:
        """Return when the entry `seq` is durable and it is this branch's turn to go on."""
        heapq.heappush(self._hits, (seq, id(branch), branch))
        await self._park(branch, Doing.HIT, verb)

    def queue_turn(self, branch: Branch, seq: int) -> None:
        """As `turn_for`, in two steps: the branch is in the queue while it flushes."""
        heapq.heappush(self._hits, (seq, id(branch), branch))
        branch.doing = Doing.HIT

    def go_on_working(self, branch: Branch) -> bool:
        """Take back `queue_turn`; False when the branch was interrupted meanwhile and goes on with that."""
        if branch.doing is not Doing.HIT:
            return False
        branch.doing = Doing.WORK
        self._hits = [hit for hit in self._hits if hit[2] is not branch]
        heapq.heapify(self._hits)
        return True

    async def await_turn(self, branch: Branch, verb: str) -> None:
        """Second half of `queue_turn`."""
        self.working -= 1
        self.raise_if_interrupted(branch)
        self.look()
        await self._wait(branch, verb)

    async def take(
        self, branch: Branch, verb: str, on_turn: Callable[[], None], *, together: bool = False
    ) -> None:
        """Return after `on_turn` was called: when no recorded entry waits for its turn.

        So what is consumed is consumed by a branch that goes on with it: nobody recorded earlier can
        win against it and close it. The branch works before and after. With `together` nobody else
        could want the same: all such branches take in one go, and what they record is one flush.
        """
        branch.on_begin = on_turn
        (self._takers_together if together else self._takers).append(branch)
        await self._stop_work(branch, Doing.TAKE, verb)

    def raise_if_interrupted(self, branch: Branch) -> None:
        """Raise what a flush kept from a branch: that it was closed, or the run is unwinding."""
        if branch.closed:
            raise asyncio.CancelledError
        if self.unwinding is not None:
            self.to_code(branch)
            raise self.unwinding

    async def begin(
        self, branch: Branch, verb: str, on_begin: Callable[[], None] | None = None
    ) -> None:
        """Return when nothing recorded is waited for; the branch then works, outside its turn.

        `on_begin` is called at that moment, in the order in which the branches asked.
        """
        branch.on_begin = on_begin
        self._misses.append(branch)
        await self._park(branch, Doing.MISS, verb)

    async def stay(self, branch: Branch, verb: str) -> None:
        """Wait without end: only closing, cancelling or suspending ends it."""
        await self._park(branch, Doing.HIT, verb)

    async def wake(self, branch: Branch, verb: str) -> None:
        """Return when `woken` was called; the branch works before and after."""
        await self._stop_work(branch, Doing.WAKE, verb)

    def woken(self, branch: Branch) -> None:
        """What the branch waits for is there: it works on it."""
        if branch.doing is Doing.WAKE:
            branch.doing = Doing.WORK
            self.working += 1
            self._let_go(branch)

    async def group(self, branch: Branch, verb: str) -> None:
        """Return when the group the branch waits for lets it go on."""
        await self._park(branch, Doing.GROUP, verb)

    async def _park(self, branch: Branch, doing: Doing, verb: str) -> None:
        branch.doing = doing
        self._stop_code(branch)
        self.look()
        await self._wait(branch, verb)

    async def _stop_work(self, branch: Branch, doing: Doing, verb: str) -> None:
        branch.doing = doing
        self.working -= 1
        self.look()
        await self._wait(branch, verb)

    async def _wait(self, branch: Branch, verb: str) -> None:
        if branch.go:
            branch.go, thrown, branch.thrown = False, branch.thrown, None
            if thrown is not None:
                raise thrown
            return
        branch.future = asyncio.get_running_loop().create_future()
        try:
            await branch.future
        except asyncio.CancelledError:
            if branch.closed or self.unwinding is not None:
                raise
            self.to_code(branch)
            raise ForeignCancellationError(verb) from None
        finally:
            branch.future = None
            branch.go = False

    def to_code(self, branch: Branch) -> None:
        """The branch runs agent code again, out of its turn, because something went wrong."""
        if branch.doing is Doing.WORK:
            self.working -= 1
        if branch.doing is not Doing.CODE:
            branch.doing = Doing.CODE
            self._running += 1

    def interrupted(self, branch: Branch, verb: str, exc: BaseException) -> None:
        """Put a branch whose work failed with `exc` back into agent code, where that is raised.

        Raises:
            BaseException: For a cancellation: the signal that unwinds the run, or, when it came
                from nowhere, `ForeignCancellationError`.
        """
        self.to_code(branch)
        if isinstance(exc, asyncio.CancelledError) and not branch.closed:
            raise (self.unwinding or ForeignCancellationError(verb)) from None

    # --- letting go ------------------------------------------------------------------------------

    def _let_go(self, branch: Branch, exc: BaseException | None = None) -> None:
        self.moves += 1
        if branch.future is None:
            branch.go, branch.thrown = True, exc
        elif not branch.future.done():
            if exc is None:
                branch.future.set_result(None)
            else:
                branch.future.set_exception(exc)

    async def hold(self, branch: Branch, writing: Awaitable[T]) -> T:
        """Await a flush and keep the turn: nobody else runs agent code meanwhile."""
        branch.doing = Doing.WORK
        self.working += 1
        try:
            return await writing
        finally:
            self.working -= 1
            branch.doing = Doing.CODE
            if self.unwinding is not None:
                raise self.unwinding

    def release(self, branch: Branch) -> None:
        """Let the branch run agent code."""
        branch.doing = Doing.CODE
        self._running += 1
        self._let_go(branch)

    def durable_upto(self, seq: int) -> None:
        """The log is durable up to `seq`."""
        self.durable = max(self.durable, seq)
        self.look()

    def ended(self, branch: Branch) -> None:
        """A child's code has ended."""
        self._ends += 1
        branch.ended_at = self._ends
        branch.doing = Doing.DONE
        self._by_task.pop(branch.task, None)
        self._stop_code(branch)
        self.look()

    def look(self) -> None:
        """Something changed from outside: see whether anybody can go on."""
        if self._running == 0:
            self._quiet()

    def _quiet(self) -> None:
        """Do the first thing that applies; see docs/replay.md, "Turns"."""
        if self.unwinding is not None:
            self._unwind_step()
            return
        if self._new:
            self._start(self._new.pop(0))
            return
        for group in reversed(self._groups):
            if not group.parent.closed and group.step(self):
                return
        hits = self._hits
        while hits and (hits[0][2].closed or hits[0][2].doing is not Doing.HIT):
            heapq.heappop(hits)
        if hits and hits[0][0] <= self.durable:
            self.release(heapq.heappop(hits)[2])
            return
        if not self._begin_misses() and not (hits or self._take_next()) and not self.working:
            self._on_idle()

    def _begin_misses(self) -> bool:
        misses = [branch for branch in self._misses if branch.doing is Doing.MISS]
        self._misses.clear()
        for branch in misses:
            self._set_to_work(branch)
        return bool(misses)

    def _take_next(self) -> bool:
        together = [branch for branch in self._takers_together if branch.doing is Doing.TAKE]
        self._takers_together.clear()
        for branch in together:
            self._set_to_work(branch)
        if together:
            return True
        while self._takers:
            branch = self._takers.pop(0)
            if branch.doing is Doing.TAKE:
                self._set_to_work(branch)
                return True
        return False

    def _set_to_work(self, branch: Branch) -> None:
        branch.doing = Doing.WORK
        self.working += 1
        if branch.on_begin is not None:
            branch.on_begin()
        self._let_go(branch)

    def _start(self, branch: Branch) -> None:
        if branch.is_done:
            self._quiet()
            return
        branch.doing = Doing.CODE
        self._running += 1
        coro, branch.coro = branch.coro, None
        assert coro is not None
        branch.task = start_task(
            self._run_child(branch, coro), name=f"branch {branch.prefix}", done=_retrieve
        )
        self._by_task[branch.task] = branch

    async def _run_child(self, branch: Branch, coro: Coroutine[Any, Any, Any]) -> None:
        try:
            branch.value = await coro
        except BaseException as exc:  # noqa: BLE001 - kept as the branch's outcome, raised by its group
            branch.error = exc
        finally:
            if branch.closed:
                self._on_closed(branch)
            self.ended(branch)

    # --- closing and unwinding ---------------------------------------------------------------------

    def close(self, branch: Branch) -> None:
        """Close the innermost open descendant of `branch`, or the branch itself; called when quiet."""
        target = innermost(branch)
        target.closed = True
        self._interrupt(target, asyncio.CancelledError())

    def unwind(self, signal: BaseException) -> None:
        """End all branches, innermost first, with `signal`; ctx calls raise it from now on."""
        if self.unwinding is None:
            self.unwinding = signal
            if self._running == 0 and self.root is not None and not self.root.is_done:
                self._quiet()

    def cancel_running(self) -> None:
        """Cancel agent code that awaits something of its own, and every effect that executes."""
        for task, branch in list(self._by_task.items()):
            if branch.doing is Doing.CODE and task is not None and task is not _current():
                task.cancel()
            elif branch.doing is Doing.WORK and not branch.flushing and task is not _current():
                self._interrupt(branch, asyncio.CancelledError())

    def _unwind_step(self) -> None:
        if self.root is None or self.root.is_done or self.unwinding is None:
            return
        self._interrupt(innermost(self.root), self.unwinding)

    def _interrupt(self, branch: Branch, signal: BaseException) -> None:
        if branch.doing is Doing.NEW:
            if branch.coro is not None:
                branch.coro.close()
            branch.doing = Doing.DONE
            self._quiet()
            return
        self._running += 1
        if branch.overdue and branch.task is not None:
            branch.overdue = False
            branch.task.cancel()
            return
        was, branch.doing = branch.doing, Doing.CODE
        if was is Doing.WORK:
            self.working -= 1
        if branch.flushing:
            return  # it sees that it is closed when the flush is over: a write is never cut off
        if was is Doing.WORK and branch.task is not None:
            branch.task.cancel()
        else:
            self._let_go(branch, signal)


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _current() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _ignore(*_: object) -> None:
    """What nobody waits for any more."""
