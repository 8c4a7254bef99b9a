"""Import paths that docs of the release before named are understood for one release."""

from __future__ import annotations

import csv
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from actors._exports import MOVED, path_now
from tests.architecture.test_house_rules import ROOT, run_python

DOCUMENTED: Final = {
    "actors.kernel.agent.llm": ["GenerationOptions"],
    "actors.kernel.agent.model_registry": ["ModelFacts", "ModelRegistry"],
    "actors.kernel.storage.graph": ["Entity", "Relationship"],
    "actors.kernel.storage.vector": ["EmbeddingClient", "VectorDocument"],
    "actors.storage.artifacts": ["InMemoryArtifacts"],
    "actors.storage.blobs": ["ComposedBlobStore"],
    "actors.storage.boards": ["GlobalTaskStore"],
    "actors.storage.files": ["InMemoryFileStore"],
    "actors.storage.graphs": ["InMemoryGraphStore"],
    "actors.storage.identity": ["current_agent_label", "current_thread_id"],
    "actors.storage.vectors": ["InMemoryVectorStore"],
}
"""What docs and examples of the release before imported from paths that are gone."""
TABLE: Final[Path] = ROOT / "docs/history/moved.tsv"


def test_documented_imports_of_the_release_before_work() -> None:
    """Each is the same object as under its new path; the warning names both paths."""
    imports = "\n".join(
        f"from {module} import {name}; assert {name} is import_module({MOVED[module]!r}).{name}"
        for module, names in DOCUMENTED.items()
        for name in names
    )
    process = run_python(
        f"""
import warnings
from importlib import import_module
import actors
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    exec({imports!r})
texts = [str(warning.message) for warning in caught]
text = "actors.storage.files is now actors._inmemory.artifacts; the old path goes with the next release"
assert text in texts
assert all(warning.filename == "<string>" for warning in caught), caught
"""
    )

    assert process.returncode == 0, process.stderr


def test_an_old_path_is_no_second_module() -> None:
    """`import` of a module of a moved package does not load the package again."""
    process = run_python(
        """
import actors.storage.vectors, actors.storage, actors._inmemory.knowledge
assert actors.storage is actors._inmemory
assert actors.storage.vectors is actors._inmemory.knowledge
assert actors._inmemory.__spec__.name == "actors._inmemory"
"""
    )

    assert process.returncode == 0, process.stderr


def test_import_actors_alone_loads_little() -> None:
    """Old paths cost a program that has none of them nothing."""
    process = run_python(
        """
import sys, actors
assert not {"importlib.abc", "importlib.util", "pydantic", "typing_extensions"} & sys.modules.keys()
"""
    )

    assert process.returncode == 0, process.stderr


def test_rooms_are_understood_without_their_underscore() -> None:
    """Also below a module that is public now, and as text for `callboard host`."""
    process = run_python(
        """
import actors.kernel.runtime.ids, actors.context.turns, persistence.migrate, persistence.postgres.store
import actors._kernel.runtime.ids, actors._context.turns, compose.assembly.runtime, compose._assembly.runtime
from actors.context import AgentContext
from broker.mail.transport import JetStreamTransport
from broker._mail import transport
assert actors.kernel.runtime.ids is actors._kernel.runtime.ids
assert actors.context.turns is actors._context.turns
assert compose.assembly.runtime is compose._assembly.runtime
assert JetStreamTransport is transport.JetStreamTransport
assert actors.context.__name__ == "actors.context"
try:
    import actors.kernel.no_such_module
except ModuleNotFoundError as exc:
    assert exc.name == "actors.kernel.no_such_module"
else:
    raise AssertionError
"""
    )

    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("path", sorted(MOVED))
def test_a_moved_path_is_in_the_table_of_all(path: str) -> None:
    """The alias and the table say the same."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        table = dict(csv.reader(file, delimiter="\t"))

    assert table[path] == MOVED[path] == path_now(path)


def test_each_row_of_the_table_leads_to_what_exists() -> None:
    """Else a program that is rewritten by the table does not run."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file, delimiter="\t") if row[0] != "old"]

    assert rows
    for _, new in rows:
        module, _, name = new.partition(":")
        assert not name or hasattr(import_module(module), name), new
