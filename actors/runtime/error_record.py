"""Errors as data: what the log keeps of an exception, and the exception made from it again.

Live code gets the rebuilt error too, so that an author's `except` sees the same live and on replay.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from actors.errors import EffectError, NotSerializableError
from actors.kernel.json import recordable

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue

_MAX_MESSAGE: Final = 8_000
_MARK: Final = "__callboard_origin__"


def record_error(exc: BaseException) -> dict[str, JsonValue]:
    """Return ``{"type": "module:Class", "message": text, "args": [...]}``; args only if JSON data."""
    cls = type(exc)
    if isinstance(exc, EffectError):
        return {"type": exc.error_type, "message": exc.message}
    record: dict[str, JsonValue] = {
        "type": f"{cls.__module__}:{cls.__qualname__}",
        "message": _clean(str(exc))[:_MAX_MESSAGE],
    }
    try:
        args = recordable(list(exc.args), where="error")
    except NotSerializableError:
        return record
    if args != [record["message"]]:
        record["args"] = args
    return record


def _clean(text: str) -> str:
    return text.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()


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
    except Exception:  # noqa: BLE001 - any constructor may refuse; then the next way is tried
        return None
    return exc if str(exc)[:_MAX_MESSAGE] == message else None


def _loaded_class(name: str) -> type[Exception] | None:
    module, _, qualname = name.partition(":")
    found: object = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, Exception):
        return found
    return None


@dataclass(frozen=True, slots=True)
class Origin:
    """Which log entry an error came from, and whether that effect may execute again."""

    seq: int
    may_repeat: bool


def mark_recorded(exc: BaseException, seq: int, *, may_repeat: bool) -> None:
    """Remember on the error which log entry it came from."""
    try:
        setattr(exc, _MARK, Origin(seq, may_repeat))
    except AttributeError:  # an exception class with __slots__: the ending is then the last seq
        return


def origin_of(exc: BaseException) -> Origin | None:
    """Return the origin of the first recorded error along ``__cause__`` and ``__context__``."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [exc]
    while todo:
        error = todo.pop(0)
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        origin = getattr(error, _MARK, None)
        if isinstance(origin, Origin):
            return origin
        todo += [error.__cause__, error.__context__]
    return None
