"""JSON data: the only shape in which an author's values are recorded."""

from __future__ import annotations

import json
from typing import TypeAlias

from pydantic_core import PydanticSerializationError, from_json, to_json

from actors.errors import NotSerializableError

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

_SCALARS = (str, int, bool, type(None))
_MAX_DEPTH = 64
_canonical = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
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
        where: Names the place in the error, for example ``step 'charge' at 4``.

    Raises:
        NotSerializableError: Not JSON data: another type, a key that is not a str, NaN or infinity,
            or nested deeper than 64.
    """
    if type(value) in _SCALARS:
        _check_text(value, where)
        return value  # type: ignore[return-value]
    _check(value, where, 0)
    try:
        result: JsonValue = from_json(to_json(value, inf_nan_mode="constants"))
    except (PydanticSerializationError, ValueError) as exc:
        raise NotSerializableError(where, type(value).__name__, str(exc)) from exc
    return result


def check_json(value: object, *, where: str) -> None:
    """Refuse what `recordable` refuses; what passes is JSON data as it is.

    Raises:
        NotSerializableError: See `recordable`.
    """
    _check(value, where, 0)


def _check_text(value: object, where: str) -> None:
    if isinstance(value, str) and ("\x00" in value or not _encodable(value)):
        raise NotSerializableError(where, "str", "contains a NUL or an unpaired surrogate")


def _encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check(value: object, where: str, depth: int) -> None:
    """Refuse what JSON has no word for; pydantic's encoder would quietly turn dates into text."""
    if depth > _MAX_DEPTH:
        raise NotSerializableError(where, type(value).__name__, f"nested deeper than {_MAX_DEPTH}")
    kind = type(value)
    if kind is str:
        _check_text(value, where)
    elif kind in _SCALARS:
        return
    elif kind is float:
        if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN test
            raise NotSerializableError(where, "float", "NaN and infinity are not JSON")
    elif kind is dict:
        for key, item in value.items():  # type: ignore[attr-defined]
            if type(key) is not str:
                raise NotSerializableError(where, type(key).__name__, "keys must be str")
            _check_text(key, where)
            _check(item, where, depth + 1)
    elif kind is list or kind is tuple:
        for item in value:  # type: ignore[attr-defined]
            _check(item, where, depth + 1)
    else:
        raise NotSerializableError(where, kind.__name__)
