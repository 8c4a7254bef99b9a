"""What the command line refuses before it connects, and what it says when something goes wrong."""

from __future__ import annotations

import codecs
import io
import json
import math
import sys
from typing import Any, Final

import pytest
from typing_extensions import override

from compose._cli import json_escape, run
from compose._commands.app import explain_error
from compose._commands.output import Exit, print_json
from compose._commands.serve.dev import Lines
from compose._commands.terminal import print_facts, print_table, say
from tests.unit.test_help import COMMANDS

NOWHERE = "postgresql://u@127.0.0.1:1/d"
HUGE = "9" * 30


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runs", "list", "--limit", HUGE], "--limit. Give 1 to 1000000."),
        (["approvals", "list", "--limit", "0"], "--limit. Give 1 to 1000000."),
        (["followers", "news", "--limit=-3"], "--limit. Give 1 to 1000000."),
        (["runs", "log", "r", "--from-seq", HUGE], "--from-seq. Give the number of a log entry"),
        (["runs", "events", "r", "--from-seq=-1"], "--from-seq. Give the number of a log entry"),
        (["runs", "list", "--until", "9999-12-31T23:59:59-14:00"], "--until"),
        (["runs", "sweep", "--older-than", f"{HUGE}d"], "is not a span"),
        (["dlq", "discard", "1.5"], "Give numbers that `callboard dlq list` shows"),
        (["runs", "list", "--limit", "1.5"], "--limit: Give 1 to 1000000."),
        (["dlq", "show", HUGE], "LETTER. Give numbers that `callboard dlq list` shows"),
        (["dlq", "redrive", "1", HUGE], "IDS. Give numbers that `callboard dlq list` shows"),
        (["dlq", "redrive", "1", "--agent", "desk/a"], "--agent goes with --all"),
        (["send", "desk/a", "1", "--priority", HUGE], "--priority. Give -2147483647 to"),
        (["send", "desk/a", "1", "--wait", "--timeout-s", "nan"], "--timeout-s. Give seconds"),
        (["send", "desk/a", "1", "--wait", "--timeout-s=-1"], "--timeout-s. Give seconds"),
        (["send", "desk/a", "[" * 100_000], "the message is nested too deeply"),
        (["agents", "list", "--waiting", "inf"], "--waiting. Give seconds"),
        (["schedules", "create", "x", "desk/a", "--at", "9999-12-31T23:59:59-14:00"], "--at"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_happens(
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line that names the option and the rule; no server is asked."""
    monkeypatch.setenv("CALLBOARD_START_WAIT_S", "0.05")
    code = run([*arguments, "--postgres-url", NOWHERE])
    out, err = capsys.readouterr()

    assert (code, out) == (Exit.USAGE, ""), err
    assert words in err
    assert len(err.splitlines()) == 1


def test_an_error_is_an_object_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """With the exit code beside it, on stderr: what a program reads from stdout is a result or nothing."""
    code = run(["runs", "list", "--json", "--limit", "0", "--postgres-url", NOWHERE])
    out, err = capsys.readouterr()

    error = json.loads(err)
    assert (code, out, error["exit_code"]) == (Exit.USAGE, "", Exit.USAGE)
    assert "--limit. Give 1 to 1000000." in error["error"]


@pytest.mark.parametrize("seconds", ["nan", "-1"])
def test_tap_wants_a_time_that_can_pass(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Instead of watching for no time at all, and saying nothing."""
    code = run(["tap", f"--seconds={seconds}", "--nats-url", "nats://127.0.0.1:1"])

    assert code == Exit.USAGE
    assert "--seconds. Give seconds, 0 to 3153600000." in capsys.readouterr().err


def test_an_export_is_replayed_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `callboard export RUN | callboard replay - MODULE:ATTR` in the help says."""
    lines = '{"callboard_export": 1}\n{"line": "end", "runs": 0, "entries": 0}\n'
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    code = run(["replay", "-", "tests.system.agents:TYPES"])

    assert (code, capsys.readouterr().out) == (Exit.OK, "the export holds no run\n")


def test_help_is_offered_of_the_command_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    """Not only the list of all."""
    run(["runs", "fork", "r"])

    assert "(see `callboard runs fork --help`)" in capsys.readouterr().err


def missing(name: str) -> ImportError:
    """What the parser raises for a command whose module cannot be imported."""
    error = ImportError("cannot import the command")
    error.__cause__ = ModuleNotFoundError(f"No module named {name!r}", name=name)
    return error


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (missing("asyncpg"), 2, "asyncpg is not installed: pip install 'callboard[all]'"),
        (missing("broker.gone"), 1, "unexpected ModuleNotFoundError: No module named"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (NotADirectoryError(20, "Not a directory", "/x/lock"), 1, "/x/lock: Not a directory"),
        (ValueError("two\nlines"), 1, "unexpected ValueError: two lines; --debug shows"),
    ],
)
def test_any_error_is_one_line(error: Exception, code: int, text: str) -> None:
    """Of a package that is missing, of the machine, and of what nobody thought of."""
    line, exit_code = explain_error(error)

    assert exit_code == code
    assert text in line
    assert "\n" not in line


def broken(_runtime: object) -> None:
    """An application that cannot be set up."""
    raise ZeroDivisionError("no shards")


def test_an_error_that_nobody_thought_of_names_its_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And with --debug it is shown whole."""
    code = run(["describe", f"{__name__}:broken"])
    err = capsys.readouterr().err

    assert code == Exit.FAILED
    assert "unexpected ZeroDivisionError: no shards (test_command_line.py:" in err
    assert "Traceback" not in err
    with pytest.raises(ZeroDivisionError):
        run(["describe", f"{__name__}:broken", "--debug"])


def test_what_others_wrote_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters are shown as signs, and nothing is read as markup or as a name of a picture."""
    say("a\x1b]0;title\x07 \x9b2J [red]:smile:")
    print_table(("key",), [("b\x1b[31m",)], empty_text="")
    out = capsys.readouterr().out

    assert not any(ord(sign) < 0x20 or 0x7F <= ord(sign) < 0xA0 for sign in out if sign != "\n")
    assert "␛]0;title" in out
    assert "[red]:smile:" in out
    assert "b␛[31m" in out


@pytest.mark.parametrize(
    "sign",
    [
        "\u202e",
        "\u2066",
        "\u200f",
        "\u061c",
        "\u200b",
        "\u2060",
        "\ufeff",
        "\u00ad",
        "\u3164",
        "\ufe0f",
        "\u180b",
        "\U000e0041",
        "\U000e0100",
        "\u2028",
        "\x85",
        "\x7f",
        "\ud800",
        "\ue000",
    ],
)
def test_what_nobody_sees_is_shown(sign: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What turns the direction of writing, or has no width, makes two names look like one."""
    say(f"desk/{sign}ab")
    print_table(("agent",), [(f"desk/{sign}ab",)], empty_text="")
    print_facts([("agent", f"desk/{sign}ab")])
    Lines(as_json=False).show_event("run", f"desk/{sign}ab")
    out = capsys.readouterr().out

    assert sign not in out
    assert out.count("ab") == 4
    assert "desk/ab" not in out


def test_what_people_write_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Letters of any script, with their marks, and signs."""
    text = "Grüße, né\u0301e, Привет, 漢字, עברית, ไทย, 😀 →"
    say(text)
    print_table(("text",), [(text,)], empty_text="")

    assert capsys.readouterr().out.count(text) == 2


@pytest.mark.parametrize(
    ("name", "escaped_name"),
    [
        ("desk/p\u0430y", r"desk/p\u0430y"),
        ("desk/\u0441\u043e\u0440\u0443", r"desk/\u0441\u043e\u0440\u0443"),
        ("tenant:\u0391\u0392", r"tenant:\u0391\u0392"),
        ("desk/\U0001d5ba", r"desk/\ud835\uddba"),
        ("desk\u2215a", r"desk\u2215a"),
    ],
)
def test_letters_that_look_like_latin_ones_are_told_apart(
    name: str, escaped_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a word with Latin ones, or where no other letter says which script it is."""
    say(name)
    print_table(("agent",), [(name,)], empty_text="")
    out = capsys.readouterr().out

    assert out.count(escaped_name) == 2
    assert name not in out


@pytest.mark.parametrize(
    "text",
    [
        "IT-отдел со Wi-Fi и ухо",  # noqa: RUF001 - Russian
        "Ένα και το α",  # noqa: RUF001 - Greek
        "desk/Привет",
        "µs, kız, 1ª, ﬁn, ½",  # noqa: RUF001 - Turkish
    ],
)
def test_words_of_other_scripts_are_no_look_alikes(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where something else of their script is in the text."""
    say(text)

    assert text in capsys.readouterr().out


def test_json_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    """A program gets what was written."""
    print_json({"agent": "desk/\u202eab"}, compact=True)

    assert json.loads(capsys.readouterr().out) == {"agent": "desk/\u202eab"}


class Gone(io.StringIO):
    """A pipe that nobody reads any more."""

    @override
    def write(self, text: str, /) -> int:
        """Refuse."""
        raise BrokenPipeError(text)


def test_a_pipe_that_nobody_reads_is_told_to_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which ends with 0 then; rich on its own would end it with 1."""
    monkeypatch.setattr(sys, "stdout", Gone())

    with pytest.raises(BrokenPipeError):
        say("words")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "utf-8"])
def test_json_is_json_in_every_encoding(encoding: str) -> None:
    """A character that the terminal's encoding lacks is written as JSON's escape, not as Python's."""
    value = {"t": "\U0001f600 日本 é \x80 \ud800"}
    codecs.register_error("json-escape", json_escape)

    text_bytes = json.dumps(value, ensure_ascii=False).encode(encoding, "json-escape")

    assert json.loads(text_bytes.decode(encoding)) == value


NO_NUMBERS: Final[dict[object, tuple[float, ...]]] = dict.fromkeys(
    (int, int | None, list[int] | None), (2**63, 10**30, -(10**30))
) | dict.fromkeys((float, float | None), (math.nan, math.inf, -math.inf, 1e308, -1.0))
"""By the type of an option: values that it cannot have. Each is no number, or outside of every range."""
NUMBERS: Final[dict[tuple[str, ...], Any]] = {
    (*words, argument.name): argument
    for words, command in COMMANDS.items()
    for argument in command.assemble_argument_collection()
    if argument.hint in NO_NUMBERS
}


@pytest.mark.parametrize("words", NUMBERS, ids=" ".join)
def test_every_number_of_a_command_has_a_range(words: tuple[str, ...]) -> None:
    """The cases are the options of all commands: a new one needs a range, as by `options.within`."""
    argument = NUMBERS[words]
    [validate] = argument.parameter.validator
    for value in NO_NUMBERS[argument.hint]:
        values = [value] if argument.hint == list[int] | None else value
        with pytest.raises(ValueError, match=r"^Give .*\d to \d+\.$"):
            validate(argument.hint, values)


def test_the_numbers_of_all_commands_are_found() -> None:
    """The walk finds options of both types, arguments and lists."""
    names = {words[-1] for words in NUMBERS}

    assert {"--lease-s", "--capacity", "--limit", "LETTER", "IDS"} <= names
    assert len(NUMBERS) > 50


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runs", "list", "--limit", "nan"], "--limit: Give 1 to 1000000."),
        (["host", "a:b", "--lease-s", "0"], "--lease-s. Give seconds, 0.1 to 3600."),
        (["serve", "a:b", "--lease-s", "0"], "--lease-s. Give seconds, 0.1 to 3600."),
        (["host", "a:b", "--suspend-after=-1"], "--suspend-after. Give seconds, 0 to 316224000."),
        (["host", "a:b", "--drain-s", "inf"], "--drain-s. Give seconds, 0 to 316224000."),
        (["host", "a:b", "--capacity", "0"], "--capacity. Give 1 to 1000000."),
        (["limits", "set", "type:a", "--max-concurrent=-1"], "Give 0 to 1000000."),
        (["limits", "set", "type:a", "--rate", "1", "--burst", "0"], "Give 1 to 1000000."),
        (["limits", "set", "tenant:a", "--weight", "0"], "--weight. Give 1 to 1000."),
        (
            ["limits", "set", "type:a", "--rate", "0"],
            "--rate '0' is not a rate: give a number above",
        ),
        (
            ["limits", "set", "type:a", "--rate", HUGE],
            "is not a rate: give a number above 0, up to",
        ),
        (["limits", "set", "type:a", "--rate", "nan"], "--rate 'nan' is not a rate"),
        (["audit", "list", "--after", "0"], "Give the id of a change, 1 to 9223372036854775807."),
        (["ask", "desk/a", "1", "--timeout", "0"], "Give seconds, 0.001 to 3600."),
        (["schedules", "create", "x", "desk/a", "--delay-s=-1"], "Give seconds, 0 to 3153600000."),
    ],
)
def test_a_number_beside_its_range_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line has the range."""
    code = run(arguments)
    out, err = capsys.readouterr()

    assert (code, out) == (Exit.USAGE, ""), err
    assert words in err
    assert len(err.splitlines()) == 1
