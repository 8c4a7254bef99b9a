"""Sessions of agents: read their turns in pages, and convert turns to JSON data and back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import NO_CUT, Turn, message_json, message_of_turn, new_turn
from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import RunLogEntry
from actors._kernel.stores.conversations import TranscriptStore
from actors._kernel.stores.run_store import RunStore

PAGE: Final = 200
"""Number of turns per read."""


async def turns_of(
    store: TranscriptStore, agent: AgentId, session: str, *, after: int = NO_CUT
) -> AsyncIterator[Turn]:
    """Yield the turns of a session after an ordinal, oldest first, including turns added during the read."""
    while page := await store.page(agent, session, limit=PAGE, after=after):
        for turn in page:
            yield turn
        after = page[-1].ordinal


@dataclass(slots=True)
class SeenSession:
    """The part of a session that a run's model calls saw.

    Attributes:
        cut: Ordinal after which the first window began.
        head: Ordinal of the last turn in the last window, without turns that the call added.
    """

    cut: int
    head: int

    async def turns(
        self, store: TranscriptStore, agent: AgentId, session: str, run_id: RunId
    ) -> AsyncIterator[Turn]:
        """Yield the seen turns that the store still has, and the turns that the run added."""
        async for turn in turns_of(store, agent, session, after=self.cut):
            is_own = turn.run_id == run_id
            if turn.ordinal > self.head and turn.run_id and not is_own:
                return
            if is_own or turn.ordinal <= self.head:
                yield turn


def add_seen(seen: dict[str, SeenSession], entry: RunLogEntry) -> None:
    """Extend the seen part of a session by a log entry with a receipt of a window. Ignore other entries."""
    receipt = entry.payload.get("receipt")
    if isinstance(receipt, dict) and isinstance(receipt.get("session"), str):
        cut, head = int(str(receipt["cut"])), int(str(receipt["head"]))
        session = seen.setdefault(str(receipt["session"]), SeenSession(cut, head))
        session.cut, session.head = min(session.cut, cut), max(session.head, head)


def turn_to_json(turn: Turn) -> dict[str, JsonValue]:
    """Return a turn as JSON data.

    The message has id, parent and size in its metadata. `ChatMessage.model_validate` converts it to the
    argument of `HistoryProvider.append_many`. A history that has the turn already drops the copy.
    """
    return {
        "ordinal": turn.ordinal,
        "id": turn.id,
        "run": turn.run_id or None,
        "parent": turn.parent,
        "tokens": turn.tokens,
        "at": turn.at.isoformat(),
        "message": message_json(message_of_turn(turn)),
    }


def turn_of_json(data: dict[str, Any]) -> Turn:
    """Return the turn of data that `turn_to_json` returned."""
    turn = new_turn(ChatMessage.model_validate(data["message"]), "")
    return Turn(
        int(data["ordinal"]),
        str(data["id"]),
        data["run"] or "",
        turn.message,
        data["tokens"],
        data["parent"],
        datetime.fromisoformat(data["at"]),
    )


@dataclass(frozen=True, slots=True)
class SentWindow:
    """The window of a session's last model call, as the log describes it.

    Attributes:
        run: The run that made the call.
        at: Instant of the answer, or of the failure.
        model: Name of the model.
        receipt: The receipt of the window, see docs/replay.md, "Windows".
    """

    run: str
    at: datetime
    model: str
    receipt: dict[str, Any]


async def last_window(store: RunStore, agent: AgentId, session: str) -> SentWindow | None:
    """Return the window of a session's last model call, or None if no log has it any more."""
    count = await store.data.transcripts.count(agent, session)
    page = await store.data.transcripts.page(
        agent, session, limit=PAGE, offset=max(0, count - PAGE)
    )
    for run_id in dict.fromkeys(turn.run_id for turn in reversed(page) if turn.run_id):
        window = None
        async for entry in store.reads.entries(RunId(run_id)):
            receipt = entry.payload.get("receipt")
            if isinstance(receipt, dict) and receipt.get("session") == session:
                window = SentWindow(run_id, entry.ts, str(entry.payload["name"]), receipt)
        if window is not None:
            return window
    return None
