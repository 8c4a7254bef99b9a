"""The demo's parts: the ranking, the documents, the ledger, and the log lines of a host."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from actors.errors import ContractError
from compose._host.logs import LineFormatter
from compose.demo.desk import (
    append_line,
    documents_in,
    executions,
    lines_of,
    rank,
    similarity,
    split_sentences,
    telling_sentences,
    write_default_documents,
)

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """
Heading
=======

Whales are mammals that live in the sea. Many whales eat small fish of the sea, e.g. herring
and sprat. The weather was rather pleasant on that particular afternoon. Whales of the
northern sea follow the small fish.

    code_that(is_no, prose)

- a list item that is not a sentence
"""


def test_prose_is_split_into_sentences_and_the_rest_is_left_out() -> None:
    """An abbreviation ends no sentence; headings, code and lists are none."""
    sentences = split_sentences(TEXT)

    assert [sentence.split()[0] for sentence in sentences] == ["Whales", "Many", "The", "Whales"]
    assert sentences[1].endswith("herring and sprat.")


def test_the_sentence_that_shares_nothing_ranks_last() -> None:
    """PageRank of an isolated node is what the damping leaves: 0.15."""
    ranked = telling_sentences(TEXT, 10)
    scores = {
        sentence.text.split()[0]: sentence.score for sentence in ranked if sentence.index == 2
    }

    assert scores == {"The": pytest.approx(0.15)}
    assert [sentence.index for sentence in telling_sentences(TEXT, 3)] == [0, 1, 3]


def test_similarity_is_the_papers() -> None:
    """Shared words, divided by the sum of the logarithms of both lengths."""
    first, other = frozenset("abcd"), frozenset("cdefgh")

    assert similarity(first, other) == pytest.approx(2 / 3.1780538)
    assert similarity(first, frozenset()) == 0
    assert sum(rank([first, other, frozenset("ax")])) == pytest.approx(3, abs=0.01)


def test_there_are_documents_on_every_machine_with_python(tmp_path: Path) -> None:
    """Eight of them, each with something to say."""
    files = write_default_documents(tmp_path / "documents")

    assert len(files) == 8
    assert all(len(telling_sentences(file.read_text(), 3)) == 3 for file in files)


def test_without_the_language_reference_module_documentation_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some distributions leave `pydoc_data` out."""
    monkeypatch.setitem(__import__("sys").modules, "pydoc_data.topics", None)
    files = write_default_documents(tmp_path / "documents")

    assert len(files) == 8
    assert all(file.name.startswith("module-") for file in files)


def test_a_folder_gives_its_text_files_by_name(tmp_path: Path) -> None:
    """Hidden, empty and other files are left out; what cannot be read is said."""
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("b.txt", "a.md", "sub/c.RST", ".git/d.txt", "e.png"):
        (tmp_path / name).write_text("x")
    (tmp_path / "empty.txt").touch()

    assert [path.name for path in documents_in(tmp_path)] == ["a.md", "b.txt", "c.RST"]
    with pytest.raises(ContractError, match="not a folder"):
        documents_in(tmp_path / "a.md")


def test_the_ledger_ignores_a_line_that_is_not_whole(tmp_path: Path) -> None:
    """A process may be killed at any byte."""
    ledger = tmp_path / "ledger"
    append_line(str(ledger), '{"effect": "e", "name": "read", "pid": 1}')
    with ledger.open("a") as file:
        file.write('{"effect":')

    assert [line.pid for line in executions(ledger)] == [1]
    assert lines_of(str(tmp_path / "none")) == []


@pytest.mark.parametrize("as_json", [True, False])
def test_a_log_line_holds_every_extra(as_json: bool) -> None:
    """For programs one object, for people words; always one line."""
    record = logging.makeLogRecord(
        {"msg": "host.%s", "args": ("serving",), "levelname": "INFO", "shards": 16, "note": "a b"}
    )
    line = LineFormatter(as_json=as_json).format(record)

    assert "\n" not in line
    if as_json:
        entry = json.loads(line)
        assert (entry["event"], entry["shards"], entry["note"]) == ("host.serving", 16, "a b")
    else:
        assert line.endswith('host.serving shards=16 note="a b"')


def test_a_log_line_cannot_steer_the_terminal() -> None:
    """What somebody outside wrote, a name or an error, is shown as signs; to programs as it is."""
    name = "desk/\x1b[2J\u202ep\u0430y"
    record = logging.makeLogRecord({"msg": "%s", "args": (name,), "agent": name})
    record.exc_info = (RuntimeError, RuntimeError(name), None)
    line = LineFormatter(as_json=False).format(record)
    program = json.loads(LineFormatter(as_json=True).format(record))

    assert not {"\x1b", "\u202e", "\u0430"}.intersection(line)
    assert line.count(r"desk/␛[2J\u202ep\u0430y") == 3
    assert program["agent"] == name
