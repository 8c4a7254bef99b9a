"""Convert text of agents and clients to text that a terminal may show."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Final

_UNSEEN: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks that are invisible."""
_SEPARATORS: Final = frozenset("\u2044\u2215\u2236\u29f8\ua789")
"""Signs that look like the slash or the colon of an id."""
_SCRIPTS: Final[Mapping[str, str]] = {
    "CYRILLIC": "АВЕЅІЈКМНОРСТУХҮԌԚԜӀаеѕіјорсухѵүһԁԍԛԝӏ",
    "GREEK": "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧαγικνορυχ",
    "ARMENIAN": "ՕՍօցհոս",  # noqa: RUF001 - as they look like others
    "MATHEMATICAL": "".join(map(chr, (*range(0x1D400, 0x1D6A4), *range(0x1D7CE, 0x1D800)))),
}
_LOOK_ALIKES: Final = {one: script for script, letters in _SCRIPTS.items() for one in letters}
"""Letters that look like Latin ones, of Unicode's confusables, and their script."""
_WORD: Final = re.compile(r"[^\W_]+")
_LATIN: Final = re.compile("[A-Za-z]")


class _Visible(dict[int, int | str]):
    """A table for `str.translate` that replaces control characters and invisible characters. Filled on demand.

    Control characters are replaced by their signs. Characters that change the direction of writing, have no
    width or select a variant are written as in JSON. So are line separators, surrogates, unassigned and
    private characters, and signs that look like the separators of an id.
    """

    def __missing__(self, code: int) -> int | str:
        self[code] = found = _visible(code)
        return found


def _visible(code: int) -> int | str:
    one = chr(code)
    category = unicodedata.category(one)
    if category == "Cc":
        signs = {0x09: 0x09, 0x0A: 0x0A, 0x7F: 0x2421}
        return signs.get(code, 0x2400 + code if code < 0x20 else 0xFFFD)  # noqa: PLR2004
    is_variant = unicodedata.name(one, "").startswith(("VARIATION SELECTOR", "MONGOLIAN FREE"))
    is_hidden = category in ("Cf", "Zl", "Zp", "Cs", "Co", "Cn") or is_variant or one in _UNSEEN
    return _as_json(one) if is_hidden or one in _SEPARATORS else code


_VISIBLE: Final = _Visible()


def visible(text: str) -> str:
    """Return the text without characters that are invisible or that control the terminal.

    Letters that look like Latin ones are written as in JSON if their word also has Latin ones, or if the text
    has no other letter of their script. So no name looks like another name.
    """
    shown = text.translate(_VISIBLE)
    if shown.isascii() or _LOOK_ALIKES.keys().isdisjoint(shown):
        return shown
    told = {unicodedata.name(one, "").partition(" ")[0] for one in {*shown} - _LOOK_ALIKES.keys()}

    def apart(word: re.Match[str]) -> str:
        is_mixed = _LATIN.search(word[0]) is not None
        return "".join(
            _as_json(one)
            if one in _LOOK_ALIKES and (is_mixed or _LOOK_ALIKES[one] not in told)
            else one
            for one in word[0]
        )

    return _WORD.sub(apart, shown)


def _as_json(one: str) -> str:
    return json.dumps(one)[1:-1]
