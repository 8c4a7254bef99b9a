"""JSON objects that go with what is kept: values that are not shown, texts, and filters by equal values.

A value is not shown if its key contains one of some names, as ``password``.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from pydantic_core import from_json, to_json

from actors._kernel.json import JsonValue, sized
from actors.errors import NotSerializableError

HIDDEN: Final = "[redacted]"
"""Shown instead of a hidden value."""
DEFAULT_NAMES: Final = "password,token,secret,authorization,api_key"
"""Separated by commas."""
_OPENING: Final = ("{", "[")
MAX_DEPTH: Final = 64
"""Deeper data is not shown."""


class HiddenNames:
    """Names by which values are hidden in traces and in events of sessions.

    Args:
        names: Separated by commas. A value is hidden whose key contains one of them, whatever its case,
            `-` and `_`.
    """

    def __init__(self, names: str = DEFAULT_NAMES) -> None:
        self._names = tuple(bare for name in names.split(",") if (bare := _bare(name)))

    def covers(self, key: object) -> bool:
        """Return True if values under this key are hidden."""
        bare = _bare(str(key))
        return any(name in bare for name in self._names)

    def shown(self, value: Any, *, depth: int = MAX_DEPTH) -> Any:
        """Return JSON data with `HIDDEN` instead of what is not shown, also in texts that are JSON."""
        if isinstance(value, dict):
            return {
                key: HIDDEN if self.covers(key) else self._below(item, depth)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._below(item, depth) for item in value]
        return self._text(value, depth) if isinstance(value, str) else value

    def _text(self, text: str, depth: int) -> str:
        if text.lstrip()[:1] not in _OPENING or not self.covers(text):
            return text
        try:
            value = from_json(text)
        except ValueError:
            return text
        visible_value = self.shown(value, depth=depth - 1)
        return text if visible_value == value else to_json(visible_value).decode()

    def _below(self, value: Any, depth: int) -> Any:
        return self.shown(value, depth=depth - 1) if depth > 1 else HIDDEN


def _bare(name: str) -> str:
    return name.strip().lower().replace("-", "").replace("_", "")


MAX_METADATA_BYTES: Final = 64 * 1024
"""The largest object, as JSON text in UTF-8."""


def metadata_text(value: Mapping[str, JsonValue], *, what: str) -> str:
    """Return the JSON text of an object, in its order of keys.

    Raises:
        NotSerializableError: It is not JSON data, has a text with a NUL or half a surrogate pair, or is
            larger than `MAX_METADATA_BYTES`.
    """
    return to_json(_check_object(value, what)).decode()


def checked_filter(
    value: Mapping[str, JsonValue] | None, *, what: str
) -> dict[str, JsonValue] | None:
    """Return a filter as it is compared with metadata; None if it lets everything through.

    Raises:
        NotSerializableError: See `metadata_text`.
    """
    return _check_object(value, what) if value else None


def matches(metadata: Mapping[str, JsonValue], conditions: Mapping[str, JsonValue]) -> bool:
    """Return True if the metadata has each key that is wanted, with a value equal as JSON."""
    return all(
        key in metadata and is_equal_json(metadata[key], value) for key, value in conditions.items()
    )


def is_equal_json(value: JsonValue, other: JsonValue) -> bool:
    """Return True if two values are the same JSON, as PostgreSQL's `jsonb` compares them.

    Numbers are equal by their decimal value: 1 is 1.0, and 1e23 is ten to the 23rd. A boolean is no number.
    Lists have the same values in the same order; objects have the same keys, in any order, nothing more.
    """
    match value, other:
        case (bool(), _) | (_, bool()):
            return value is other
        case (int() | float(), int() | float()):
            return _decimal(value) == _decimal(other)
        case (list(), list()):
            return len(value) == len(other) and all(map(is_equal_json, value, other))
        case (dict(), dict()):
            return value.keys() == other.keys() and matches(value, other)
        case _:
            return type(value) is type(other) and value == other


def _decimal(number: float) -> Decimal:
    return Decimal(repr(number))


def _check_object(value: Mapping[str, JsonValue], what: str) -> dict[str, JsonValue]:
    if not isinstance(value, Mapping):
        raise NotSerializableError(what, type(value).__name__, "it has to be an object")
    data, size = sized(dict(value), where=what)
    assert isinstance(data, dict)
    if size > MAX_METADATA_BYTES:
        problem = f"{size} bytes as JSON, more than {MAX_METADATA_BYTES}: keep the rest as content"
        raise NotSerializableError(what, "dict", problem)
    return data
