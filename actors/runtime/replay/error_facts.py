"""The facts of an error beside its class and its text: constructor arguments and attributes.

An error is whole if its class makes another one of these that has the same facts, as `pickle` would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_core import to_json

from actors.kernel.json import JsonValue, recordable

MAX_BYTES: Final = 256 * 1024
"""Largest arguments, and largest attributes, that are kept, as JSON."""
ORIGIN: Final = "__callboard_origin__"
"""The attribute by which an error remembers the entry that it came from; no fact of its own."""
_NAMED: Final = (AttributeError, NameError)
"""Classes with a `name` that neither their arguments nor their dictionary have."""


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """The facts of an error.

    Attributes:
        args: Its constructor arguments.
        attributes: By name.
    """

    args: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)

    def equal(self, other: ErrorFacts) -> bool:
        """Return whether both are the same facts, or the same JSON data."""
        names = self.attributes.keys()
        return (
            names == other.attributes.keys()
            and _same(self.args, other.args)
            and all(_same(self.attributes[name], other.attributes[name]) for name in names)
        )


def facts_of(exc: BaseException) -> ErrorFacts:
    """Return an error's facts. It may call code of the error's class, which may raise anything."""
    args, state = BaseException.args.__get__(exc), None  # type: ignore[attr-defined]
    match exc.__reduce_ex__(2):
        case (made_by, tuple() as given, *rest) if made_by is type(exc):
            args, state = given, rest[0] if rest else None
    if len(args) == 1 and isinstance(args[0], BaseException):
        args = (
            str(args[0]),
        )  # of an error that an error was made of, its text is all that is kept
    attributes = {**vars(exc)}
    if isinstance(state, Mapping):
        attributes |= state
    for cls in type(exc).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(exc, name):
                attributes[name] = getattr(exc, name)
    if isinstance(exc, _NAMED) and exc.name is not None:
        attributes["name"] = exc.name
    attributes.pop(ORIGIN, None)
    return ErrorFacts(args, attributes)


def as_data(value: object) -> JsonValue:
    """Return a fact as it is recorded.

    Raises:
        NotSerializableError: It is not JSON data.
        ValueError: It is too large.
    """
    data = recordable(value, where="error")
    if len(to_json(data)) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes of an error")
    return data


def data_of(attributes: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return those attributes that are JSON data, of together at most 256 KiB."""
    found: dict[str, JsonValue] = {}
    for name, value in attributes.items():
        try:
            found[name] = as_data(value)
        except Exception:  # noqa: BLE001, S112 - objects of the author
            continue
    return found if len(to_json(found)) <= MAX_BYTES else {}


def set_attributes(exc: BaseException, attributes: Mapping[str, JsonValue]) -> None:
    """Give an error that was built again the attributes that were recorded, past what its class does."""
    for name, value in attributes.items():
        object.__setattr__(exc, name, value)


def _same(one: object, other: object) -> bool:
    try:
        if one is other or (type(one) is type(other) and bool(one == other)):
            return True
        return recordable(one, where="error") == recordable(other, where="error")
    except Exception:  # noqa: BLE001 - comparisons of the author's objects
        return False
