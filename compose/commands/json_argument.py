"""JSON written on a command line."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from actors.errors import ContractError

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue


def parse_json(text: str, *, what: str) -> JsonValue:
    """Return the data; ``-`` reads it from standard input.

    Raises:
        ContractError: It is no JSON; the message shows where, and how text has to be quoted.
    """
    source = sys.stdin.read() if text == "-" else text
    try:
        return json.loads(source, parse_constant=_refuse)  # type: ignore[no-any-return]
    except ValueError as exc:
        hint = (
            'Write data as JSON, in single quotes for the shell: \'{"city": "Oslo"}\' or \'"text"\''
        )
        raise ContractError(f"{what} is not JSON ({exc}): {source[:80]!r}. {hint}") from exc


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
