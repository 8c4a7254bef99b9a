"""What stands in documents, for the tests that do it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).parents[2]
REQUEST: Final = "nats request "
BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Publish(NamedTuple):
    """One `nats pub`, and what the line below it says comes of it."""

    subject: str
    body: str
    headers: Mapping[str, str]
    outcome: str


def blocks(name: str, language: str) -> list[str]:
    """Return the code blocks of one language in a document."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return [code for block_language, code in BLOCK.findall(text) if block_language == language]


def published(text: str) -> list[Publish]:
    """Return the `nats pub -J SUBJECT BODY [-H NAME:VALUE]…` lines of a shell script, in order."""
    return _commands(text, "nats pub -J ")


def requested(text: str) -> list[Publish]:
    """Return the `nats request [--replies 0] SUBJECT BODY [-H NAME:VALUE]…` lines, in order."""
    return _commands(text.replace(f"{REQUEST}--replies 0 ", REQUEST), REQUEST)


def _commands(text: str, begin: str) -> list[Publish]:
    lines = [line for line in text.splitlines() if line.startswith(("nats ", "# -> "))]
    commands = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if not line.startswith(begin):
            assert line.startswith(("# -> ", "nats pub -J ", REQUEST)), line
            continue
        subject, body, *options = shlex.split(line.removeprefix(begin))
        assert options[::2] == ["-H"] * (len(options) // 2), line
        headers = dict(option.split(":", 1) for option in options[1::2])
        commands.append(Publish(subject, body, headers, below.removeprefix("# -> ")))
    return commands
