"""The texts that the demo reads: a folder of yours, or documentation in the Python installation."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Final

from actors.errors import ContractError

MAX_DOCUMENTS: Final = 40
SUFFIXES: Final = (".txt", ".md", ".rst")
# Long prose chapters of the language reference, as `help()` shows them on every installation.
_TOPICS: Final = (
    "execmodel exceptions objects import numbers debugger try with typesmapping class function naming "
    "attribute-access customization"
)
_DEFAULT_COUNT: Final = 8
_FALLBACK_MODULES: Final = (
    "argparse asyncio contextlib decimal difflib doctest http.client logging optparse random "
    "statistics string subprocess tarfile threading unittest zipfile"
)
_ENOUGH_CHARACTERS: Final = 1500


def documents_in(folder: Path) -> list[Path]:
    """Return the text files of a folder and its subfolders, by name, at most 40.

    Raises:
        ContractError: The path is not a folder, or the folder has no text file.
    """
    if not folder.is_dir():
        raise ContractError(f"{folder} is not a folder: name one that holds text files")
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and path.is_file() and path.stat().st_size
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not found:
        raise ContractError(f"{folder} holds no {', '.join(SUFFIXES)} file: name another folder")
    return found[:MAX_DOCUMENTS]


def write_default_documents(folder: Path) -> list[Path]:
    """Write eight chapters of Python's documentation into `folder`, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in _default_texts():
        path = folder / f"{name}.txt"
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _default_texts() -> list[tuple[str, str]]:
    """Return names and texts: chapters of the language reference, else documentation of modules."""
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        topics = {}
    chapters = [(name, topics[name]) for name in _TOPICS.split() if name in topics]
    if len(chapters) < _DEFAULT_COUNT:
        chapters += [(f"module-{name}", _documentation(name)) for name in _FALLBACK_MODULES.split()]
    enough = [pair for pair in chapters if len(pair[1]) >= _ENOUGH_CHARACTERS] or chapters
    return [(re.sub(r"[^\w-]", "-", name), text) for name, text in enough[:_DEFAULT_COUNT]]


def _documentation(name: str) -> str:
    """Return the docstrings of a module, its classes and its functions as one text."""
    module = importlib.import_module(name)
    public = [vars(module)[key] for key in sorted(vars(module)) if not key.startswith("_")]
    own = [one for one in public if getattr(one, "__module__", None) == name]
    return "\n\n".join(filter(None, (inspect.getdoc(one) for one in (module, *own))))
