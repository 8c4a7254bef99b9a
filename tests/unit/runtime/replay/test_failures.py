"""Errors as data: what the log keeps of an exception, and the exception made from it again."""

from __future__ import annotations

import json
import sys
from subprocess import CalledProcessError
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from pydantic_core import from_json, to_json
from typing_extensions import override

from actors._kernel import wire_names
from actors._kernel.json_data import MAX_ERROR, clean_text
from actors._runtime.replay.failures import (
    Provenance,
    is_named,
    mark_recorded,
    origin_of,
    presentable,
    raise_if_refused,
    rebuild_error,
    record_error,
    record_failure,
    text_of,
    type_of,
)
from actors.errors import EffectError, RecordedError, RetryAfter, TerminalError

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue


class SpeechlessError(Exception):
    """An error whose text cannot be had."""

    @override
    def __str__(self) -> str:
        raise KeyError("no text")


class LeavingError(Exception):
    """An error whose text ends the process."""

    @override
    def __str__(self) -> str:
        raise SystemExit(3)


class FacelessError(Exception):
    """An error whose class cannot be asked for."""

    @property  # type: ignore[misc]
    @override
    def __class__(self) -> NoReturn:  # type: ignore[override]
        """Nobody shall know."""
        raise OSError("no class")


class PickyError(Exception):
    """An error that is made from other arguments than its text."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(left, right)
        self.sum = left + right

    @override
    def __str__(self) -> str:
        return f"the sum is {self.sum}"


class MoodyError(Exception):
    """An error that says something else each time it is made."""

    made = 0

    def __init__(self, text: str) -> None:
        super().__init__(text)
        MoodyError.made += 1

    @override
    def __str__(self) -> str:
        return f"mood {MoodyError.made}"


class StatusError(Exception):
    """An error with an attribute that its arguments do not have."""

    def __init__(self, text: str, status: int = 0, answer: object = None) -> None:
        super().__init__(text)
        self.status, self.answer = status, answer


class KeywordError(Exception):
    """An error that its arguments alone do not make."""

    def __init__(self, text: str, *, status: int) -> None:
        super().__init__(text)
        self.status = status


class SlotError(Exception):
    """An error with a slot."""

    __slots__ = ("code",)

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class FinalStatusError(TerminalError):
    """An error that ends a run, with an object that is not recorded."""

    def __init__(self, text: str, answer: object) -> None:
        super().__init__(text)
        self.answer = answer


class LockedError(Exception):
    """An error that is no data at all."""

    @override
    def __reduce__(self) -> str:
        raise SystemExit(3)


class ClosedError(Exception):
    """An error that nothing can be remembered on."""

    @override
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


@pytest.mark.parametrize(
    "exc",
    [
        ValueError("x"),
        KeyError("k"),
        RetryAfter(3.0, "busy"),
        OSError(2, "No such file"),
        FileNotFoundError(2, "no", "f"),
    ],
)
def test_an_error_comes_back_as_its_own_class_and_text(exc: Exception) -> None:
    """Live and replay raise the same: class and message of the original."""
    again = rebuild_error(record_error(exc))

    assert type(again) is type(exc)
    assert str(again) == str(exc)


def test_an_error_that_cannot_be_rebuilt_is_an_effect_error_with_its_name() -> None:
    """A class that is not loaded, or refuses the recorded arguments, is named."""
    again = rebuild_error({"type": "no.such.module:Gone", "message": "boo"})

    assert isinstance(again, EffectError)
    assert str(again) == "no.such.module:Gone: boo"


def test_an_error_that_is_made_from_several_arguments_comes_back_whole() -> None:
    """Its arguments are kept where its text alone would not make it again."""
    record = record_error(PickyError(1, 2))

    again = rebuild_error(record)

    assert record["args"] == [1, 2]
    assert isinstance(again, PickyError)
    assert again.sum == 3


def test_arguments_are_kept_only_where_they_are_data_and_say_more_than_the_text() -> None:
    """No object, nothing of a quarter of a megabyte, and no text twice."""
    assert "args" not in record_error(ValueError(object()))
    assert "args" not in record_error(ValueError("x" * 300_000))
    assert "args" not in record_error(ValueError("x"))
    assert record_error(ValueError("x", 1))["args"] == ["x", 1]


def _noted() -> Exception:
    exc = StatusError("gone", 410)
    exc.add_note("of order 7")
    return exc


def _of_log(exc: Exception) -> Exception:
    return rebuild_error(from_json(to_json(record_failure(exc))))


@pytest.mark.parametrize(
    ("exc", "names"),
    [
        (StatusError("gone", 410), ["status"]),
        (_noted(), ["status", "__notes__"]),
        (SlotError("gone", 7), ["code"]),
        (FileNotFoundError(2, "no such file", "/x"), ["errno", "strerror", "filename"]),
        (ConnectionRefusedError(111, "refused"), ["errno"]),
        (ImportError("no", name="x", path="/x"), ["name", "path"]),
        (NameError("no", name="x"), ["name"]),
        (json.JSONDecodeError("no", "{", 1), ["doc", "pos", "lineno"]),
        (CalledProcessError(1, ["x"], "out", "err"), ["returncode", "stdout", "stderr"]),
        (UnicodeEncodeError("ascii", "é", 0, 1, "no"), ["object", "start"]),
        (ValueError(OSError("inner")), []),
    ],
    ids=lambda argument: type(argument).__name__ if isinstance(argument, Exception) else "",
)
def test_an_error_keeps_what_it_carried(exc: Exception, names: list[str]) -> None:
    """Class, text and attributes are those of the original."""
    again = _of_log(exc)

    assert type(again) is type(exc)
    assert str(again) == str(exc)
    assert [getattr(again, name) for name in names] == [getattr(exc, name) for name in names]


@pytest.mark.parametrize(
    ("exc", "attributes"),
    [
        (StatusError("gone", 410, object()), {"status": 410}),
        (KeywordError("gone", status=410), {"status": 410}),
        (ValueError(object()), {}),
        (LockedError("x"), {}),
        (ExceptionGroup("all", [ValueError(1)]), {}),
    ],
    ids=lambda argument: type(argument).__name__ if isinstance(argument, Exception) else "",
)
def test_an_error_that_cannot_be_made_again_is_told_with_its_facts(
    exc: Exception, attributes: dict[str, Any]
) -> None:
    """It is never of the same class with other data; recorded once more, it is told the same."""
    once = _of_log(exc)

    for again in (once, _of_log(once)):
        assert isinstance(again, RecordedError)
        assert again.error_type == type_of(exc)
        assert again.message == str(exc)
        assert again.attributes == attributes


def test_an_error_of_the_runtime_keeps_its_meaning() -> None:
    """An author's `TerminalError` that cannot be made again is a `TerminalError` with its text."""
    again = _of_log(FinalStatusError("no such customer", object()))

    assert type(again) is TerminalError
    assert str(again) == "no such customer"


def test_records_of_earlier_releases_make_what_they_made() -> None:
    """They have no attributes: the class has its defaults."""
    again = rebuild_error({"type": type_of(StatusError("x")), "message": "gone"})

    assert isinstance(again, StatusError)
    assert again.status == 0


def test_a_name_that_no_release_has_is_recorded_with_its_text() -> None:
    """A log of a later release, or of code that is not installed; nor does a log without a name crash."""
    again = rebuild_error({"type": "no.such:Gone", "message": "m"})

    assert type(again) is RecordedError
    assert (again.error_type, again.message) == ("no.such:Gone", "m")
    assert type(rebuild_error({})) is RecordedError


def test_a_class_that_moved_keeps_its_name_in_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of the release before read what is written now, and their logs are read as before."""
    name, path = "actors.earlier:StatusError", f"{__name__}:StatusError"
    monkeypatch.setattr(wire_names, "CLASS_PATHS", {name: path})
    monkeypatch.setattr(wire_names, "_NAMES", {path: name})

    record = record_failure(StatusError("gone", 404))

    assert record["type"] == name
    again = rebuild_error(record)
    assert isinstance(again, StatusError)
    assert again.status == 404


def test_a_class_that_changed_since_does_not_get_other_data() -> None:
    """What was recorded of an error, and its class does not take, is told."""
    record: dict[str, JsonValue] = {"type": type_of(PickyError(1, 2)), "message": "the sum is 3"}

    again = rebuild_error(record | {"args": [1], "attributes": {"sum": 3}})

    assert isinstance(again, RecordedError)
    assert again.arguments == [1]
    assert is_named(again, {"PickyError"})
    assert not is_named(again, {"ValueError"})


@pytest.mark.parametrize(
    ("exc", "why"),
    [(SpeechlessError(), "KeyError"), (LeavingError(), "SystemExit")],
    ids=["raises", "exits"],
)
def test_an_error_without_a_text_is_recorded_all_the_same(exc: Exception, why: str) -> None:
    """What is kept says what its text raised; nothing escapes."""
    record = record_error(exc)

    assert record["message"] == f"(its text cannot be had: {why})"
    assert record["type"] == f"{__name__}:{type(exc).__qualname__}"


def test_an_error_whose_class_cannot_be_asked_for_is_presented_by_another() -> None:
    """It says the same; any other error is presented as itself."""
    stand_in, plain = presentable(FacelessError("x")), ValueError("x")

    assert isinstance(stand_in, EffectError)
    assert stand_in.error_type == "FacelessError"
    assert presentable(plain) is plain


def test_an_effect_error_keeps_what_it_stands_for() -> None:
    """Recorded again, it is the original error, not an error about one."""
    exc = EffectError("some.module:Gone", "boo")

    assert record_error(exc) == {"type": "some.module:Gone", "message": "boo"}
    assert (type_of(exc), text_of(exc)) == ("some.module:Gone", "boo")


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b", "\0" * MAX_ERROR, "x" * MAX_ERROR * 2])
def test_text_is_made_storable(text: str) -> None:
    """Neither NUL nor half a surrogate pair is left, nor more than the most that is kept."""
    clean = clean_text(text)

    clean.encode()
    assert "\0" not in clean
    assert 0 < len(clean) <= MAX_ERROR


def test_a_module_that_a_log_names_is_not_imported() -> None:
    """Nor is anything called that is no error."""
    sys.modules.pop("antigravity", None)

    assert isinstance(rebuild_error({"type": "antigravity:X", "message": "m"}), EffectError)
    assert "antigravity" not in sys.modules
    for name in ("sys:exit", "builtins:SystemExit", "builtins:int", "", "sys:modules.nothing"):
        assert isinstance(rebuild_error({"type": name, "message": "m"}), EffectError)


def test_an_error_that_would_say_something_else_is_not_made_again() -> None:
    """What agent code sees on replay has the recorded text."""
    record = record_error(MoodyError("x"))

    again = rebuild_error(record)

    assert isinstance(again, EffectError)
    assert again.message == record["message"]


def test_arguments_that_do_not_fit_any_more_give_way_to_the_text() -> None:
    """A class whose constructor changed since is made from the message if it says the same then."""
    again = rebuild_error({"type": "builtins:ValueError", "message": "m", "args": ["a", "b"]})

    assert type(again) is ValueError
    assert again.args == ("m",)


def test_an_author_who_asks_for_a_delay_is_understood_after_replay() -> None:
    """The delay survives, not only the text."""
    again = rebuild_error(record_error(RetryAfter(2.5, "busy")))

    assert isinstance(again, RetryAfter)
    assert again.delay_s == 2.5


def test_the_origin_is_that_of_the_first_recorded_error_along_the_causes() -> None:
    """An error of the code's own has one when it was raised from, or while handling, a recorded one."""
    recorded, from_it, while_handling = ValueError(), KeyError(), TypeError()
    mark_recorded(recorded, 4, may_repeat=False)
    from_it.__cause__ = recorded
    while_handling.__context__ = from_it

    assert origin_of(while_handling) == Provenance(4, may_repeat=False)
    assert origin_of(KeyError()) is None


def test_the_nearest_recorded_error_counts_and_a_cause_before_a_context() -> None:
    """As Python shows them."""
    near, cause, context = ValueError(), KeyError(), TypeError()
    for seq, exc in ((2, cause), (1, context)):
        mark_recorded(exc, seq, may_repeat=True)
    near.__cause__, near.__context__ = cause, context
    assert origin_of(near) == Provenance(2, may_repeat=True)

    mark_recorded(near, 3, may_repeat=True)
    assert origin_of(near) == Provenance(3, may_repeat=True)


def test_a_cycle_of_causes_ends_the_search() -> None:
    """So does an error on which nothing can be remembered."""
    error, other = ValueError(), KeyError()
    error.__context__, other.__context__ = other, error
    closed = ClosedError()
    mark_recorded(closed, 1, may_repeat=True)

    assert origin_of(error) is None
    assert origin_of(closed) is None


def test_a_recorded_refusal_is_raised_with_its_place_and_anything_else_passes() -> None:
    """What is raised may end an attempt, and may be tried again."""
    raise_if_refused(3, {"status": "ok"})
    error: dict[str, JsonValue] = {"type": "builtins:ValueError", "message": "no"}

    with pytest.raises(ValueError, match=r"^no$") as raised:
        raise_if_refused(3, {"status": "error", "error": error})

    assert origin_of(raised.value) == Provenance(3, may_repeat=True)
