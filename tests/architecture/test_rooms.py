"""How large folders, modules and classes may be. What is larger stands in `exceptions.toml`.

The lists there may only shrink: what they name and is within the limit now fails the test, too.
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
MODULES = 16
LINES = 400
METHODS = 10
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


def test_no_folder_holds_more_than_16_modules() -> None:
    """More than that is a hall, not a room."""
    counts = Counter(
        place(file).rpartition("/")[0] for file in product_files() if file.name != "__init__.py"
    )

    found = {folder: count for folder, count in counts.items() if count > MODULES}
    assert found == EXCEPTIONS["modules"]


def test_no_module_is_longer_than_400_lines() -> None:
    """It holds one noun."""
    lengths = {place(file): len(file.read_text().splitlines()) for file in product_files()}

    assert {name for name, n in lengths.items() if n > LINES} == {*EXCEPTIONS["lines"]}


def test_no_class_has_more_than_10_public_methods() -> None:
    """Properties count. Whoever has more is two things."""
    counts = {
        f"{module}:{class_.name}": sum(
            isinstance(node, FunctionNode) and not node.name.startswith("_") for node in class_.body
        )
        for module, class_ in classes()
    }

    found = {name: count for name, count in counts.items() if count > METHODS}
    assert found == EXCEPTIONS["methods"]


def test_no_two_classes_have_one_name() -> None:
    """One word, one meaning. Private names count: they are read, too."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for module, class_ in classes():
        homes[class_.name.lstrip("_")].append(module)

    found = {name: sorted(modules) for name, modules in homes.items() if len(modules) > 1}
    assert found == {name: sorted(modules) for name, modules in EXCEPTIONS["names"].items()}


def riddles(file: Path) -> list[str]:
    """The docstrings of a file, those of values too, that begin with a relative clause or a bare pronoun."""
    lines = (n.value for n in ast.walk(tree_of(file)) if isinstance(n, ast.Expr))
    texts = [n.value for n in lines if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [text for text in texts if text.split()[0].strip(",.:;") in RIDDLES]


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    """A reader need not guess what a sentence is about. The number of those left may only fall."""
    counts = Counter({place(file): len(riddles(file)) for file in product_files()})

    assert counts.total() == EXCEPTIONS["riddles"]


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
