"""JSON data: the only shape in which an author's values are recorded."""

from __future__ import annotations

import json
from typing import TypeAlias

from pydantic_core import PydanticSerializationError, from_json, to_json

from actors.errors import NotSerializableError
from actors.kernel.json_data import SCALARS, check_json, check_text

__all__ = [
    "JsonValue",
    "canonical_json",
    "check_json",
    "number_of",
    "recordable",
    "sized",
    "unfenced",
]

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

# A value within itself ends in a RecursionError; to look for it in advance takes two fifths of the time.
_canonical = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False, check_circular=False
).encode


def canonical_json(value: object) -> str:
    """Return the one text of a JSON value: keys sorted, no spaces, no NaN.

    Raises:
        NotSerializableError: `value` is not JSON data.
    """
    try:
        return _canonical(value)
    except (TypeError, ValueError, RecursionError) as exc:
        raise NotSerializableError("arguments", type(value).__name__, str(exc)) from exc


def recordable(value: object, *, where: str) -> JsonValue:
    """Return `value` exactly as replay will return it: tuples become lists, nothing is guessed.

    Args:
        value: What an author's function returned.
        where: Names the location in the error, for example ``step 'charge' at 4``.

    Raises:
        NotSerializableError: Not JSON data: another type, a key that is not a str, NaN or infinity,
            or nested deeper than 64.
    """
    if type(value) in SCALARS:
        check_text(value, where)
        return value  # type: ignore[return-value]
    return sized(value, where=where)[0]


def sized(value: object, *, where: str) -> tuple[JsonValue, int]:
    """Return what `recordable` does, and how many bytes it has as JSON text in UTF-8.

    Raises:
        NotSerializableError: As there.
    """
    check_json(value, where=where)
    try:
        text = to_json(value, inf_nan_mode="constants")
        result: JsonValue = from_json(text)
    except (PydanticSerializationError, ValueError) as exc:
        raise NotSerializableError(where, type(value).__name__, str(exc)) from exc
    return result, len(text)


def unfenced(text: str) -> str:
    """Return the text within the fence of Markdown that models put around JSON; without a fence, the text."""
    body = text.strip()
    return body.partition("\n")[2].rpartition("```")[0].strip() if body.startswith("```") else body


def number_of(value: object) -> float:
    """Return a number of JSON data; 0 for anything else."""
    return float(value) if isinstance(value, int | float) else 0.0
