"""Names that logs, programs and databases hold: they stay, however modules move."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import tomllib
from pathlib import Path
from typing import Any

import pytest

from actors._kernel import wire_names
from actors._kernel.runtime.log_entry import EntryKind
from actors._runtime.replay.failures import _loaded_class
from actors._workflow.documents.document import REDUCERS
from actors._workflow.visual.flow_state import in_turn
from actors.errors import ActorsError
from persistence._schema_files import REVISION, known_functions, known_migrations
from tests.architecture.test_house_rules import ROOT, product_files

PINNED: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("pinned.toml").read_text(encoding="utf-8")
)

BASELINE = ROOT / "persistence" / "_postgres" / "schema" / "baseline"


def subclasses(of: type[ActorsError]) -> set[type[ActorsError]]:
    """All, at any depth."""
    return {subclass for sub in of.__subclasses__() for subclass in (sub, *subclasses(sub))}


def test_errors_keep_their_names_in_logs() -> None:
    """A log names the class of an error; a name that no class has any more is raised as another error."""
    for file in product_files():
        if file.name not in ("__init__.py", "__main__.py"):
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
    ours = ("actors.", "broker.", "persistence.", "compose.")
    classes = [cls for cls in subclasses(ActorsError) if cls.__module__.startswith(ours)]

    assert {*wire_names.CLASS_PATHS} == {*PINNED["errors"]}
    assert {wire_names.name_of(cls): cls for cls in classes} == {
        name: _loaded_class(name) for name in PINNED["errors"]
    }


@pytest.mark.parametrize("package", PINNED["exports"])
def test_packages_export_what_programs_import(package: str) -> None:
    """Each name is there; a new one is added to the list."""
    module = importlib.import_module(package)

    assert [*module.__all__] == PINNED["exports"][package]
    assert all(hasattr(module, name) for name in module.__all__)


def test_kinds_of_entries_keep_their_names() -> None:
    """They are in the logs."""
    assert [kind.value for kind in EntryKind] == PINNED["kinds"]


def test_migrations_keep_their_text() -> None:
    """A database that applied one refuses another text of it."""
    checksums = {migration.name: migration.checksum[:16] for migration in known_migrations()}

    assert checksums == PINNED["migrations"]


def test_the_baseline_keeps_its_text() -> None:
    """A new schema is like one that went by the migrations: what is new is a migration."""
    texts = {file.stem: file.read_text(encoding="utf-8") for file in BASELINE.glob("*.sql")}
    before = {
        migration.name: migration.sql
        for migration in known_migrations()
        if migration.recorded and migration.sql
    }

    assert {name: digest(text) for name, text in (texts | before).items()} == PINNED["baseline"]


def test_functions_that_change_have_another_revision() -> None:
    """A host of the release before goes by it, and does not put its own ones back."""
    functions_digest = digest("".join(function.checksum for function in known_functions()))

    assert functions_digest == PINNED["functions"][str(REVISION)]
    assert max(map(int, PINNED["functions"])) == REVISION


def digest(text: str) -> str:
    """Of a text, whatever its line ends."""
    return hashlib.sha256(text.replace("\r\n", "\n").encode()).hexdigest()[:16]


def test_functions_in_hashes_of_graphs_keep_their_text() -> None:
    """Else a snapshot of an older release is refused: a graph's hash has the text of its reducers."""
    functions = (*REDUCERS.values(), in_turn)

    assert digest("".join(map(inspect.getsource, functions))) == PINNED["hashed_functions"]
