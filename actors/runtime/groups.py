"""gather, select and scope: children of one branch, and when their parent goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from actors.runtime.branch import Branch, Doing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.runtime.turnstile import Turnstile


class Selected(NamedTuple):
    """What `ctx.select` returns: which branch won, and what it returned."""

    index: int  # type: ignore[assignment]
    value: Any


class Group:
    """The children a branch opened together; the parent waits for them."""

    def __init__(self, parent: Branch) -> None:
        self.parent = parent
        self.children: list[Branch] = []

    def step(self, turnstile: Turnstile) -> bool:
        """Do the next thing the group has to do when the run is quiet; False when it is nothing."""
        raise NotImplementedError

    def _close_one(self, turnstile: Turnstile, losers: Sequence[Branch]) -> bool:
        """Close the next open loser; True while there is one."""
        for child in losers:
            if not child.is_done:
                turnstile.close(child)
                return True
        return False

    def _let_parent_go(self, turnstile: Turnstile) -> bool:
        turnstile.release(self.parent)
        return True

    def _first_failed(self) -> Branch | None:
        return min(filter(self._has_failed, self.children), key=_ended_at, default=None)

    def _has_failed(self, child: Branch) -> bool:
        return child.is_done and child.error is not None and not child.closed


class Gather(Group):
    """All children, or the first failure."""

    failed: Branch | None = None

    @override
    def step(self, turnstile: Turnstile) -> bool:
        """See `Group.step`."""
        if self.parent.doing is not Doing.GROUP:
            return False
        if self.failed is None:
            self.failed = self._first_failed()
        if self.failed is not None:
            return self._close_one(turnstile, self.children) or self._let_parent_go(turnstile)
        if all(child.is_done for child in self.children):
            return self._let_parent_go(turnstile)
        return False


class Select(Group):
    """The first child to end; the others are closed."""

    winner: Branch | None = None

    @override
    def step(self, turnstile: Turnstile) -> bool:
        """See `Group.step`."""
        if self.parent.doing is not Doing.GROUP:
            return False
        if self.winner is None:
            ended = [c for c in self.children if c.is_done and not c.closed]
            self.winner = min(ended, key=_ended_at, default=None)
        if self.winner is None:
            return False
        return self._close_one(turnstile, self.children) or self._let_parent_go(turnstile)


class ScopeGroup(Group):
    """Children that come one by one; the parent waits for one of them, or for all."""

    waits_for: Branch | None = None
    to_close: Branch | None = None
    close_all = False
    failed: Branch | None = None

    def __init__(self, parent: Branch) -> None:
        super().__init__(parent)
        self.joined: set[Branch] = set()
        """Children whose error the parent has seen already."""

    @override
    def _has_failed(self, child: Branch) -> bool:
        return child not in self.joined and super()._has_failed(child)

    @override
    def step(self, turnstile: Turnstile) -> bool:
        """See `Group.step`."""
        if self.parent.doing is not Doing.GROUP or self.parent.groups[-1] is not self:
            return False
        if self.to_close is not None:
            return self._close_one(turnstile, [self.to_close]) or self._let_parent_go(turnstile)
        if self.waits_for is not None:
            return self.waits_for.is_done and self._let_parent_go(turnstile)
        if self.failed is None:
            self.failed = self._first_failed()
        if self.close_all or self.failed is not None:
            return self._close_one(turnstile, self.children) or self._let_parent_go(turnstile)
        return all(child.is_done for child in self.children) and self._let_parent_go(turnstile)


def _ended_at(branch: Branch) -> int:
    return branch.ended_at
