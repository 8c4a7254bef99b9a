"""JSON data: the only shape in which an author's values are recorded."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import partial
from itertools import islice
from numbers import Integral, Real
from typing import Any, Final, TypeAlias, TypeGuard, TypeVar, cast

from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from actors._kernel.json_data import MAX_DEPTH, SCALARS, check_json, clean, clean_text, is_short
from actors.errors import ContractError, NotSerializableError, StoreRefusedError

__all__ = [
    "JsonValue",
    "Unreadable",
    "as_json_data",
    "canonical_json",
    "check_json",
    "check_readable",
    "compact_encoder",
    "decoded",
    "decoded_object",
    "fresh",
    "is_unreadable_row",
    "number_of",
    "read_or",
    "recordable",
    "sized",
    "unfenced",
]

T = TypeVar("T")

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
MAX_ITEMS: Final = 100_000
"""Number of items that are taken from an iterator, which may be endless."""
_TOO_DEEP: Final = "(nested too deep to be shown)"

DATA_CORRUPTED: Final = "XX001"
"""The SQLSTATE of a row that is there and cannot be read."""
_MAX_PROBLEM: Final = 500
_PROBLEMS: Final = (ValueError, KeyError, TypeError, AttributeError, IndexError, ContractError)
"""Errors of decoders for a row of another form: not JSON, an integer that is too long, a missing field."""


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
        # Its error names the value and a remedy; that of the encoder does not.
        check_json(value, where="arguments")
        raise NotSerializableError("arguments", type(value).__name__, str(exc)) from exc


def recordable(value: object, *, where: str) -> JsonValue:
    """Return `value` exactly as replay will return it: tuples become lists, nothing is guessed.

    Args:
        value: What an author's function returned.
        where: Names the location in the error, for example ``step 'charge' at 4``.

    Raises:
        NotSerializableError: Not JSON data: another type, a key that is not a str, NaN or infinity, an
            integer of more than 4,300 digits, or nested deeper than 64.
    """
    if type(value) in SCALARS:
        check_json(value, where=where)
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
    data: Any = value
    kind = type(data)
    if kind is dict:
        return cast("T", {key: fresh(item) for key, item in data.items()})
    if kind is list or kind is tuple:
        return cast("T", kind(map(fresh, data)))
    return value


def unfenced(text: str) -> str:
    """Return the text within the fence of Markdown that models put around JSON; without a fence, the text."""
    body = text.strip()
    return body.partition("\n")[2].rpartition("```")[0].strip() if body.startswith("```") else body


def number_of(value: object) -> float:
    """Return a number of JSON data; 0 for anything else."""
    return float(value) if isinstance(value, int | float) else 0.0


def as_json_data(value: object) -> JsonValue:
    """Return any value as JSON data; JSON data is returned as it is.

    NUL and half surrogate pairs become U+FFFD, NaN and infinity text, and an integer that no decoder reads
    hexadecimal text. Bytes become text, or base64 if they are none. Models, dataclasses, enums, dates, sets
    and the like become what pydantic makes of them, keys become text, and any other object its `str`. An
    exception of a value's own iteration is raised.
    """
    try:
        # In a list, because the value will be part of an entry.
        check_json([value], where="value")
    except (NotSerializableError, RecursionError):
        return _data_of(value, 1)
    return value  # type: ignore[return-value]


def _data_of(value: object, depth: int) -> JsonValue:  # noqa: PLR0911 - one for each kind
    if depth >= MAX_DEPTH:
        return _TOO_DEEP
    match value:
        case None | bool():
            return value
        case Enum():  # before text and numbers: an enum may be both
            return _data_of(value.value, depth + 1)
        case str():
            return clean(str.__str__(value))
        case Integral():
            number = int(value)
            return number if is_short(number) else hex(number)
        case Real():
            return float(value) if math.isfinite(value) else str(float(value))
        case bytes() | bytearray() | memoryview():
            data = bytes(value)
            try:
                return clean(data.decode())
            except UnicodeDecodeError:
                return base64.b64encode(data).decode()
        case Mapping():
            return {_key_of(key): _data_of(item, depth + 1) for key, item in value.items()}
        case Sequence() | AbstractSet() | ValuesView():
            return [_data_of(item, depth + 1) for item in value]
        case Iterator():
            return [_data_of(item, depth + 1) for item in islice(value, MAX_ITEMS)]
    return _data_of_object(value, depth)


def _data_of_object(value: object, depth: int) -> JsonValue:
    for convert in (partial(to_jsonable_python, bytes_mode="base64"), _fields_of):
        try:
            return _data_of(convert(value), depth + 1)
        # Code of the value's class may raise anything: the next way is tried.
        except Exception:  # noqa: BLE001, S112
            continue
    try:
        return clean(str(value))
    # So may its `__str__`, and the entry has to be written all the same.
    except Exception:  # noqa: BLE001
        return f"({type(value).__name__} without a text)"


def _fields_of(value: object) -> Any:
    """Return the fields of an object that pydantic cannot serialise, for example because of a text in it."""
    if (dump := getattr(value, "model_dump", None)) is not None:
        return dump()
    if (to_list := getattr(value, "tolist", None)) is not None:  # an array of numpy
        return to_list()
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}  # type: ignore[arg-type]


def _key_of(key: object) -> str:
    """Return a key as text: that of a number or None as in JSON."""
    data = _data_of(key, 0)
    return data if isinstance(data, str) else to_json(data).decode()


class Unreadable(str):
    """Text that stands in place of a stored value and says why that cannot be decoded.

    Lists show it. It is never recorded: only a `str` itself is JSON data.
    """

    __slots__ = ()


def decoded(text: str | bytes) -> Any:
    """Return the value of stored JSON text, or an `Unreadable` in its place."""
    return read_or(text, from_json, lambda problem: problem)


def decoded_object(text: str | bytes) -> dict[str, Any]:
    """Return the object of stored JSON text; if that cannot be read, one that says so."""
    value = decoded(text)
    return value if isinstance(value, dict) else {"unreadable": value}


def read_or(text: Any, read: Callable[[Any], T], instead: Callable[[Unreadable], T]) -> T:
    """Return what `read` makes of a stored value, or what stands in its place if it cannot."""
    try:
        return read(text)
    except _PROBLEMS as exc:
        first_problem = " ".join(str(exc).partition(" [type=")[0].split())  # pydantic lists all
        problem = clean_text(f"{type(exc).__name__}: {first_problem}", _MAX_PROBLEM)
        return instead(Unreadable(f"cannot be read ({problem})"))


def check_readable(value: object, what: str) -> None:
    """Check that a value was decoded.

    Raises:
        StoreRefusedError: Its row cannot be read.
    """
    if isinstance(value, Unreadable):
        raise StoreRefusedError(f"reading {what}", str(value), DATA_CORRUPTED)


def is_unreadable_row(exc: object) -> TypeGuard[StoreRefusedError]:
    """Return True if an error says that a row is there and cannot be read."""
    return isinstance(exc, StoreRefusedError) and exc.sqlstate == DATA_CORRUPTED
