"""JSON data: the only shape in which an author's values are recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from actors.errors import NotSerializableError
from actors.kernel.json_data import SCALARS, check_json, check_text

__all__ = [
    "JsonValue",
    "canonical_json",
    "check_json",
    "compact_encoder",
    "fresh",
    "number_of",
    "recordable",
    "sized",
    "text_bytes",
    "unfenced",
]

T = TypeVar("T")

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"


def compact_encoder(*, sort_keys: bool) -> Callable[[object], str]:
    """Return a function that encodes JSON data without spaces and refuses NaN, as `json.JSONEncoder` does.

    A value within itself ends in a RecursionError; to look for it in advance takes two fifths of the time.
    `JSONEncoder.encode` makes an encoder for each value; this function keeps one.
    """
    plain = json.JSONEncoder(
        sort_keys=sort_keys,
        separators=(",", ":"),
        allow_nan=False,
        ensure_ascii=False,
        check_circular=False,
    )
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without the accelerator
        return plain.encode
    text = getattr(json.encoder, "encode_basestring")  # noqa: B009 - stubs do not have it
    encode = make(None, plain.default, text, None, ":", ",", sort_keys, False, False)
    return lambda value: "".join(encode(value, 0))


_canonical = compact_encoder(sort_keys=True)


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


def fresh(value: T) -> T:
    """Return JSON data for code that may change it: lists and objects are copied, anything else is shared.

    What a verb records is kept until it is written, and some of it for later calls. Code that got the kept
    object would change the log.
    """
    kind, found = type(value), cast("Any", value)
    if kind is dict:
        found = {key: fresh(item) for key, item in found.items()}
    elif kind is list or kind is tuple:
        found = kind(map(fresh, found))
    return cast("T", found)


def text_bytes(value: object) -> int:
    """Return how many bytes JSON data has as text, to within the notation of its numbers."""
    return len(to_json(value))


def unfenced(text: str) -> str:
    """Return the text within the fence of Markdown that models put around JSON; without a fence, the text."""
    body = text.strip()
    return body.partition("\n")[2].rpartition("```")[0].strip() if body.startswith("```") else body


def number_of(value: object) -> float:
    """Return a number of JSON data; 0 for anything else."""
    return float(value) if isinstance(value, int | float) else 0.0
