"""Turns and cuts of conversations as `write_transcripts` takes them.

Each message goes as text: it is stored as it was written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.transcript import NewTurn, message_json
from actors.kernel.json import JsonValue
from actors.kernel.runtime.commit import Commit
from persistence.postgres.commits.encode import json_text

TranscriptRows: TypeAlias = "dict[str, list[dict[str, JsonValue] | None]]"
"""Rows by name: ``turns``, ``cuts``, ``clear``."""


def transcript_rows(commit: Commit) -> TranscriptRows | None:
    """Return turns, cuts and what is cleared, by name; None: the commit has nothing of conversations."""
    rows: TranscriptRows = {}
    if commit.turns:
        rows["turns"] = turn_rows(commit.turns)
    if commit.cuts:
        rows["cuts"] = [
            {
                "session": cut.session,
                "upto": cut.upto,
                "previous": cut.previous,
                "strategy": cut.strategy,
                "summary": None if cut.summary is None else _message_text(cut.summary),
            }
            for cut in commit.cuts
        ]
    if commit.clear_turns:
        rows["clear"] = [None]
    return rows or None


def turn_rows(turns: Iterable[NewTurn]) -> list[dict[str, JsonValue] | None]:
    """Return turns as `write_transcripts` takes them."""
    return [
        {
            "session": new.session,
            "id": new.id,
            "parent": new.parent,
            "tokens": new.tokens,
            "body": _message_text(new.message),
        }
        for new in turns
    ]


def _message_text(message: ChatMessage) -> str:
    return json_text(message_json(message), "turn")
