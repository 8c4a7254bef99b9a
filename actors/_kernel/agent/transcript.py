"""Turns of conversations as rows: what a run adds to a session, and what a reader finds there.

A turn is one chat message. A cut says where a compaction lets the window begin; the turns before it stay. An
answer of a model is read from the log entry that records it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Final

from pydantic import ValidationError
from pydantic_core import to_json

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import Usage
from actors._kernel.basics import check_number
from actors._kernel.json import JsonValue
from actors._kernel.json_data import check_integer
from actors.errors import MessageTooLargeError

NO_CUT = -1
"""The ordinal of a cut where there is none: the window begins with the first turn."""


TOKENS: Final = "tokens"
"""The key of a turn's metadata under which its size stands, counted once."""
_DIGITS: Final = 12
MAX_TURN_BYTES: Final = 32 * 1024 * 1024
"""Largest turn, as JSON. No provider accepts a larger request, and each window holds its turns in memory."""


def turn_id(run_id: str, position: str, n: int) -> str:
    """Return the id of the n-th turn that a run adds at a position: the same on every replay."""
    return hashlib.sha256(f"{run_id}\n{position}\n{n}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A turn before it has a position in its session.

    Attributes:
        session: The conversation, within its agent.
        id: A session keeps one turn of an id; another one with it is dropped.
        message: What was said.
        tokens: Its size for a model, or None if it was not counted.
        parent: The id of the turn that it follows, or None for the one before it.
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
        summary: The message that replaces what is left out, or None if there is none.
        changes: Turns after `upto` that the window shows otherwise, by id: with other content, or, for None,
            not at all.
    """

    session: str
    upto: int
    previous: int
    strategy: str
    summary: ChatMessage | None = None
    changes: Mapping[str, ChatMessage | None] = field(default_factory=dict)


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
    changes: Mapping[str, ChatMessage | None] = field(default_factory=dict)


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
    """A session from its last cut on, as a window is made of it.

    Attributes:
        cut: The last cut, or None if the session has no cut.
        messages: The newest turns after the cut, oldest first, each as `message_of_turn` returns it. Do not
            change them: a store may return the same object again.
        ordinals: Ordinals of these turns, by id.
        count: Number of turns in the whole session.
    """

    cut: Cut | None
    messages: tuple[ChatMessage, ...]
    ordinals: Mapping[str, int]
    count: int


def message_json(message: ChatMessage) -> dict[str, JsonValue]:
    """Return the stored form of a message."""
    return message.model_dump(mode="json", exclude_defaults=True)


def is_visible(message: ChatMessage) -> bool:
    """Return True if a user sees a turn: it is a text of the user or the assistant."""
    return message.role in ("user", "assistant") and bool(message.text)


def stamped_tokens(message: ChatMessage) -> int | None:
    """Return the size that stands in a turn's metadata, or None if there is none, or no number."""
    return _size_in(message.metadata.get(TOKENS, ""))


# Cached: the size of each turn is read for each window, and few sizes differ.
@lru_cache(maxsize=8_192)
def _size_in(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < _DIGITS else None


def new_turn(message: ChatMessage, session_id: str) -> NewTurn:
    """Return a turn as a store takes it; without an id it gets a new one.

    Raises:
        MessageTooLargeError: See `check_turn`.
    """
    check_turn(message)
    turn, tokens, parent = message.turn, stamped_tokens(message), message.parent
    column_marks = marks_of(turn, tokens, parent).items()
    metadata = {
        key: value
        for key, value in message.metadata.items()
        if key != "turn" and (key, value) not in column_marks
    }
    return NewTurn(
        session_id,
        turn or secrets.token_hex(16),
        message.with_metadata(metadata),
        tokens=tokens,
        parent=parent,
    )


def check_turn(message: ChatMessage) -> None:
    """Check that a turn may be kept.

    Raises:
        MessageTooLargeError: It has more than `MAX_TURN_BYTES` as JSON.
        NotSerializableError: It has an integer of more than 4,300 digits.
    """
    if _is_short(message):
        return
    data = message_json(message)
    if _at_most(data, f"turn of the {message.role}") <= MAX_TURN_BYTES:
        return
    try:
        size = len(to_json(data, inf_nan_mode="constants"))
    # Half a surrogate pair has no JSON text: the store refuses it with an error of its own.
    except ValueError:
        return
    if size > MAX_TURN_BYTES:
        raise MessageTooLargeError(f"turn of the {message.role}", size, MAX_TURN_BYTES)


def message_of_turn(turn: Turn | NewTurn) -> ChatMessage:
    """Return a turn with its id, its parent and its size in the metadata."""
    marks = marks_of(turn.id, turn.tokens, turn.parent)
    return turn.message.with_metadata(marks | turn.message.metadata)


def check_page(limit: int | None, offset: int) -> None:
    """Check that these can be a page of a history.

    Raises:
        ContractError: One of them is not a whole number, is negative or too large.
    """
    check_number("offset of a page of a history", offset, low=0)
    if limit is not None:
        check_number("limit of a page of a history", limit, low=0)


def marks_of(turn_id: str | None, tokens: int | None, parent_id: str | None) -> dict[str, str]:
    """Return what stands in columns of its own, as it stands in a turn's metadata."""
    marks: dict[str, str] = {}
    if turn_id is not None:
        marks["turn"] = turn_id
    if parent_id is not None:
        marks["parent"] = parent_id
    if tokens is not None:
        marks[TOKENS] = str(tokens)
    return marks


def _is_short(message: ChatMessage) -> bool:
    """Return True if a turn is plain texts, far below the limit: nearly all are."""
    if message.metadata or message.name is not None:
        return False
    size = 0
    for block in message.content:
        if block.model_extra:
            return False
        size += len(block.text or "")
    return 8 * size < MAX_TURN_BYTES  # a character has at most six bytes as JSON


def _at_most(value: JsonValue, where: str) -> int:
    """Return a bound of the bytes that JSON data has as text, without making the text.

    Raises:
        NotSerializableError: It has an integer that no decoder reads.
    """
    if isinstance(value, str):
        return 6 * len(value) + 2
    if isinstance(value, dict):
        return (
            sum(_at_most(key, where) + _at_most(item, where) + 2 for key, item in value.items()) + 2
        )
    if isinstance(value, list):
        return sum(_at_most(item, where) + 1 for item in value) + 2
    if isinstance(value, int):
        check_integer(value, where)
    return len(repr(value)) + 8


UNNAMED: Final = "?"
"""The model of an answer whose client has no name that a database takes."""
_MOST: Final = 512
"""Characters of a name."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """A model's answer as a log has it: the name of the client, and what it used."""

    model: str
    usage: Usage


def answer_of(payload: Mapping[str, JsonValue]) -> ModelAnswer | None:
    """Return the answer that an `llm.call` entry with this payload records, or None if it records an error."""
    if payload.get("status") != "ok":
        return None
    model = payload.get("model") or payload.get("name")
    try:
        usage = Usage.model_validate(payload.get("usage") or {})
    # An author's client may report usage of another form: its answer still counts as a call.
    except ValidationError:
        usage = Usage()
    is_name = isinstance(model, str) and 0 < len(model) <= _MOST and "\x00" not in model
    return ModelAnswer(str(model) if is_name else UNNAMED, usage)
