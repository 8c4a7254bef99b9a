"""Errors as data: what the log keeps of an exception, and the exception made from it again.

Live code gets the rebuilt error too, so that an author's `except` sees the same live and on replay.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pydantic_core import to_json

from actors.errors import EffectError, RetryAfter
from actors.kernel.json import JsonValue, recordable
from actors.kernel.json_data import MAX_ERROR, clean_text
from actors.kernel.runtime.effects import EffectMode

_MAX_NAME: Final = 500
_MAX_ARGS_BYTES: Final = 256 * 1024
_MARK: Final = "__callboard_origin__"


def record_error(exc: BaseException) -> dict[str, JsonValue]:
    """Return ``{"type": "module:Class", "message": text, "args": [...]}``; args only if JSON data.

    Raises nothing, whatever the error does that is looked at.
    """
    record: dict[str, JsonValue] = {"type": type_of(exc), "message": text_of(exc)}
    if issubclass(type(exc), EffectError):
        return record
    try:
        # Reads the slot of BaseException: a subclass may define `args` as a property, which is code.
        args = recordable(list(BaseException.args.__get__(exc)), where="error")  # type: ignore[attr-defined]
        if args != [record["message"]] and len(to_json(args)) <= _MAX_ARGS_BYTES:
            record["args"] = args
    except Exception:  # noqa: BLE001 - arguments are kept where that is possible
        return record
    return record


def type_of(exc: BaseException) -> str:
    """Return ``module:Class`` of an error, or what an `EffectError` says instead."""
    cls = type(exc)
    try:
        name = exc.error_type if isinstance(exc, EffectError) else None
        return clean_text(name or f"{cls.__module__}:{cls.__qualname__}", _MAX_NAME)
    except BaseException:  # noqa: BLE001 - properties of the author's class
        return clean_text(type.__getattribute__(cls, "__name__"), _MAX_NAME)


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
    """Return the recorded error: its own class where that is loaded and rebuilds, else `EffectError`.

    No module is imported because a log names it.
    """
    name, message = str(record.get("type")), str(record.get("message"))
    cls = _loaded_class(name)
    if cls is not None:
        args = record.get("args")
        candidates: list[list[JsonValue]] = [[message]]
        if isinstance(args, list):
            candidates.insert(0, args)
        for candidate in candidates:
            exc = _build(cls, candidate, message)
            if exc is not None:
                return exc
    return EffectError(name, message)


def _build(cls: type[Exception], args: list[JsonValue], message: str) -> Exception | None:
    try:
        exc = cls(*args)
        return exc if text_of(presentable(exc)) == message else None
    except BaseException:  # noqa: BLE001 - any constructor may refuse; then the next way is tried
        return None


def _loaded_class(name: str) -> type[Exception] | None:
    module, _, qualname = name.partition(":")
    found: object = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, Exception):
        return found
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
        setattr(exc, _MARK, Provenance(seq, may_repeat))
    return exc


def origin_of(exc: BaseException) -> Provenance | None:
    """Return the origin of the first recorded error along ``__cause__`` and ``__context__``."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [exc]
    while todo:
        error = todo.pop(0)
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        try:
            origin = getattr(error, _MARK, None)
            todo += [error.__cause__, error.__context__]
        except Exception:  # noqa: BLE001, S112 - attributes of the author's class
            continue
        if isinstance(origin, Provenance):
            return origin
    return None
