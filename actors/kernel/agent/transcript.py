"""Turns of conversations as rows: what a run adds to a session, and what a reader finds there.

A turn is one chat message. A cut says where a compaction lets the window begin; the turns before it stay.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from actors.kernel.agent.message import ChatMessage
from actors.kernel.json import JsonValue

NO_CUT = -1
"""The ordinal of a cut where there is none: the window begins with the first turn."""


def turn_id(run_id: str, position: str, n: int) -> str:
    """Return the id of the n-th turn that a run adds at a position: the same on every replay."""
    return hashlib.sha256(f"{run_id}\n{position}\n{n}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A turn before it has a place in its session.

    Attributes:
        session: The conversation, within its agent.
        id: A session keeps one turn of an id; another one with it is dropped.
        message: What was said.
        tokens: Its size for a model; None: nobody has counted.
        parent: The id of the turn that it follows; None: the one before it.
    """

    session: str
    id: str
    message: ChatMessage
    tokens: int | None = None
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class NewCut:
    """A cut as a run writes it. It counts only if the session's last cut is still the `previous` one.

    Attributes:
        session: The conversation, within its agent.
        upto: Ordinal of the last turn that the window leaves out.
        previous: `upto` of the cut before; `NO_CUT`: there was none.
        strategy: The class name of the compaction strategy that made it.
        summary: The message that stands in place of what is left out; None: nothing does.
    """

    session: str
    upto: int
    previous: int
    strategy: str
    summary: ChatMessage | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """A stored turn. Ordinals count from 0 within a session, in the order in which turns were written."""

    ordinal: int
    id: str
    run_id: str
    message: ChatMessage
    tokens: int | None
    parent: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Cut:
    """The last cut of a session. See `NewCut`."""

    upto: int
    strategy: str
    run_id: str
    summary: ChatMessage | None
    at: datetime


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A conversation of an agent, as lists show it."""

    name: str
    turns: int
    tokens: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session from its last cut on.

    Attributes:
        cut: The last one; None: there is none.
        turns: The newest ones behind it, oldest first.
        count: How many there are in the whole session.
    """

    cut: Cut | None
    turns: tuple[Turn, ...]
    count: int


def message_json(message: ChatMessage) -> dict[str, JsonValue]:
    """Return the stored form of a message."""
    return message.model_dump(mode="json", exclude_defaults=True)
