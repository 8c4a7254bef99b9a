"""Blocks in the window: labelled texts of an agent, in front of its conversation, as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic_core import to_json

from actors.context.turns import data_message
from actors.kernel.agent.message import ChatMessage
from actors.kernel.memory_rules import blocks_of
from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.memory import LongTermMemories
from actors.kernel.stores.runs import agent_scope

NOTE: Final = "Blocks of the agent's memory, each with its label."


async def block_turns(
    memories: LongTermMemories, agent: AgentId, labels: Sequence[str]
) -> list[ChatMessage]:
    """Return the turn that shows an agent's blocks to its model; none if there are no such blocks.

    Args:
        memories: Memories that are read once if there are labels, else not at all.
        agent: Owner of the blocks.
        labels: Those that are shown, in this order.
    """
    if not labels:
        return []
    about = blocks_of(agent_scope(agent))
    found = await memories.of(agent.tenant).page(about=about, keys=labels)
    texts = {one.key: one.text for one in found}
    shown = [{"label": label, "text": texts[label]} for label in labels if label in texts]
    if not shown:
        return []
    body = "\n".join(to_json(one).decode() for one in shown)
    return [data_message("blocks", body, note=NOTE, metadata={})]
