"""Stores for development: nothing but Python is needed."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from actors._inmemory.artifacts import ComposedBlobStore, InMemoryArtifacts, InMemoryFileStore
from actors._inmemory.boards import InMemoryTaskStore
from actors._inmemory.knowledge import InMemoryGraphStore, InMemoryVectorStore
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.data import Entity, Relationship, Task, VectorDocument

if TYPE_CHECKING:
    from typing import NoReturn


def _now() -> datetime:
    return datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.item(306)
async def test_the_four_stores_in_memory_need_no_infrastructure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Vectors, a graph, blobs and a task board work where no socket can be opened."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    vectors, graph, board = InMemoryVectorStore(), InMemoryGraphStore(), InMemoryTaskStore()
    blobs = ComposedBlobStore(InMemoryFileStore(), InMemoryArtifacts(_now).of("acme", "notes"))

    await vectors.add([VectorDocument(id="a", content="north", embedding=(0.0, 1.0))])
    await graph.add_entity(Entity(id="bern", type="town"))
    await graph.add_entity(Entity(id="aare", type="river"))
    await graph.add_relationship(
        Relationship(id="r", type="on", source_id="bern", target_id="aare")
    )
    await blobs.upload("a/b.txt", b"text")
    blob_ref = await blobs.store(b"bytes")
    await board.create_task_list("s1", AgentId("writer", "1"), [Task(id="1", title="write")])

    assert [hit.id for hit in await vectors.search((0.0, 2.0))] == ["a"]
    assert len((await graph.get_neighbors("bern")).entities) == 2
    assert (await blobs.download("a/b.txt"), await blobs.resolve(blob_ref)) == (b"text", b"bytes")
    assert [b.agent_id for b in await board.get_boards("s1")] == ["writer/1"]
