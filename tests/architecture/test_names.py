"""Retired words in names and in SQL: what test_words.py holds of sentences.

A name that is published, stored or sent keeps its word: `exceptions.toml` has the reasons.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Final

import pytest

from tests.architecture.test_house_rules import ROOT, product_files, tree_of
from tests.architecture.test_rooms import EXCEPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RETIRED: Final = {
    "messages": "mails?",
    "dead letter": "(?<!dead )letters?",
    "external client": "outsiders?",
    "database incarnation": "life|lives",
    "capacity, slot": "room",
    "poll, notify": "look(?! up| back| alikes)|looked|lookout|pokes?",
    "limiter, admit": "(?<!step )gates?",
    "gateway, client API": "doors?|desks?|fronts?",
    "the caller": "whoever",
    "notify": "tells?|told",
    "shutdown, drain, release": "farewells?|leaving|given back",
    "load, deliver": "refills?|turnstiles?|postm[ae]n",
    "wait cycle": "circles?",
    "start": "beginning",
    "metrics, counters": "meters?",
}
"""What to write, and the words of names. Words with another plain sense, such as "turn", are left out."""
WORD: Final = re.compile(rf"\b(?:{'|'.join(RETIRED.values())})\b")
PART: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
SQL: Final = ROOT / "persistence" / "_postgres" / "schema" / "functions"
TEXT: Final = re.compile(r'""".*?"""|"[^"\n]*"|# [^\n]*', re.MULTILINE | re.DOTALL)
NO_NAMES: Final = re.compile(r"--.*$|'(?:[^']|'')*'", re.MULTILINE)
KEPT: Final[dict[str, int]] = EXCEPTIONS["old_names"]


def names_in_module(file: Path) -> Iterator[str]:
    """Yield what a module defines: its own name, functions, classes, parameters, variables, attributes."""
    yield file.stem
    code = TEXT.sub("", file.read_text(encoding="utf-8"))
    if not any(map(is_retired, {*re.findall(r"\w+", code)})):
        return  # to parse all of them takes ten seconds
    for node in ast.walk(tree_of(file)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def names_in_sql(file: Path) -> list[str]:
    """Return all names in a function of the database, those of tables and columns included."""
    return re.findall(r"[a-z_]+", NO_NAMES.sub("", file.read_text(encoding="utf-8")))


@cache
def is_retired(name: str) -> bool:
    """Return True if a word of the name is retired."""
    return WORD.search(" ".join(PART.findall(name)).lower()) is not None


def counted() -> Counter[str]:
    """Return each name with a retired word, and the number of files that define it."""
    files = [{*names_in_module(file)} for file in product_files()]
    files += [{*names_in_sql(file)} for file in SQL.glob("*.sql")]
    return Counter(name for names in files for name in names if is_retired(name))


def test_no_new_name_has_a_retired_word() -> None:
    """The list may only shrink, and so may the number of files of each name in it."""
    grown = {name: count for name, count in counted().items() if count > KEPT.get(name, 0)}

    assert grown == {}, f"write one of: {'; '.join(RETIRED)}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SQL_KEEP_LETTERS", True),
        ("pending_mail", True),
        ("StartMail", True),
        ("dead_letters", False),
        ("MAILBOX", False),
        ("look_up", False),
        ("turn_id", False),
    ],
)
def test_a_retired_word_is_found_in_a_name(name: str, expected: bool) -> None:
    """Words are told apart by underscores and capitals."""
    assert is_retired(name) is expected
