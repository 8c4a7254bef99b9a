"""Branches of a run: lines of control, the groups that they make, and the queue of those that continue. Pure.

A child is counted when it comes and when it ends. So what its end lets happen costs the same, however many
they are. Groups are those of gather, select and scope.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol

from typing_extensions import override


class BranchState(Enum):
    """The state of a branch."""

    NEW = auto()
    CODE = auto()
    HIT = auto()
    """Goes on with an entry that is in the log, or on its way there."""
    MISS = auto()
    """Wants to begin an effect or a wait."""
    TAKE = auto()
    """Wants to consume a signal or a message that is there."""
    WORK = auto()
    """Executes an effect, or records what ended a wait."""
    WAKE = auto()
    """Waits for something from outside."""
    GROUP = auto()
    """Waits for its children."""
    DONE = auto()


class Branch:
    """A line of control: the root of a run, or a coroutine given to gather, select or scope."""

    __slots__ = (
        "closed",
        "coro",
        "error",
        "flushing",
        "future",
        "go",
        "group",
        "groups",
        "has_input",
        "next_index",
        "on_begin",
        "open_effects",
        "overdue",
        "prefix",
        "resume_seq",
        "state",
        "task",
        "thrown",
        "value",
    )

    def __init__(self, prefix: str, coro: Coroutine[Any, Any, Any] | None = None) -> None:
        self.prefix: str = prefix
        self.coro = coro
        self.next_index: int = 0
        self.state: BranchState = BranchState.NEW
        self.task: asyncio.Task[Any] | None = None
        self.future: asyncio.Future[None] | None = None
        self.go: bool = False
        self.thrown: BaseException | None = None
        self.on_begin: Callable[[], None] | None = None
        self.closed: bool = False
        self.flushing: bool = False
        self.overdue: bool = False
        """True if the branch awaits something unknown to the runtime, and the other branches go on."""
        self.resume_seq: int = -1
        """Seq of the entry that the branch continues with, if it waits for one."""
        self.has_input: bool = False
        """True if the branch continues before that entry is durable."""
        self.group: Group | None = None
        """Group whose child it is, or None for the root and a branch of its own."""
        self.groups: list[Group] = []
        """The groups that the branch has opened, the innermost last."""
        self.open_effects: dict[str, str] = {}
        """Effects begun here without a result yet: position to name."""
        self.value: Any = None
        self.error: BaseException | None = None

    @property
    def next_position(self) -> str:
        """The position that the next call takes."""
        return f"{self.prefix}{self.next_index}"

    def take_position(self) -> str:
        """Take the next position of this branch."""
        position = self.next_position
        self.next_index += 1
        return position

    def drop_code(self) -> None:
        """Drop the branch's code if it has not begun."""
        coro, self.coro = self.coro, None
        if coro is not None:
            coro.close()

    def forget_go(self) -> None:
        """Forget that the branch was let go: it was interrupted, and its next wait begins anew."""
        self.go, self.thrown = False, None

    @property
    def is_done(self) -> bool:
        """True if the branch's code has ended."""
        return self.state is BranchState.DONE


def innermost(branch: Branch) -> Branch:
    """Return the deepest open descendant, or the branch itself."""
    while True:
        open_children = (group.first_open() for group in reversed(branch.groups))
        child = next(filter(None, open_children), None)
        if child is None:
            return branch
        branch = child


class BranchControl(Protocol):
    """Lets branches go on, and closes them."""

    def release(self, branch: Branch) -> None:
        """Let the branch run agent code."""

    def close(self, branch: Branch) -> None:
        """Close the innermost open descendant of the branch, or the branch itself."""


class Selected(NamedTuple):
    """The result of `ctx.select`: the index of the branch that won, and what it returned."""

    index: int  # type: ignore[assignment]
    value: Any


class Group:
    """The children a branch opened together; the parent waits for them."""

    def __init__(self, parent: Branch) -> None:
        self.parent = parent
        self.children: list[Branch] = []
        self.is_awaited = False
        """True if its parent waits for this group."""
        self._open_count = 0
        self._ended_upto = 0
        """Number of the first children that have all ended."""
        self._failures: deque[Branch] = deque()
        """Children that failed, in the order in which they ended."""

    def add(self, child: Branch) -> None:
        """Take a child in."""
        child.group = self
        self.children.append(child)
        self._open_count += 1

    def child_ended(self, child: Branch) -> None:
        """Note that the code of a child has ended; the child has its value or its error."""
        self._open_count -= 1
        if child.error is not None and not child.closed:
            self._failures.append(child)

    def first_open(self) -> Branch | None:
        """Return the first child that has not ended."""
        while self._ended_upto < len(self.children):
            child = self.children[self._ended_upto]
            if not child.is_done:
                return child
            self._ended_upto += 1
        return None

    @property
    def failed(self) -> Branch | None:
        """The child that failed first."""
        return self._failures[0] if self._failures else None

    def step(self, scheduler: BranchControl) -> bool:
        """Do the next thing that the group has to do when the run is quiet; return False if there is none."""
        if not self.is_awaited or self.parent.state is not BranchState.GROUP:
            return False
        return self._step(scheduler)

    def _step(self, scheduler: BranchControl) -> bool:
        raise NotImplementedError

    def _close_one(self, scheduler: BranchControl) -> bool:
        """Close the next open child; return False if there is none."""
        child = self.first_open()
        if child is not None:
            scheduler.close(child)
        return child is not None

    def _let_parent_go(self, scheduler: BranchControl) -> bool:
        scheduler.release(self.parent)
        return True


class Gather(Group):
    """A group that ends when all children have ended, or with the first failure."""

    @override
    def _step(self, scheduler: BranchControl) -> bool:
        if self.failed is not None:
            return self._close_one(scheduler) or self._let_parent_go(scheduler)
        return not self._open_count and self._let_parent_go(scheduler)


class Select(Group):
    """The first child to end; the others are closed."""

    winner: Branch | None = None

    @override
    def child_ended(self, child: Branch) -> None:
        super().child_ended(child)
        if self.winner is None and not child.closed:
            self.winner = child

    @override
    def _step(self, scheduler: BranchControl) -> bool:
        if self.winner is None:
            return False
        return self._close_one(scheduler) or self._let_parent_go(scheduler)


class ScopeGroup(Group):
    """Children that come one by one; the parent waits for one of them, or for all."""

    waits_for: Branch | None = None
    to_close: Branch | None = None
    close_all = False

    def __init__(self, parent: Branch) -> None:
        super().__init__(parent)
        self.joined_branches: set[Branch] = set()
        """Children whose error the parent has seen already."""

    @property
    @override
    def failed(self) -> Branch | None:
        """The child that failed first, of those whose error the parent has not seen."""
        while self._failures and self._failures[0] in self.joined_branches:
            self._failures.popleft()
        return super().failed

    @override
    def _step(self, scheduler: BranchControl) -> bool:
        if self.to_close is not None:
            if self.to_close.is_done:
                return self._let_parent_go(scheduler)
            scheduler.close(self.to_close)
            return True
        if self.waits_for is not None:
            return self.waits_for.is_done and self._let_parent_go(scheduler)
        if self.close_all or self.failed is not None:
            return self._close_one(scheduler) or self._let_parent_go(scheduler)
        return not self._open_count and self._let_parent_go(scheduler)


class OpenGroups:
    """The groups of a run, and which of them may have something to do."""

    def __init__(self) -> None:
        self._places: dict[Group, int] = {}
        self._opened = self._select_count = 0
        self.due: list[tuple[int, Group]] = []
        """A heap of groups to check, the innermost first. A group may be in it twice, or be closed already."""

    def __bool__(self) -> bool:
        return bool(self._places)

    def open(self, group: Group) -> None:
        """Add a group as the innermost of all open groups."""
        self._opened += 1
        self._places[group] = self._opened
        self._select_count += isinstance(group, Select)
        group.parent.groups.append(group)

    def close(self, group: Group) -> None:
        """Forget a group: all its children have ended."""
        del self._places[group]
        self._select_count -= isinstance(group, Select)
        group.parent.groups.remove(group)

    def end(self, branch: Branch) -> None:
        """Note that the code of a branch has ended, or never begins."""
        branch.state = BranchState.DONE
        # Break a reference cycle that only the garbage collector would free.
        group, branch.group = branch.group, None
        if group is not None:
            group.child_ended(branch)
            self.touch(group)

    def touch(self, group: Group) -> None:
        """Mark a group as changed, so that it is checked again."""
        if (number := self._places.get(group)) is not None:
            heapq.heappush(self.due, (-number, group))

    def step(self, scheduler: BranchControl) -> bool:
        """Do the next thing that a group has to do, the innermost first; return False if there is none."""
        while self.due:
            group = self.due[0][1]
            is_open = group in self._places and not group.parent.closed
            if is_open and group.step(scheduler):
                return True
            heapq.heappop(self.due)
        return False

    @property
    def is_selecting(self) -> bool:
        """True if a branch waits in a `select`, so that another may end before it."""
        return self._select_count > 0


class BranchQueue:
    """Branches by what they want; one that does not want it any more, when it is next, is left out.

    Attributes:
        new: They have not begun, in the order in which they came.
        hits: A heap of those that go on with an entry of the log, by its seq.
    """

    __slots__ = ("_misses", "_takers", "_takers_together", "hits", "new")

    def __init__(self) -> None:
        self.new: deque[Branch] | None = None  # an empty one takes 0.7 KB, of each run
        self.hits: list[tuple[int, int, Branch]] = []
        self._misses: list[Branch] = []
        self._takers: deque[Branch] | None = None
        self._takers_together: list[Branch] = []

    def add(self, branch: Branch) -> None:
        """Queue a branch that is to begin."""
        if self.new is None:
            self.new = deque()
        self.new.append(branch)

    def hit(self, branch: Branch, seq: int, *, is_input: bool = False) -> None:
        """Queue a branch that goes on with the entry `seq`."""
        branch.resume_seq, branch.has_input = seq, is_input
        # An interrupted branch leaves its item behind, so two items may have one seq: their ids decide.
        heapq.heappush(self.hits, (seq, id(branch), branch))

    def miss(self, branch: Branch, on_begin: Callable[[], None] | None) -> None:
        """Queue a branch that begins a call; `on_begin` is called at that moment."""
        branch.on_begin = on_begin
        self._misses.append(branch)

    def take(self, branch: Branch, on_taken: Callable[[], None], *, together: bool) -> None:
        """Queue a branch that consumes an event; `on_taken` is called at that moment."""
        branch.on_begin = on_taken
        if together:
            self._takers_together.append(branch)
            return
        if self._takers is None:
            self._takers = deque()
        self._takers.append(branch)

    def next_hit(self, durable: int) -> Branch | None:
        """Remove and return the branch that continues with the first entry, if the log is durable up to it.

        An input counts at once: see `BranchScheduler.queue_resume`. Afterwards the first branch in `hits`
        does want to go on.
        """
        hits = self.hits
        while hits:
            seq, _, branch = hits[0]
            if branch.state is BranchState.HIT and branch.resume_seq == seq and not branch.closed:
                may_go = seq <= durable or branch.has_input
                return heapq.heappop(hits)[2] if may_go else None
            heapq.heappop(hits)
        return None

    def next_misses(self) -> list[Branch]:
        """Remove and return all that begin something."""
        # A branch that was interrupted since it was queued is not in this state any more.
        misses = [branch for branch in self._misses if branch.state is BranchState.MISS]
        self._misses.clear()
        return misses

    def next_takers(self) -> list[Branch]:
        """Remove and return branches that consume something: all that do so together, or else one."""
        takers = [branch for branch in self._takers_together if branch.state is BranchState.TAKE]
        self._takers_together.clear()
        while self._takers and not takers:
            branch = self._takers.popleft()
            if branch.state is BranchState.TAKE:
                takers.append(branch)
        return takers
