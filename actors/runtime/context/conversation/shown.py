"""Turns as a model is given them, without the marks of a session."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from pydantic_core import PydanticSerializationError, to_json

from actors.context.turns import SUMMARY
from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.tools import ToolSpec
from actors.kernel.json import canonical_json

KEPT_BYTES: Final = 4_096
"""Largest JSON of a turn that is kept for the run's next window. Larger turns are made again."""


class ShownTurn(NamedTuple):
    """A message as a model is given it.

    Attributes:
        message: The message.
        text: Its JSON; None: it has half a surrogate pair.
    """

    message: ChatMessage
    text: bytes | None


class ShownTurns:
    """Turns of a session's last window as its model was given them, each with its JSON.

    Most turns of a window were in the one before, the new ones of that call with other marks. They are not
    made, and their JSON is not written, again.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], ShownTurn] = {}
        """By all that is shown of a turn. Its content is kept, so that no other object can have its id."""

    def of(self, window: Iterable[ChatMessage]) -> list[ShownTurn]:
        """Return a window as a model is given it."""
        before, self._known, shown = self._known, {}, []
        for turn in window:
            key = (id(turn.content), turn.role, turn.name, turn.metadata.get(SUMMARY))
            known = before.get(key) or shown_turn(without_marks(turn))
            if known.text is not None and len(known.text) <= KEPT_BYTES:
                self._known[key] = known
            shown.append(known)
        return shown


def shown_turn(message: ChatMessage) -> ShownTurn:
    """Return a message that a model is given as it is, with its JSON."""
    try:
        return ShownTurn(message, to_json(message))
    except PydanticSerializationError:
        return ShownTurn(message, None)


def without_marks(message: ChatMessage) -> ChatMessage:
    """Return a message as a model is given it: what strategies note of turns is not the author's.

    The mark of a summary stays, by which a client knows where the stable beginning of a request ends.
    """
    if not message.metadata:
        return message
    summary = message.metadata.get(SUMMARY)
    return message.with_metadata({} if summary is None else {SUMMARY: summary})


def window_digest(window: Sequence[ShownTurn]) -> str:
    """Return the `digest` of the messages that a model is given."""
    texts = [turn.text for turn in window if turn.text is not None]
    if len(texts) < len(window):
        return digest([turn.message for turn in window])
    return hashlib.sha256(b"[" + b",".join(texts) + b"]").hexdigest()


def digest(models: Sequence[ChatMessage | ToolSpec]) -> str:
    """Return the SHA-256 of models as a JSON array, in hexadecimal."""
    try:
        text = to_json(models)
    except PydanticSerializationError:  # half a surrogate pair
        shown = [one.model_dump(mode="json") for one in models]
        text = canonical_json(shown).encode(errors="surrogatepass")
    return hashlib.sha256(text).hexdigest()
