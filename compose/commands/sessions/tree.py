"""The nodes of a session as a tree: lines with branch marks, for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from actors.kernel.agent.transcript import Turn

SHOWN_ID: Final = 8
"""Number of characters of a node's id in output for people."""


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node at its position in the tree.

    Attributes:
        turn: The node.
        marks: Text before the node, which draws the lines of its branch and of the branches beside it.
        is_active: True if the next run continues from the node.
        is_on_path: True if the node is on the path from the first node to the active node.
    """

    turn: Turn
    marks: str
    is_active: bool
    is_on_path: bool


def tree_of(turns: Sequence[Turn], head: str | None) -> Iterator[NodeLine]:
    """Yield the nodes, each after its parent, and branches in the order of their first nodes.

    Args:
        turns: All nodes of a session, oldest first.
        head: Id of the active node.
    """
    by_id = {turn.id: turn for turn in turns}
    below: defaultdict[str | None, list[Turn]] = defaultdict(list)
    for turn in turns:
        below[turn.parent if turn.parent in by_id else None].append(turn)
    path = set(_path_to(by_id, head))
    waiting = [*reversed(list(_placed(below[None], "")))]
    while waiting:
        turn, marks, behind = waiting.pop()
        yield NodeLine(turn, marks, turn.id == head, turn.id in path)
        waiting += reversed(list(_placed(below[turn.id], behind)))


def _placed(children: Sequence[Turn], behind: str) -> Iterator[tuple[Turn, str, str]]:
    """Yield each child with the marks before it, and the marks before its descendants."""
    if len(children) == 1:
        yield children[0], behind, behind
        return
    for number, child in enumerate(children, 1):
        is_last = number == len(children)
        yield child, behind + ("└─ " if is_last else "├─ "), behind + ("   " if is_last else "│  ")


def _path_to(by_id: dict[str, Turn], head: str | None) -> Iterator[str]:
    """Yield the ids of the nodes from `head` up to the first node."""
    while head in by_id:
        assert head is not None
        yield head
        head = by_id[head].parent
