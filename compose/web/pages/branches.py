"""Branches of a conversation: the alternatives to a node, and the last node of each branch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from actors.kernel.agent.transcript import NO_CUT, Turn
from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.run_store import RunStore

MOST: Final = 500
"""Maximum number of nodes that are read to find branches."""


@dataclass(frozen=True, slots=True)
class Fork:
    """The position of a node among the nodes with the same parent.

    Attributes:
        number: The node's number among them, from 1.
        count: The number of these nodes.
        before: The last node of the previous branch; None if the node is the first.
        behind: The last node of the next branch; None if the node is the last.
    """

    number: int
    count: int
    before: str | None
    behind: str | None


async def forks_of(
    store: RunStore, agent: AgentId, shown: Sequence[Turn], before: Turn | None
) -> dict[str, Fork]:
    """Return the forks of a part of the active path, by the node on the path.

    Args:
        store: The store.
        agent: The session's agent.
        shown: The part, oldest first.
        before: The node before the part; None if the part starts the path.
    """
    if not shown:
        return {}
    transcripts = store.transcripts
    infos = await transcripts.sessions(agent)
    all_turns = next((one.turns for one in infos if one.name == agent.key), 0)
    if all_turns == await transcripts.count(agent, agent.key):
        return {}  # all nodes are on the path
    begin = NO_CUT if before is None else before.ordinal
    found = await transcripts.page(agent, agent.key, limit=MOST, after=begin, branches=True)
    on_path = {turn.id for turn in shown}
    turns = await store.sessions.nodes(agent, [turn.id for turn in found])
    return forks_among(turns, on_path)


def forks_among(turns: Sequence[Turn], on_path: set[str]) -> dict[str, Fork]:
    """Return the forks among these turns, by the node on the path."""
    by_parent: defaultdict[str | None, list[str]] = defaultdict(list)
    for turn in sorted(turns, key=lambda one: one.ordinal):
        by_parent[turn.parent].append(turn.id)
    found = {}
    for siblings in by_parent.values():
        place = next((n for n, one in enumerate(siblings) if one in on_path), None)
        if place is None or len(siblings) == 1:
            continue
        ends = [_end_of(one, by_parent) for one in siblings]
        before = ends[place - 1] if place else None
        behind = ends[place + 1] if place + 1 < len(siblings) else None
        found[siblings[place]] = Fork(place + 1, len(siblings), before, behind)
    return found


def _end_of(node: str, by_parent: Mapping[str | None, list[str]]) -> str:
    """Return the last node of the newest branch below a node."""
    while children := by_parent.get(node):
        node = children[-1]
    return node
