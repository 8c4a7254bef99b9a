"""Public modules: few, each names what it offers, and pages, examples and templates import no others."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from typing import TYPE_CHECKING, Final

import pytest

from tests.architecture.numbers import modules
from tests.architecture.test_house_rules import PACKAGES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PUBLIC: Final = sorted(
    name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for name, module in modules().items()
    if module.is_public and not name.endswith("__main__.py")
)
"""By import path."""
HEAD: Final = "|".join(PACKAGES)
BLOCK: Final = re.compile(r"^( *)```(?:py|python)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
PROSE: Final = re.compile(rf"(?<![\w./])(?:{HEAD})\._\w+")


def shown_files() -> list[Path]:
    """Return what a user reads: pages and examples. The page of our own code is not for users."""
    folders = (ROOT / "docs", ROOT / "examples")
    files = [
        file for folder in folders for file in folder.rglob("*") if file.suffix in {".py", ".md"}
    ]
    ours = {ROOT / "docs/architecture.md", *(ROOT / "docs/adr").iterdir()}
    return [ROOT / "README.md", *(file for file in sorted(files) if file not in ours)]


def sources(file: Path) -> Iterator[str]:
    """Yield the Python code of a file."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        yield text
    else:
        yield from (match[2].replace(f"\n{match[1]}", "\n") for match in BLOCK.finditer(text))


def imported_modules(source: str) -> Iterator[str]:
    """Yield the modules of ours that code imports; code that is no Python on its own has none."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in PUBLIC else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_module_names_what_it_offers(module: str) -> None:
    """`__all__` has the names, and each exists."""
    offered = import_module(module)
    names: list[str] = getattr(offered, "__all__", [])

    assert hasattr(offered, "__all__")
    assert [name for name in names if not hasattr(offered, name)] == []


def test_what_users_read_imports_public_modules() -> None:
    """An import of a private module in a page would make it a promise."""
    files = shown_files()
    wrong = {
        (file.relative_to(ROOT).as_posix(), module)
        for file in files
        for source in sources(file)
        for module in imported_modules(source)
        if module.partition(".")[0] in PACKAGES and module not in PUBLIC
    }

    assert len(files) > 60
    assert sorted(wrong) == []


def test_pages_name_no_private_module() -> None:
    """A reader who is told of `actors._x` would import it."""
    wrong = {
        (file.relative_to(ROOT).as_posix(), match[0])
        for file in shown_files()
        if file.suffix == ".md" and file.name != "replay.md"
        for match in PROSE.finditer(file.read_text(encoding="utf-8"))
    }

    assert sorted(wrong) == []
