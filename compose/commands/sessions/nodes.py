"""The nodes of a session: read them, find one by a prefix of its id, show one as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.models import CUT_OFF
from actors.kernel.agent.transcript import NO_CUT, Turn
from actors.kernel.stores.errors import UnknownNodeError
from actors.sessions.runtime import AgentRuntime
from compose.commands.output import NoDataError, short
from compose.commands.sessions.tree import SHOWN_ID, NodeLine

PAGE: Final = 500
"""Number of nodes per read."""
ENDS_EARLY: Final = "(a limit of tokens cut the answer off)"
"""Line below an answer that has no end."""


async def all_nodes(agents: AgentRuntime, session_id: str) -> list[Turn]:
    """Return the nodes of all branches, oldest first, each with its parent's id."""
    agent, after = agents.agent_id(session_id), NO_CUT
    found: list[Turn] = []
    store = agents.runtime.store
    while page := await store.transcripts.page(
        agent, agent.key, limit=PAGE, after=after, branches=True
    ):
        found += await store.sessions.nodes(agent, [turn.id for turn in page])
        after = page[-1].ordinal
    return found


async def find_node(agents: AgentRuntime, session_id: str, text: str) -> Turn:
    """Return the node whose id is `text`, else the only node whose id begins with it.

    Raises:
        UnknownNodeError: No node has such an id.
        NoDataError: Several ids begin with `text`.
    """
    agent = agents.agent_id(session_id)
    if found := await agents.runtime.store.sessions.nodes(agent, [text]):
        return found[0]
    nodes = [turn for turn in await all_nodes(agents, session_id) if turn.id.startswith(text)]
    if len(nodes) > 1:
        raise NoDataError(f"{len(nodes)} nodes begin with {text!r}: give more of the id")
    if not nodes or not text:
        raise UnknownNodeError(str(agent), text)
    return nodes[0]


def node_text(line: NodeLine) -> str:
    """Return a line for a node: its branch marks, its short id, its role and the start of its text."""
    turn, mark = line.turn, "*" if line.is_active else " "
    said = turn.message.text or ", ".join(lines_of_blocks(turn.message))
    return f"{mark} {line.marks}{turn.id[:SHOWN_ID]} {turn.message.role}: {short(said)}"


def lines_of_blocks(message: ChatMessage) -> Iterator[str]:
    """Yield a line for each call of a tool, each result, and the mark of an answer that was cut off."""
    for block in message.content:
        data: dict[str, Any] = block.model_extra or {}
        if block.type == "tool_call":
            yield f"→ {data.get('name')} {short(data.get('arguments'))}".rstrip()
        elif block.type == "tool_result":
            yield f"← {data.get('name')}: {short(block.text)}"
        elif block.type == CUT_OFF:
            yield ENDS_EARLY
