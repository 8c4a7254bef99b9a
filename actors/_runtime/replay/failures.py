"""Errors as data: what the log keeps of an exception, and the exception made from it again.

Live code gets the rebuilt error too, so that an author's `except` sees the same live and on replay. An error
is whole if its class makes another one of its facts (constructor arguments and attributes) that has the same
facts, as `pickle` would. `ContinueAsNew` is no error, but the control signal of `ctx.continue_as_new`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, cast

from pydantic_core import to_json

from actors._kernel import wire_names
from actors._kernel.json import JsonValue, fresh, recordable
from actors._kernel.json_data import MAX_ERROR, clean_text
from actors._kernel.runtime.effects import EffectMode
from actors.errors import ActorsError, EffectError, NotSerializableError, RecordedError, RetryAfter

_MAX_NAME: Final = 500
_NOTHING: Final[Mapping[str, JsonValue]] = MappingProxyType({})


def record_error(exc: BaseException) -> dict[str, JsonValue]:
    """Return ``{"type": name, "message": text, "args": [...]}``; args only if JSON data. See `wire_names`.

    Raises nothing, whatever the error does that is looked at.
    """
    record: dict[str, JsonValue] = {"type": type_of(exc), "message": text_of(exc)}
    if issubclass(type(exc), EffectError):
        return record
    try:
        # Read the slot of BaseException: a subclass may define `args` as a property, which is code.
        args = as_data(list(BaseException.args.__get__(exc)))  # type: ignore[attr-defined]
        if args != [record["message"]]:
            record["args"] = args
    except Exception:  # noqa: BLE001 - arguments are kept where that is possible
        return record
    return record


def record_failure(exc: BaseException) -> dict[str, JsonValue]:
    """Return `record_error` of an effect's error, with all that it takes to build it again.

    ``args`` are then those of its constructor, and ``attributes`` stands where the constructor alone does not
    make the same error. With ``rebuilt`` false nothing does, and they are only told.
    """
    record, cls = record_error(exc), type(exc)
    if issubclass(cls, RecordedError):
        recorded_exc = cast("RecordedError", exc)
        record["rebuilt"] = False
        if recorded_exc.arguments:
            record["args"] = recorded_exc.arguments
        if recorded_exc.attributes:
            record["attributes"] = recorded_exc.attributes
        return record
    if issubclass(cls, EffectError) or not issubclass(cls, Exception):
        return record
    try:
        _add_facts(record, exc)
    except BaseException:  # noqa: BLE001 - code of the author's class
        record["rebuilt"] = False
    return record


def _add_facts(record: dict[str, JsonValue], exc: BaseException) -> None:
    """Add to a record what it takes to build the error again, or that nothing does."""
    facts = facts_of(exc)
    with suppress(NotSerializableError, ValueError):
        args = as_data(list(facts.args))
        if args != [record["message"]]:
            record["args"] = args
    if (rebuilt := _built(record)) is not None and facts_of(rebuilt).equal(facts):
        return
    if attributes := data_of(facts.attributes):
        record["attributes"] = attributes
        if (rebuilt := _built(record)) is not None and facts_of(rebuilt).equal(facts):
            return
    record["rebuilt"] = False


def type_of(exc: BaseException) -> str:
    """Return the name of an error's class in logs, or what an `EffectError` says instead."""
    cls = type(exc)
    try:
        name = exc.error_type if isinstance(exc, EffectError) else None
        return clean_text(name or wire_names.name_of(cls), _MAX_NAME)
    except BaseException:  # noqa: BLE001 - properties of the author's class
        return clean_text(type.__getattribute__(cls, "__name__"), _MAX_NAME)


def is_named(exc: BaseException, names: Collection[str]) -> bool:
    """Return True if an error's class, or that of the error which it tells of, has one of these names."""
    recorded_name = type_of(exc).rpartition(":")[2].rpartition(".")[2]
    return type(exc).__name__ in names or recorded_name in names


def text_of(exc: BaseException) -> str:
    """Return the text of an error as it can be stored, also of one that has none."""
    try:
        return clean_text(exc.message if isinstance(exc, EffectError) else str(exc), MAX_ERROR)
    except BaseException as why:  # noqa: BLE001 - also one that asks the process to end
        return f"(its text cannot be had: {type.__getattribute__(type(why), '__name__')})"


def presentable(exc: BaseException) -> BaseException:
    """Return the error, or one that says the same of an error whose class cannot be asked for."""
    try:
        isinstance(exc, str)
    except BaseException:  # noqa: BLE001 - a property `__class__` is code of the author
        return EffectError(type_of(exc), text_of(exc))
    return exc


def rebuild_error(record: dict[str, JsonValue]) -> Exception:
    """Return the recorded error, of its own class if that is loaded and makes the same error.

    Else a `RecordedError` with the name and the text, also if no release has a class of that name. No module is
    imported because a log names it.
    """
    exc = _own_base(record) if record.get("rebuilt") is False else _built(record)
    return exc or _recorded(record)


def _own_base(record: dict[str, JsonValue]) -> Exception | None:
    """Return an error of the runtime's class that the recorded one is derived from, with the same text.

    So a `TerminalError` of an author stays final, and a `RetryAfter` says when.
    """
    cls, args = _loaded_class(str(record.get("type"))), record.get("args")
    message = str(record.get("message"))
    candidates: list[list[JsonValue]] = [args if isinstance(args, list) else [], [message]]
    for base in () if cls is None else cls.__mro__[1:]:
        if issubclass(base, ActorsError) and base.__module__ == ActorsError.__module__:
            for candidate in candidates:
                if (exc := _build(base, candidate, message)) is not None:
                    return exc
    return None


def _recorded(record: dict[str, JsonValue]) -> RecordedError:
    args, attributes = record.get("args"), record.get("attributes")
    return RecordedError(
        str(record.get("type")),
        str(record.get("message")),
        args if isinstance(args, list) else [],
        attributes if isinstance(attributes, dict) else {},
    )


def _built(record: dict[str, JsonValue]) -> Exception | None:
    """Return the error as its own class makes it from the record; None if it does not, or is not loaded."""
    cls, message = _loaded_class(str(record.get("type"))), str(record.get("message"))
    if cls is None:
        return None
    args, attributes = record.get("args"), record.get("attributes")
    # A record leaves `args` out if they are the text alone.
    candidates: list[list[JsonValue]] = [[message]]
    if isinstance(args, list):
        candidates.insert(0, args)
    for candidate in candidates:
        exc = _build(cls, candidate, message, attributes if isinstance(attributes, dict) else {})
        if exc is not None:
            return exc
    return None


def _build(
    cls: type[Exception],
    args: list[JsonValue],
    message: str,
    attributes: Mapping[str, JsonValue] = _NOTHING,
) -> Exception | None:
    try:
        exc = cls(*fresh(args))
        set_attributes(exc, fresh(dict(attributes)))
        return exc if text_of(presentable(exc)) == message else None
    except BaseException:  # noqa: BLE001 - any constructor may refuse; then the next way is tried
        return None


def _loaded_class(name: str) -> type[Exception] | None:
    module, _, qualname = wire_names.path_of(name).partition(":")
    target: object = sys.modules.get(module)
    for part in qualname.split("."):
        target = getattr(target, part, None)
    if isinstance(target, type) and issubclass(target, Exception):
        return target
    return None


def recorded_error(payload: dict[str, JsonValue]) -> Exception:
    """Return the error that an entry holds, rebuilt."""
    record = payload.get("error")
    return rebuild_error(record if isinstance(record, dict) else {})


def raise_if_refused(seq: int, payload: dict[str, JsonValue]) -> None:
    """Check that the entry is no refusal.

    Raises:
        Exception: What was recorded, rebuilt; it may be the error that ends an attempt.
    """
    if payload.get("status") == "error":
        raise mark_recorded(recorded_error(payload), seq, may_repeat=True)


def outcome_of(seq: int, payload: dict[str, JsonValue], mode: EffectMode) -> JsonValue:
    """Return what an entry holds of an effect: the value, or raise the error.

    Raises:
        Exception: What was recorded, rebuilt.
    """
    if payload.get("action") == "fail" or payload.get("status") == "error":
        raise _failure(seq, payload, mode)
    return payload.get("value")


def _failure(seq: int, payload: dict[str, JsonValue], mode: EffectMode) -> Exception:
    if payload.get("action") == "fail":
        exc: Exception = EffectError("operator", str(payload.get("error") or "failed by operator"))
    else:
        exc = recorded_error(payload)
    may_repeat = mode is EffectMode.IDEMPOTENT or isinstance(exc, RetryAfter)
    return mark_recorded(exc, seq, may_repeat=may_repeat)


@dataclass(frozen=True, slots=True)
class Provenance:
    """The log entry that an error came from, and whether that effect may execute again."""

    seq: int
    may_repeat: bool


def mark_recorded(exc: Exception, seq: int, *, may_repeat: bool) -> Exception:
    """Remember on the error which log entry it came from, and return it.

    Raise it from here, without a variable: the frame would have the error, whose traceback has the frame,
    and only the garbage collector would free both.
    """
    with suppress(Exception):  # such as one with __slots__: the ending is then the last seq
        setattr(exc, ORIGIN, Provenance(seq, may_repeat))
    return exc


def origin_of(exc: BaseException) -> Provenance | None:
    """Return the origin of the first recorded error along ``__cause__`` and ``__context__``."""
    seen_ids: set[int] = set()
    pending: list[BaseException | None] = [exc]
    while pending:
        error = pending.pop(0)
        if error is None or id(error) in seen_ids:
            continue
        seen_ids.add(id(error))
        try:
            origin = getattr(error, ORIGIN, None)
            pending += [error.__cause__, error.__context__]
        except Exception:  # noqa: BLE001, S112 - attributes of the author's class
            continue
        if isinstance(origin, Provenance):
            return origin
    return None


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
    args: tuple[Any, ...] = BaseException.args.__get__(exc)  # type: ignore[attr-defined]
    state: object = None
    match exc.__reduce_ex__(2):
        case (cls, tuple() as arguments, *rest) if cls is type(exc):
            args, state = arguments, rest[0] if rest else None
    if len(args) == 1 and isinstance(args[0], BaseException):
        # Of an error that an error was made of, its text is all that is kept.
        args = (str(args[0]),)
    attributes = {**vars(exc)}
    if isinstance(state, Mapping):
        attributes |= state
    for base in type(exc).__mro__:
        slots = vars(base).get("__slots__", ())
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
    data: dict[str, JsonValue] = {}
    for name, value in attributes.items():
        try:
            data[name] = as_data(value)
        except Exception:  # noqa: BLE001, S112 - objects of the author
            continue
    return data if len(to_json(data)) <= MAX_BYTES else {}


def set_attributes(exc: BaseException, attributes: Mapping[str, JsonValue]) -> None:
    """Give an error that was built again the attributes that were recorded, past what its class does."""
    for name, value in attributes.items():
        # Past the class's own `__setattr__`, which may refuse or change a value.
        object.__setattr__(exc, name, value)


def _same(first: object, second: object) -> bool:
    try:
        if first is second or (type(first) is type(second) and bool(first == second)):
            return True
        return recordable(first, where="error") == recordable(second, where="error")
    except Exception:  # noqa: BLE001 - comparisons of the author's objects
        return False


class ContinueAsNew(BaseException):
    """The run starts again from the top with `input`. Let it pass."""

    def __init__(self, input: JsonValue) -> None:  # noqa: A002
        super().__init__(input)
        self.input = input
