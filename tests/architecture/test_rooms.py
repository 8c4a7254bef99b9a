"""Classes, names and docstrings: one noun a class, one class a name. Exceptions stand in `exceptions.toml`.

How many modules there are, and how large, is in `test_numbers.py`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.architecture.test_house_rules import FunctionNode, place, product_files, tree_of

EXCEPTIONS: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("exceptions.toml").read_text(encoding="utf-8")
)
METHODS = 10
HELD_BY_AUTHORS = frozenset(["AgentRuntime", "Client", "FlowRuns", "RunContext", "Runtime"])
"""Their methods are the verbs of their users: a mixin would only hide some."""
WORDS = "What Who Whose Whoever Which Whether Where How Why Something One All That"
RIDDLES = frozenset(WORDS.split())


def classes() -> list[tuple[str, ast.ClassDef]]:
    """Every class that ships, with its module."""
    return [
        (place(file), node)
        for file in product_files()
        for node in tree_of(file).body
        if isinstance(node, ast.ClassDef)
    ]


def test_no_class_has_more_than_10_public_methods() -> None:
    """Properties count. Whoever has more is two things."""
    counts = {
        class_.name: sum(
            isinstance(node, FunctionNode) and not node.name.startswith("_") for node in class_.body
        )
        for _, class_ in classes()
        if class_.name not in HELD_BY_AUTHORS
    }

    most = EXCEPTIONS["methods"]
    assert {name: n for name, n in counts.items() if n > most.get(name, METHODS)} == {}


def test_no_two_classes_have_one_name() -> None:
    """One word, one meaning. Private names count: they are read, too."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for module, class_ in classes():
        homes[class_.name.lstrip("_")].append(module)

    counts = {name: len(modules) for name, modules in homes.items()}
    assert {
        name: homes[name] for name, n in counts.items() if n > EXCEPTIONS["names"].get(name, 1)
    } == {}


def riddles(file: Path) -> list[str]:
    """The docstrings of a file, those of values too, that begin with a relative clause or a bare pronoun."""
    lines = (n.value for n in ast.walk(tree_of(file)) if isinstance(n, ast.Expr))
    texts = [n.value for n in lines if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [text for text in texts if text.split()[0].strip(",.:;") in RIDDLES]


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    """A reader need not guess what a sentence is about. The number of those left may only fall."""
    counts = Counter({place(file): len(riddles(file)) for file in product_files()})

    assert counts.total() <= EXCEPTIONS["riddles"], counts.most_common(10)


def test_rooms_say_what_they_are() -> None:
    """The docstring of a room's `__init__` begins with the room."""
    rooms = [file for file in product_files() if file.name == "__init__.py"]

    assert [place(file) for file in rooms if riddles(file)] == []


def test_the_formatter_formats_all_of_it() -> None:
    """No line of the product is taken out of its hands."""
    skips = re.compile(r"#\s*fmt:\s*(skip|off)")

    assert [place(file) for file in product_files() if skips.search(file.read_text())] == []


def test_no_comment_is_a_banner() -> None:
    """Where one is wanted, a class or a module wants to be two."""
    banner = re.compile(r"^\s*#\s?[-=#~]{3,}", re.MULTILINE)

    assert [place(file) for file in product_files() if banner.search(file.read_text())] == []
