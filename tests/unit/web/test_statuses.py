"""The colours of statuses: the same groups at the terminal and in the pages."""

from __future__ import annotations

import re

from compose._tools.statuses import TONES, VARIABLES, colour_of
from compose._web.pages.html import FOLDER


def test_pages_colour_statuses_as_the_terminal_does() -> None:
    """Each status of the table has its tone's colour in the style, and the style colours no other one."""
    style = (FOLDER / "page.css").read_text("utf-8")
    rules = re.findall(
        r"^((?:\.status\.\w+,? ?)+)\{ color: var\((--\w+)\); \}", style, re.MULTILINE
    )
    colours = {
        word: name for words, name in rules for word in re.findall(r"\.status\.(\w+)", words)
    }

    assert colours == {status: VARIABLES[tone] for status, tone in TONES.items()}


def test_a_status_is_coloured_however_it_is_written() -> None:
    """The store writes it in upper case, the API in lower case; an unknown one has no colour."""
    assert [colour_of(status) for status in ("COMPLETED", "failed", "CANCELLED", "Running")] == [
        "green",
        "red",
        "yellow",
        "cyan",
    ]
    assert colour_of("PENDING") == ""
