"""Branches of a run: where each one stands, and what it changed in the vars that all began with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from actors.kernel.workflow.effects import RunStatus, WaitState


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBranch:
    """A branch.

    Attributes:
        name: Its name.
        node: The node that is next, or at which it waits or ended.
        status: Its status.
        seq: The number of its next step.
        patch: What it changed so far: ``set`` and ``unset`` of a delta.
        wait: Its wait, while `status` is WAITING.
        output: Output of a branch that ended before the join.
        error: Error of a branch that failed.
        fork: Its own branches.
    """

    name: str
    node: str
    status: RunStatus = RunStatus.RUNNING
    seq: int = 0
    patch: dict[str, Any] = field(default_factory=dict)
    wait: WaitState | None = None
    output: Any = None
    error: str | None = None
    fork: GraphFork | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the branch as stores keep it."""
        told = {
            "name": self.name,
            "node": self.node,
            "status": self.status.value,
            "seq": self.seq,
            "patch": self.patch,
            "wait": None if self.wait is None else self.wait.to_dict(),
            "output": self.output,
            "error": self.error,
            "fork": None if self.fork is None else self.fork.to_dict(),
        }
        return {name: value for name, value in told.items() if value is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GraphBranch:
        """Return the branch that `to_dict` described."""
        wait, fork = data.get("wait"), data.get("fork")
        told = {
            **data,
            "status": RunStatus(data["status"]),
            "wait": None if wait is None else WaitState.from_dict(wait),
            "fork": None if fork is None else GraphFork.from_dict(fork),
        }
        return cls(**told)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFork:
    """A point at which a run has branches.

    Attributes:
        seq: The step that made them.
        join: The node at which they meet.
        branches: In the order in which they are merged.
    """

    seq: int
    join: str
    branches: tuple[GraphBranch, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the fork as stores keep it."""
        branches = [one.to_dict() for one in self.branches]
        return {"seq": self.seq, "join": self.join, "branches": branches}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GraphFork:
        """Return the fork that `to_dict` described."""
        branches = tuple(GraphBranch.from_dict(one) for one in data["branches"])
        return cls(seq=data["seq"], join=data["join"], branches=branches)

    @property
    def has_open(self) -> bool:
        """True if a branch has not come to its end."""
        return any(self.is_open(one) for one in self.branches)

    def is_open(self, branch: GraphBranch) -> bool:
        """Return whether a branch of this fork has something left to do or to wait for."""
        arrived = branch.fork is None and branch.node == self.join
        return not branch.status.is_terminal and not (
            arrived and branch.status is RunStatus.RUNNING
        )

    def waits(self) -> Iterator[WaitState]:
        """Yield what the branches wait for, in their order."""
        for branch in self.branches:
            if branch.fork is not None:
                yield from branch.fork.waits()
            elif branch.wait is not None:
                yield branch.wait

    def key(self, branch: GraphBranch) -> str:
        """Return the name of a branch that no branch of another fork of its run has."""
        return f"{self.seq}.{branch.name}"

    def place(self, key: str) -> int | None:
        """Return the position of the branch of this key; None: it is of another fork."""
        seq, _, name = key.partition(".")
        if seq != str(self.seq):
            return None
        return next((at for at, one in enumerate(self.branches) if one.name == name), None)

    def with_branch(self, place: int, branch: GraphBranch) -> GraphFork:
        """Return the fork with another branch at a position."""
        return replace(self, branches=(*self.branches[:place], branch, *self.branches[place + 1 :]))
