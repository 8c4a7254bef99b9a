"""Private words that were retired: sentences in code and docs use the field's words instead.

What is left stands in `exceptions.toml`, by file, and may only fall.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from tests.architecture.test_house_rules import ROOT, place, product_files, tree_of
from tests.architecture.test_rooms import EXCEPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RETIRED: Final = {
    "messages": r"[Mm]ail(?<![.-]mail)(?![=-]|: | service\b)\b",
    "dead letter": r"[Ll]etters?\b(?<!ead letter)(?<!ead letters)(?!,? digits| and marks| that|: D|\\.json)",
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
TEXTS: Final = {"text", "problem", "remedy", "msg", "help"}
"""Names of what a person reads: variables, attributes and keywords."""
PAGES: Final = ("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/graphs/*.md")
CODE: Final = re.compile(r"^```.*?^```|``.+?``|`[^`\n]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)
COMMENT: Final = re.compile(r"(?:^|\s)# (.*)$", re.MULTILINE)


def is_log(node: ast.AST) -> bool:
    """Whether this writes a line of the log."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_log.")


def read_by_people(node: ast.AST) -> ast.AST | None:
    """The part of a statement or a call that a person reads: a docstring, an error, a log line, help."""
    match node:
        case ast.Expr(value=ast.Constant() as text):
            return text
        case ast.Raise(exc=error):
            return error
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in TEXTS:
            return value
        case ast.keyword(arg=name, value=value) if name in TEXTS:
            return value
    return node if is_log(node) else None


def sentences(file: Path) -> Iterator[str]:
    """The texts of a module that a person reads. Elsewhere a retired word is a name."""
    yield from COMMENT.findall(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree_of(file)):
        for part in ast.walk(read) if (read := read_by_people(node)) else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def in_module(file: Path) -> list[str]:
    """The retired words of a module. Only one in which there may be some is parsed."""
    if not ANY.search(file.read_text(encoding="utf-8")):
        return []
    return [word[0] for text in sentences(file) for word in ANY.finditer(CODE.sub("", text))]


def in_page(file: Path) -> list[str]:
    """The retired words of a page of docs, outside of code."""
    return [word[0] for word in ANY.finditer(CODE.sub("", file.read_text(encoding="utf-8")))]


def test_no_sentence_of_the_product_has_a_retired_word() -> None:
    """Neither do its errors, log lines and help texts."""
    files = [*product_files(), *sorted((ROOT / "examples").rglob("*.py"))]

    found = {place(file): words for file in files if (words := in_module(file))}
    assert found == EXCEPTIONS["words"], f"write one of: {'; '.join(RETIRED)}"


def test_pages_have_no_new_retired_word() -> None:
    """Their number falls page by page; write the lower one into `exceptions.toml`."""
    pages = [file for pattern in PAGES for file in sorted(ROOT.glob(pattern))]

    found = Counter({place(file): len(in_page(file)) for file in pages})
    assert +found == EXCEPTIONS["words_of_pages"]


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
