"""Branches of the model: lines of control, each a stack of generators, and the groups they wait for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.model.history import Record
    from tests.model.program import Code


class CancelledError(BaseException):
    """Raised in the code of a closed branch; named as asyncio's."""


@dataclass(eq=False, slots=True)
class Group:
    """The condition that a parent waits for.

    Attributes: kind: ``gather``, ``select``, ``scope`` (its end), ``join`` or ``cancel``. children:
    In the order in which they were given or started. child: The child of ``join`` and ``cancel``.
    error: Raised by the body of a scope. value: Returned by the body of a scope. decider: The child
    whose end or failure decided it. joined: Children whose outcome the parent has read.
    """

    kind: str
    position: str
    children: list[Branch] = field(default_factory=list)
    child: Branch | None = None
    error: BaseException | None = None
    value: Any = None
    decider: Branch | None = None
    joined: list[Branch] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Wait:
    """The reason why a branch does not run.

    Attributes: kind: ``hit`` (its entry is recorded), ``miss`` (is about to start), ``out`` (waits
    for an event), ``group`` or ``stay`` (for ever). seq: The awaited entry. plan: The start of a
    miss: verb and its data.
    """

    kind: str
    seq: int = -1
    plan: tuple[Any, ...] = ()
    position: str = ""
    record: Record | None = None
    group: Group | None = None


@dataclass(eq=False, slots=True)
class Branch:
    """One line of control.

    Attributes:
        stack: Generators, innermost last; with each the scope that it is the body of.
        begun: Positions of effects begun here without a result, with their verb.
        ended: The how-many-th branch to end; 0 while open.
    """

    prefix: str
    stack: list[tuple[Code, Group | None]]
    calls: int = 0
    wait: Wait | None = None
    begun: dict[str, str] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    closed: bool = False
    ended: int = 0
    value: Any = None
    error: BaseException | None = None

    def take_position(self) -> str:
        """Return the next position here."""
        self.calls += 1
        return f"{self.prefix}{self.calls - 1}"


def innermost_open(branch: Branch) -> Branch:
    """Return the branch that has to be closed first before `branch` can be."""
    for group in reversed(branch.groups):
        for child in group.children:
            if not child.ended:
                return innermost_open(child)
    return branch
