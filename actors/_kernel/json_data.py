"""A test whether a value is JSON data, with the standard library alone."""

from __future__ import annotations

from typing import Final

from actors.errors import NotSerializableError

MAX_ERROR: Final = 8_000
"""The longest text of an error that is kept, in characters."""

SCALARS = (str, int, bool, type(None))
MAX_DEPTH = 64
MAX_DIGITS: Final = 4_300
"""Number of digits of the longest integer. Decoders of JSON read no longer one, though encoders write it."""
_FIRST_TOO_LONG: Final = 10**MAX_DIGITS
TOO_LONG: Final = f"more than {MAX_DIGITS:,} digits: record it as text, for example by hex()"
"""The problem with a longer integer, and the remedy."""
REPLACEMENT: Final = "\ufffd"
"""The character in place of one that cannot be stored."""


def check_json(value: object, *, where: str) -> None:
    """Refuse what `recordable` refuses; what passes is JSON data as it is.

    Raises:
        NotSerializableError: See `recordable`.
    """
    _check(value, where, 0)


def check_text(value: object, where: str) -> None:
    """Refuse text that no database and no other language takes.

    Raises:
        NotSerializableError: A NUL, or half a surrogate pair.
    """
    if isinstance(value, str) and ("\x00" in value or not _encodable(value)):
        raise NotSerializableError(where, "str", "contains a NUL or an unpaired surrogate")


def check_integer(value: int, where: str) -> None:
    """Refuse an integer that could be written and never read again.

    Raises:
        NotSerializableError: It has more than `MAX_DIGITS` digits.
    """
    if not is_short(value):
        raise NotSerializableError(where, "int", TOO_LONG)


def is_short(value: int) -> bool:
    """Return True if an integer has at most `MAX_DIGITS` digits. The time does not depend on its length."""
    return -_FIRST_TOO_LONG < value < _FIRST_TOO_LONG


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
    if depth > MAX_DEPTH:
        raise NotSerializableError(where, type(value).__name__, f"nested deeper than {MAX_DEPTH}")
    kind = type(value)
    if kind is str:
        check_text(value, where)
    elif kind is int:
        check_integer(value, where)  # type: ignore[arg-type]
    elif kind in SCALARS:
        return
    elif kind is float:
        if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN test
            raise NotSerializableError(where, "float", "NaN and infinity are not JSON")
    elif kind is dict:
        for key, item in value.items():  # type: ignore[attr-defined]
            if type(key) is not str:
                raise NotSerializableError(where, type(key).__name__, "keys must be str")
            check_text(key, where)
            _check(item, where, depth + 1)
    elif kind is list or kind is tuple:
        for item in value:  # type: ignore[attr-defined]
            _check(item, where, depth + 1)
    else:
        raise NotSerializableError(where, kind.__name__)


def clean_text(text: str, limit: int = MAX_ERROR) -> str:
    """Return text that can be stored: without NUL and half surrogate pairs, and not without end."""
    plain = str.__str__(text)[:limit]  # not a subclass with ways of its own
    plain = plain.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()
    return plain[:limit]


def clean(text: str) -> str:
    """Return the text with U+FFFD for NUL and unpaired surrogates. Surrogate pairs become their character."""
    if "\x00" in text:
        text = text.replace("\x00", REPLACEMENT)
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
