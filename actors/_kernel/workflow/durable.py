"""Durable values of a graph in their one shape: JSON data, refused with the path of what is not.

Instants have one form. Ids and instants are drawn where the caller gave none.
"""

from __future__ import annotations

import hashlib
import marshal
import math
import uuid
from datetime import UTC, datetime
from typing import Any, Final

from actors._kernel.json import canonical_json, compact_encoder
from actors._kernel.json_data import TOO_LONG, check_text, is_short
from actors.errors import NotSerializableError

MAX_DEPTH: Final = 64
WRAPPED: Final = MAX_DEPTH + 32
"""Maximum depth of a value inside its record or row."""
TRUNCATION: Final = "#TRUNCATION"
"""The mark of a value that is kept in part."""
_ATOMS: Final = frozenset({bool, type(None)})
_row_text: Final = compact_encoder(sort_keys=False)


def durable_copy(value: Any, where: str, *, deepest: int = MAX_DEPTH) -> Any:
    """Return a deep copy of JSON data; tuples become lists.

    Args:
        value: The data.
        where: Begins the path in an error, for example ``vars``.
        deepest: Maximum depth of nested lists and objects.

    Raises:
        NotSerializableError: The path of what is not JSON data: another type, a key that is not text, NaN or
            infinity, an integer of more than 4,300 digits, text with NUL or half a surrogate pair, or nested
            too deep (so a cycle, too).
    """
    try:
        return _copy_of(value, deepest)
    except _Culprit as culprit:
        path = "".join(reversed(culprit.path))
        raise NotSerializableError(f"{where}{path}", culprit.kind, culprit.problem) from None


def plain_copy(value: Any) -> Any:
    """Return a deep copy of what is known to be JSON data: what `durable_copy` returned, or is made of that."""
    if value is None:
        return None
    return marshal.loads(marshal.dumps(value))  # noqa: S302 - of this process, written a moment ago


def row_text(value: Any) -> str:
    """Return what is known to be JSON data as the text of a row or a line: no spaces, names in their order."""
    return _row_text(value)


def json_digest(value: Any) -> str:
    """Return the SHA-256 of JSON data in hexadecimal: the same for equal data in every process."""
    return hashlib.sha256(json_text(value)).hexdigest()


def json_text(value: Any) -> bytes:
    """Return JSON data as text, in UTF-8: the same for equal data in every process."""
    return canonical_json(value).encode(errors="surrogatepass")


class _Culprit(Exception):  # noqa: N818 - a signal inside this module
    """The way back from what cannot be kept; each level adds its step."""

    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(kind)
        self.kind, self.problem = kind, problem
        self.path: list[str] = []


def _copy_of(value: Any, levels_left: int) -> Any:
    kind = type(value)
    if kind in _ATOMS or (kind is int and is_short(value)):
        return value
    if kind is str:
        return _text(value)
    if levels_left <= 0 and kind in {dict, list, tuple}:
        raise _Culprit(kind.__name__, "nested too deep, or within itself")
    if kind is dict:
        return _mapping(value, levels_left - 1)
    if kind is list or kind is tuple:
        return _sequence(value, levels_left - 1)
    if kind is float:
        if not math.isfinite(value):
            raise _Culprit("float", "NaN and infinity are not JSON")
        return value
    if isinstance(value, str):  # a StrEnum is its text
        return _text(str(value))
    raise _Culprit(kind.__name__, TOO_LONG if kind is int else "not JSON data")


def _text(value: str) -> str:
    try:
        if not value.isascii() or "\x00" in value:
            check_text(value, "")
    except NotSerializableError as exc:
        raise _Culprit("str", exc.problem) from None
    return value


def _mapping(value: dict[Any, Any], levels_left: int) -> dict[str, Any]:
    copy = {}
    for key, item in value.items():
        # Most items take this path, without a recursion and a `try`: copies are the dearest part of a step.
        if type(key) is str and key.isascii() and "\x00" not in key and _is_leaf(item):
            copy[key] = item
            continue
        if type(key) is not str:
            culprit = _Culprit(type(key).__name__, "keys must be str")
            culprit.path.append(f"[{key!r}]")
            raise culprit
        try:
            copy[_text(key)] = _copy_of(item, levels_left)
        except _Culprit as culprit:
            culprit.path.append(f".{key}")
            raise
    return copy


def _sequence(value: Any, levels_left: int) -> list[Any]:
    copy = []
    for index, item in enumerate(value):
        if _is_leaf(item):
            copy.append(item)
            continue
        try:
            copy.append(_copy_of(item, levels_left))
        except _Culprit as culprit:
            culprit.path.append(f"[{index}]")
            raise
    return copy


def _is_leaf(value: Any) -> bool:
    """Return whether a value is good as it is; most are."""
    kind = type(value)
    if kind is str:
        return value.isascii() and "\x00" not in value
    return is_short(value) if kind is int else kind in _ATOMS


def new_id() -> str:
    """Return 32 random hexadecimal digits."""
    return uuid.uuid4().hex


def utc_now_iso() -> str:
    """Return the current instant: ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat()


def normalize_utc_iso(text: Any) -> str | None:
    """Return an ISO 8601 instant in UTC, so that instants compare as text. Return None if it is none.

    ``Z`` and any offset are understood; an instant without one is in UTC.
    """
    if not isinstance(text, str) or not text.strip():
        return None
    try:
        instant = datetime.fromisoformat(text.strip())
        aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
        return aware.astimezone(UTC).isoformat()
    except (ValueError, OverflowError):  # the latter: in UTC it is in no year from 1 to 9999
        return None
