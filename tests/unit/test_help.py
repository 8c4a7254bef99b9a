"""Every command explains itself: what it does, an example, its options; and has JSON for programs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from compose._cli import app, run
from compose._commands.output import Exit
from tests.unit.documents import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest
    from cyclopts import App

PRINTS_FOR_SHELLS = {"env", "nats-config"}
"""Their output is a file or lines for a shell already."""


def commands(part: App, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    """Every command below, with its words."""
    for name in part:
        if name.startswith("-"):
            continue
        command = part[name]
        if command.default_command is not None:
            yield (*words, name), command
        yield from commands(command, (*words, name))


COMMANDS = dict(commands(app))


def text_of(words: tuple[str, ...]) -> str:
    """The command's docstring."""
    code = COMMANDS[words].default_command
    return (code.__doc__ or "") if code is not None else ""


def test_every_command_has_an_example_that_begins_like_itself() -> None:
    """Each docstring has `Example:` or `Examples:`, with the command as it is typed."""
    wrong = [
        words
        for words in COMMANDS
        if not re.search(r"\bExamples?:", text_of(words))
        or f"`callboard {' '.join(words)}" not in text_of(words)
    ]

    assert wrong == []


def test_every_command_has_json_for_programs() -> None:
    """`--json` and `--debug` are options of each, but of those whose output is for programs alone."""
    options = {
        words: {
            name for argument in command.assemble_argument_collection() for name in argument.names
        }
        for words, command in COMMANDS.items()
        if words[0] not in PRINTS_FOR_SHELLS
    }

    assert [words for words, names in options.items() if not {"--json", "--debug"} <= names] == []


def test_every_option_is_explained() -> None:
    """No option stands in the help without a word about it."""
    silent = [
        (words, argument.name)
        for words, command in COMMANDS.items()
        for argument in command.assemble_argument_collection(parse_docstring=True)
        if argument.show and not argument.parameter.help
    ]

    assert silent == []


def test_the_list_of_commands_is_grouped_and_says_what_each_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`callboard --help` names the groups, each command with a sentence, and the exit codes."""
    code = run(["--help"])
    out = capsys.readouterr().out

    assert code == Exit.OK
    for title in ("Serving agents", "Talking to agents", "Looking", "Deciding", "Setting up"):
        assert title in out
    assert all(re.search(rf"\b{words[0]}\s+\S", out) for words in COMMANDS)
    assert "Exit codes" in out


def test_the_completion_script_knows_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """By name, for the shell it is made for."""
    code = run(["completion", "bash"])
    script = capsys.readouterr().out

    assert code == Exit.OK
    assert [words for words in COMMANDS if any(word not in script for word in words)] == []


def test_a_command_that_is_none_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """With the exit code of a command that cannot be carried out as given."""
    code = run(["nonsense"])
    err = capsys.readouterr().err

    assert code == Exit.USAGE
    assert "nonsense" in err
    assert "Traceback" not in err


def test_the_page_of_commands_names_every_command_and_exit_code() -> None:
    """And no command that there is not."""
    text = (ROOT / "docs/operations-commands.md").read_text(encoding="utf-8")
    named_commands = re.findall(r"`callboard ([a-z-]+(?: [a-z-]+)?)", text)
    known_commands = {" ".join(words) for words in COMMANDS}

    assert sorted(name for name in known_commands if f"`callboard {name}" not in text) == []
    assert [
        name
        for name in named_commands
        if name not in known_commands and name.split()[0] not in known_commands
    ] == []
    assert all(f"| {code.value} |" in text for code in Exit)
