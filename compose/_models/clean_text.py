"""Removal of characters from models' texts that a log cannot store."""

from __future__ import annotations

import re
from typing import Any, Final

from actors._kernel.json_data import clean

_HIGH: Final = re.compile(r"[\ud800-\udbff]\Z")


def clean_json(value: Any) -> Any:
    """Return JSON data whose texts and keys are cleaned by `clean`."""
    match value:
        case str():
            return clean(value)
        case dict():
            return {clean(str(key)): clean_json(item) for key, item in value.items()}
        case list() | tuple():
            return [clean_json(item) for item in value]
        case _:
            return value


class TextPieces:
    """Cleans a text that arrives in pieces. Joined, the results of `add` and `rest` are the clean text."""

    def __init__(self) -> None:
        self._high_surrogate = ""

    def add(self, piece: str) -> str:
        """Return the piece, cleaned. A high surrogate at its end is held back until the next piece."""
        piece = self._high_surrogate + piece
        match = _HIGH.search(piece)
        self._high_surrogate = match.group() if match else ""
        return clean(piece[: match.start()] if match else piece)

    def rest(self) -> str:
        """Return the character that was held back, cleaned; empty if there is none."""
        surrogate, self._high_surrogate = self._high_surrogate, ""
        return clean(surrogate)
