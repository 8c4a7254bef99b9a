"""Words for how things are, and their colours: one table for the terminal and for the pages."""

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
"""The tone of a status; others have none. `compose/web/pages/static/page.css` has the same groups."""
COLOURS: Final[Mapping[Tone, str]] = {
    "good": "green",
    "bad": "red",
    "waits": "yellow",
    "works": "cyan",
}
"""Of a tone at the terminal."""
VARIABLES: Final[Mapping[Tone, str]] = {
    "good": "--ok",
    "bad": "--bad",
    "waits": "--wait",
    "works": "--go",
}
"""Of a tone in the pages: properties of the style, light and dark."""


def colour_of(status: str) -> str:
    """Return the colour of a status at the terminal; empty: it has none."""
    tone = TONES.get(status.lower())
    return "" if tone is None else COLOURS[tone]
