"""Private words that were retired: sentences in code and docs use the field's words instead.

Where one is needed in another sense it stands in `exceptions.toml`.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

import pytest

from tests.architecture.test_house_rules import ROOT, place, product_files, tree_of
from tests.architecture.test_rooms import EXCEPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RETIRED: Final = {
    "messages": r"[Mm]ail(?<![.-]mail)(?![=-]|: | service\b)\b",
    "dead letter": r"[Ll]etters?\b(?<!ead letter)(?<!ead letters)"
    r"(?!,? (?:or )?digits?| and marks| that look|: D|\.json)",
    "external client": r"[Oo]utsiders?\b",
    "database incarnation": r"(?:another|next|earlier) li(?:fe|ves)\b",
    "capacity, slot": r"(?:no|has|have|had|enough|more|makes?) room\b|want of\b|free places?\b",
    "suspended, evicted": r"at rest\b|runs? rests?\b|(?:leaves?|left|leaving) memory\b|to be rows\b",
    "poll, notify": r"(?:looks? again|looked at again|lookouts?|poke[sd]?)\b",
    "limiter": r"[Gg]ates?\b(?<!step gate)(?!:)",
    "client API, gateway": r"(?:[Dd]oors?|[Dd]esks?)\b|fronts?\b(?<!in front)(?!:)",
    "the caller": r"[Ww]hoever\b",
    "notified": r"(?:is|are|was|were|be|been|being) told\b(?! apart| otherwise)|[Tt]old of\b",
    "shutdown, drain, release": r"[Ff]arewells?\b|(?:shards?|leases?|is|are|was|were) given back\b",
    "load, deliver": r"(?:refills?|turnstiles?|postm[ae]n)\b",
    "decide": r"(?:has|have|had) (?:its|their) say\b",
    "metrics, counters": r"meters\b",
}
"""What to write, and the words in the sense in which they are retired, as exactly as a pattern can."""
ANY: Final = re.compile(rf"\b(?:{'|'.join(RETIRED.values())})")
PAGES: Final = ("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/graphs/*.md")
CODE: Final = re.compile(r"^```.*?^```|``.+?``|`[^`\n]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)
SQL: Final = re.compile(r"\s*(?:select|insert|update|with)\b")
COMMENT: Final = re.compile(r"(?:^|\s)# (.*)$", re.MULTILINE)


def sentences(file: Path) -> Iterator[str]:
    """The comments of a module, and its texts of more than a word, but for SQL. The rest is names."""
    yield from COMMENT.findall(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield from () if SQL.match(node.value) else (node.value,)


def in_module(file: Path) -> list[str]:
    """The retired words of a module. Only one in which there may be some is parsed."""
    if not ANY.search(file.read_text(encoding="utf-8")):
        return []
    return [word[0] for text in sentences(file) for word in ANY.finditer(CODE.sub("", text))]


def in_page(file: Path) -> list[str]:
    """The retired words of a page of docs, outside of code."""
    return [word[0] for word in ANY.finditer(CODE.sub("", file.read_text(encoding="utf-8")))]


def allowed(file: Path) -> list[str]:
    """The retired words that a file needs in another sense."""
    words: list[str] = EXCEPTIONS["words"].get(place(file), [])
    return words


def test_no_sentence_has_a_retired_word() -> None:
    """Not in docstrings, comments, errors, log lines and help of the product, and not in pages."""
    modules = [*product_files(), *sorted((ROOT / "examples").rglob("*.py"))]
    pages = [file for pattern in PAGES for file in ROOT.glob(pattern)]

    words_by_file = {file: in_module(file) for file in modules} | {
        file: in_page(file) for file in pages
    }
    wrong = {place(file): {*words} - {*allowed(file)} for file, words in words_by_file.items()}
    assert {name: words for name, words in wrong.items() if words} == {}, (
        f"write one of: {'; '.join(RETIRED)}"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("What outsiders sent rests as letters", ["outsiders", "letters"]),
        ("The stream MAIL, `mail`, a mailbox and a dead letter keep their names", []),
        (
            "Mail waits in the store; whoever is told of it looks again",
            ["Mail", "whoever", "is told", "looks again"],
        ),
    ],
)
def test_a_retired_word_is_found_in_its_retired_sense(text: str, words: list[str]) -> None:
    """Terms that the field has, too, are left alone."""
    assert [word[0] for word in ANY.finditer(CODE.sub("", text))] == words
