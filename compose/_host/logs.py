"""Log lines of a process: one line per event, for people or as JSON, and the text that a terminal may show.

A JSON line of an agent's code names its run and its trace. `visible` converts text of agents and clients, which
could control the terminal otherwise.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from opentelemetry import trace
from typing_extensions import override

from actors._runtime.telemetry.span_attributes import executing

_ORDINARY: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
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
_LOOK_ALIKES: Final = {
    character: script for script, letters in _SCRIPTS.items() for character in letters
}
"""Letters that look like Latin ones, of Unicode's confusables, and their script."""
_WORD: Final = re.compile(r"[^\W_]+")
_LATIN: Final = re.compile("[A-Za-z]")


class LineFormatter(logging.Formatter):
    """A formatter of one line per record: time, level, message and each `extra` as `key=value`, or JSON.

    In lines for people, text of agents and clients cannot control the terminal, see `visible`.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    @override
    def format(self, record: logging.LogRecord) -> str:
        timestamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = {key: value for key, value in vars(record).items() if key not in _ORDINARY}
        traceback_text = self.formatException(record.exc_info) if record.exc_info else ""
        if self._as_json:
            line: dict[str, object] = {
                "at": timestamp,
                "level": record.levelname.lower(),
                "event": record.getMessage(),
                **_run_facts(),
                **facts,
            }
            if traceback_text:
                line["trouble"] = traceback_text
            return json.dumps(line, default=str)
        facts_text = " ".join(f"{key}={_format_value(value)}" for key, value in facts.items())
        text = f"{timestamp[11:23]} {record.levelname.lower():7} {record.getMessage()} {facts_text}".rstrip()
        return visible(f"{text}\n{traceback_text}" if traceback_text else text)


def write_logs(*, as_json: bool, level: int = logging.INFO) -> None:
    """Write the log lines of this process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(as_json=as_json))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def visible(text: str) -> str:
    """Return the text without characters that are invisible or that control the terminal.

    Letters that look like Latin ones are written as in JSON if their word also has Latin ones, or if the text
    has no other letter of their script. So no name looks like another name.
    """
    readable_text = text.translate(_VISIBLE)
    if readable_text.isascii() or _LOOK_ALIKES.keys().isdisjoint(readable_text):
        return readable_text
    scripts = {
        unicodedata.name(character, "").partition(" ")[0]
        for character in {*readable_text} - _LOOK_ALIKES.keys()
    }

    def escape_look_alikes(word: re.Match[str]) -> str:
        is_mixed = _LATIN.search(word[0]) is not None
        return "".join(
            _escape(character)
            if character in _LOOK_ALIKES and (is_mixed or _LOOK_ALIKES[character] not in scripts)
            else character
            for character in word[0]
        )

    return _WORD.sub(escape_look_alikes, readable_text)


def _run_facts() -> dict[str, object]:
    """Return the run, agent and trace of the code that writes the line; empty outside of runs."""
    run = executing.get()
    if run is None:
        return {}
    facts: dict[str, object] = {
        "run": run.run_id,
        "agent": str(run.agent_id),
        "trace_id": run.trace_id,
    }
    span = trace.get_current_span().get_span_context()
    return {**facts, "span_id": f"{span.span_id:016x}"} if span.is_valid else facts


def _format_value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return json.dumps(text) if not text or any(c in text for c in ' "\n=') else text


class _Visible(dict[int, int | str]):
    """A table for `str.translate` that replaces control characters and invisible characters. Filled on demand.

    Control characters are replaced by their signs. Characters that change the direction of writing, have no
    width or select a variant are written as in JSON. So are line separators, surrogates, unassigned and
    private characters, and signs that look like the separators of an id.
    """

    def __missing__(self, code: int) -> int | str:
        self[code] = replacement = _visible_code(code)
        return replacement


_VISIBLE: Final = _Visible()


def _visible_code(code: int) -> int | str:
    character = chr(code)
    category = unicodedata.category(character)
    if category == "Cc":
        signs = {0x09: 0x09, 0x0A: 0x0A, 0x7F: 0x2421}
        return signs.get(code, 0x2400 + code if code < 0x20 else 0xFFFD)  # noqa: PLR2004
    is_variant = unicodedata.name(character, "").startswith(
        ("VARIATION SELECTOR", "MONGOLIAN FREE")
    )
    is_hidden = (
        category in ("Cf", "Zl", "Zp", "Cs", "Co", "Cn") or is_variant or character in _UNSEEN
    )
    return _escape(character) if is_hidden or character in _SEPARATORS else code


def _escape(character: str) -> str:
    return json.dumps(character)[1:-1]
