"""Statuses and their colours, for the terminal and for the pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

Tone: TypeAlias = Literal["good", "bad", "waits", "works"]
TONES: Final[Mapping[str, Tone]] = {
    "completed": "good",
    "ok": "good",
    "approved": "good",
    "failed": "bad",
    "error": "bad",
    "denied": "bad",
    "expired": "bad",
    "waiting": "waits",
    "queued": "waits",
    "cancelled": "waits",
    "running": "works",
    "active": "works",
}
"""Tones by status. Other statuses have no tone. `compose/_web/pages/static/page.css` has the same groups."""
COLOURS: Final[Mapping[Tone, str]] = {
    "good": "green",
    "bad": "red",
    "waits": "yellow",
    "works": "cyan",
}
"""Colours at the terminal, by tone."""
VARIABLES: Final[Mapping[Tone, str]] = {
    "good": "--ok",
    "bad": "--bad",
    "waits": "--wait",
    "works": "--go",
}
"""Style properties of the pages by tone. They have values for light and for dark."""


def colour_of(status: str) -> str:
    """Return the colour of a status at the terminal, or an empty text."""
    tone = TONES.get(status.lower())
    return "" if tone is None else COLOURS[tone]
