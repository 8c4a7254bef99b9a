"""Sessions of agents, turn by turn: read in pages, and as JSON data that a history takes again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from actors.context.store_history import message_of
from actors.kernel.agent.transcript import NO_CUT, Turn, message_json
from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import AgentId
from actors.kernel.storage.transcript import TranscriptStore

PAGE: Final = 200
"""Turns that are in memory at once."""


async def turns_of(store: TranscriptStore, agent: AgentId, session: str) -> AsyncIterator[Turn]:
    """Yield the turns of a session, oldest first, also those that are added meanwhile."""
    after = NO_CUT
    while page := await store.page(agent, session, limit=PAGE, after=after):
        for turn in page:
            yield turn
        after = page[-1].ordinal


def turn_to_json(turn: Turn) -> dict[str, JsonValue]:
    """Return a turn as JSON data.

    The message has id, parent and size in its metadata: `ChatMessage.model_validate` makes of it what
    `HistoryProvider.append_many` takes, and a history that has the turn already drops it.
    """
    return {
        "ordinal": turn.ordinal,
        "id": turn.id,
        "run": turn.run_id or None,
        "parent": turn.parent,
        "tokens": turn.tokens,
        "at": turn.at.isoformat(),
        "message": message_json(message_of(turn)),
    }
