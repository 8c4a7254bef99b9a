"""JSON written on a command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from actors.errors import ContractError

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue


def parse_json(text: str, *, what: str) -> JsonValue:
    """Return the data; ``-`` reads it from standard input, ``@FILE`` from a file.

    Raises:
        ContractError: It is no JSON, or there is no such file; the message shows where, and how text
            has to be quoted.
    """
    source = _read(text)
    try:
        return json.loads(source, parse_constant=_refuse)  # type: ignore[no-any-return]
    except RecursionError:
        raise ContractError(f"{what} is nested too deeply") from None
    except ValueError as exc:
        hint = (
            'Write data as JSON, in single quotes for the shell: \'{"city": "Oslo"}\' or \'"text"\''
        )
        raise ContractError(f"{what} is not JSON ({exc}): {source[:80]!r}. {hint}") from exc


def _read(text: str) -> str:
    if text == "-":
        return sys.stdin.read()
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        problem = exc.strerror if isinstance(exc, OSError) else "it is no text in UTF-8"
        raise ContractError(f"cannot read {text[1:]}: {problem}; @ names a file") from exc


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
