"""Turns and cuts of conversations as `write_transcripts` takes them.

Each message goes as text: it is stored as it was written. A large one is kept apart, as an artifact that is
stored before the row that names it: a crash in between leaves an artifact without a pin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from pydantic_core import from_json

from actors.kernel.agent.agent import SessionChange
from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.transcript import NewTurn, is_visible, message_json
from actors.kernel.json import JsonValue
from actors.kernel.runtime.commit import Commit, Finish
from actors.kernel.runtime.ids import AgentId
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.stores.artifacts import ArtifactStore
from persistence.postgres.commits.encode import json_text

TranscriptRows: TypeAlias = "dict[str, list[dict[str, JsonValue] | None]]"
"""Rows by name: ``turns``, ``artifacts`` (of turns that are kept apart), ``cuts``, ``kept`` (conversations of
sessions with a cut), ``clear``, ``sessions``."""
ArtifactsOf: TypeAlias = "Callable[[str, str], ArtifactStore]"
"""Returns the artifacts of a tenant and a scope."""
MAX_ROW_BYTES: Final = 256 * 1024
"""Largest JSON of a turn in its row. A larger turn is stored as an artifact."""


def transcript_rows(commit: Commit) -> TranscriptRows | None:
    """Return the commit's turns, cuts and cleared sessions, by name; None: it has none of them."""
    rows: TranscriptRows = {}
    key = commit.lease.agent_id.key
    if commit.turns:
        rows["turns"] = turn_rows(commit.turns, key)
    if commit.cuts:
        rows["cuts"] = [
            {
                "session": cut.session,
                "upto": cut.upto,
                "previous": cut.previous,
                "strategy": cut.strategy,
                "summary": None if cut.summary is None else _message_text(cut.summary),
                "changes": _changes_text(cut.changes) if cut.changes else None,
            }
            for cut in commit.cuts
        ]
        if any(cut.session == key for cut in commit.cuts):
            rows["kept"] = [{"session": key}]
    if commit.clear_turns:
        rows["clear"] = [None]
    if commit.session is not None:
        rows["sessions"] = [_change_row(commit, commit.session)]
    return rows or None


def turn_rows(turns: Iterable[NewTurn], key: str) -> list[dict[str, JsonValue] | None]:
    """Return turns as `write_transcripts` takes them.

    Args:
        turns: Turns of one agent.
        key: The agent's key. In the conversation with this name, rows have a mark if a user sees the turn.
    """
    rows: list[dict[str, JsonValue] | None] = []
    for new in turns:
        row: dict[str, JsonValue] = {
            "session": new.session,
            "id": new.id,
            "parent": new.parent,
            "tokens": new.tokens,
            "body": _message_text(new.message),
        }
        if new.session == key and is_visible(new.message):
            row["visible"] = True
        rows.append(row)
    return rows


def _change_row(commit: Commit, change: SessionChange) -> dict[str, JsonValue]:
    then = commit.then
    is_success = isinstance(then, Finish) and then.status is RunStatus.COMPLETED
    return {
        "session": commit.lease.agent_id.key,
        "facts": list(change.facts),
        "head": change.head,
        "failed": "ended" in change.facts and not is_success,
    }


def _message_text(message: ChatMessage) -> str:
    return json_text(message_json(message), "turn")


def _changes_text(changes: Mapping[str, ChatMessage | None]) -> str:
    found = {turn: None if one is None else message_json(one) for turn, one in changes.items()}
    return json_text(found, "turn")


async def put_apart(rows: TranscriptRows, agent: AgentId, artifacts_of: ArtifactsOf) -> None:
    """Store the bodies of turns over 256 KiB as artifacts, and let their rows refer to them.

    Rows that are changed already stay. Without a large turn nothing is asked of a server.

    Raises:
        PersistenceError: The server could not be asked. The same may be done again.
    """
    for row in rows.get("turns", ()):
        assert row is not None
        body = row["body"]
        assert isinstance(body, str)
        if 4 * len(body) <= MAX_ROW_BYTES or len(data := body.encode()) <= MAX_ROW_BYTES:
            continue
        words = f"{agent}\n{row['session']}\n{row['id']}"
        scope = f"turn:{hashlib.sha256(words.encode(errors='surrogatepass')).hexdigest()}"
        ref = await artifacts_of(agent.tenant, scope).store(data, content_type="application/json")
        short = {"role": from_json(body)["role"], "artifact": ref.model_dump(mode="json")}
        row["body"], row["artifact"] = json_text(short, "turn"), scope
        named = {"scope": scope, "artifact": ref.id, "session": row["session"], "turn": row["id"]}
        rows.setdefault("artifacts", []).append(named)
