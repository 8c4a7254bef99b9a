"""A branch: one line of control of a run."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from actors.runtime.groups import Group


class Doing(Enum):
    """What a branch is at."""

    NEW = auto()
    CODE = auto()
    HIT = auto()
    """Waits for its turn: its entry is in the log, or on its way there."""
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
    """One line of control: the root of a run, or a coroutine given to gather, select or scope."""

    __slots__ = (
        "begun", "closed", "coro", "doing", "ended_at", "error", "flushing", "future", "go",
        "groups", "next_index", "on_begin", "overdue", "prefix", "task", "thrown", "value",
    )  # fmt: skip

    def __init__(self, prefix: str, coro: Coroutine[Any, Any, Any] | None = None) -> None:
        self.prefix = prefix
        self.coro = coro
        self.next_index = 0
        self.doing = Doing.NEW
        self.task: asyncio.Task[Any] | None = None
        self.future: asyncio.Future[None] | None = None
        self.go = False
        self.thrown: BaseException | None = None
        self.on_begin: Callable[[], None] | None = None
        self.closed = False
        self.flushing = False
        self.overdue = False
        """It awaits something the runtime does not know, and the others go on without it."""
        self.groups: list[Group] = []
        self.begun: dict[str, str] = {}
        """Effects begun here without a result yet: position to name."""
        self.value: Any = None
        self.error: BaseException | None = None
        self.ended_at = 0

    def take_position(self) -> str:
        """Return the next position of this branch."""
        position = f"{self.prefix}{self.next_index}"
        self.next_index += 1
        return position

    @property
    def is_done(self) -> bool:
        """Whether its code has ended."""
        return self.doing is Doing.DONE


def innermost(branch: Branch) -> Branch:
    """Return the deepest open descendant, or the branch itself."""
    for group in reversed(branch.groups):
        for child in group.children:
            if not child.is_done:
                return innermost(child)
    return branch
