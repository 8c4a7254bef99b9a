"""The Protocols of stores: signatures, and nothing else."""

from __future__ import annotations

import ast
import inspect
from typing import get_type_hints

import pytest

from actors._kernel.stores.artifacts import ArtifactStore, BlobStore, FileStore
from actors._kernel.stores.conversations import HistoryProvider
from actors._kernel.stores.data import (
    TASK_TRANSITIONS,
    CypherCapable,
    EmbeddingClient,
    GraphStore,
    TaskStatus,
    TaskStore,
    VectorStore,
)
from tests.architecture.test_house_rules import ROOT, protocol_methods, run_python

STORES = [HistoryProvider, VectorStore, GraphStore, BlobStore, TaskStore]
FILES = sorted((ROOT / "actors/_kernel/stores").glob("*.py"))


@pytest.mark.item(259)
@pytest.mark.parametrize(
    "store", [*STORES, FileStore, ArtifactStore, EmbeddingClient, CypherCapable]
)
def test_a_store_is_a_protocol_of_coroutines(store: type) -> None:
    """Each method is awaited, has types that can be read, and takes no tenant: a store is bound to one."""
    methods = [
        function
        for name, function in inspect.getmembers(store, inspect.isfunction)
        if not name.startswith("_")
    ]

    assert getattr(store, "_is_protocol", False)
    assert methods
    assert all(map(inspect.iscoroutinefunction, methods))
    assert all("return" in get_type_hints(method) for method in methods)
    assert not any("tenant" in inspect.signature(method).parameters for method in methods)


@pytest.mark.item(259)
def test_methods_of_stores_have_no_body() -> None:
    """A contract is a docstring: whatever a Protocol did, a backend could forget."""
    bodies = {
        name: method.body
        for file in FILES
        for name, method in protocol_methods(file)
        if len(method.body) != 1
    }

    assert bodies == {}
    assert all(ast.get_docstring(method) for file in FILES for _, method in protocol_methods(file))


@pytest.mark.item(259, 260)
def test_stores_can_be_imported_alone() -> None:
    """They bring along neither a runtime nor a context, a driver or asyncio's loop; context no runtime."""
    done = run_python("""
import sys
from actors._kernel.stores import artifacts, conversations, data
above = [name for name in sys.modules if name.startswith("actors.") and not name.startswith("actors._kernel")]
assert set(above) <= {"actors.errors", "actors._exports"}, above
from actors.context import *
from actors._context.compaction import recall
above = [name for name in sys.modules if name.startswith(
    ("actors._runtime", "broker", "persistence", "compose", "asyncpg", "nats", "redis", "bpe_openai"))]
assert above == [], above
""")

    assert done.returncode == 0, done.stderr


def test_a_task_goes_on_until_it_has_succeeded() -> None:
    """Every status has its changes; one that succeeded has none."""
    assert set(TASK_TRANSITIONS) == set(TaskStatus)
    assert [status for status, changes in TASK_TRANSITIONS.items() if not changes] == [
        TaskStatus.SUCCEEDED
    ]
