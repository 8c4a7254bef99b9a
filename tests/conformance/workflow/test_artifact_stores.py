"""Contract of artifact stores beyond bytes: descriptions, their changes, counts, and the files of a folder."""

from __future__ import annotations

import io
import json
import sys
import wave
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.workflow.artifacts import CollectableArtifactStore
from actors._kernel.workflow.errors import GraphError
from actors.errors import NotSerializableError
from actors.workflow import (
    ArtifactDescriptor,
    EffectType,
    InMemoryArtifactStore,
    build_artifact_descriptor_payload,
    compute_artifact_id,
)
from persistence import files
from tests.conformance.workflow.stores import Stores, at_once, one_effect

if TYPE_CHECKING:
    from pathlib import Path


class CrashError(Exception):
    """Stands for the end of the process."""


def sound(rate: int = 8000) -> bytes:
    """Return half a second of WAV."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(b"\0\0" * (rate // 2))
    return content.getvalue()


@pytest.mark.item(448)
def test_a_description_has_the_kind_of_an_artifact(stores: Stores) -> None:
    """It comes from the writer, else from the tags, else from the type; another process reads the same."""
    voice = stores.artifacts.store(
        sound(),
        content_type="audio/wav",
        run_id="r1",
        tags={"task": "tts", "session_id": "s1", "node": "say", "source": "unit"},
        metadata={"model": {"name": "m"}},
    )
    code = stores.artifacts.store(b"x = 1", content_type="text/x-python")
    evidence = stores.artifacts.store(
        b"x",
        content_type="text/markdown",
        descriptor={"semantic_kind": "Evidence", "workflow_id": "graph", "unknown": 1},
    )
    broken = stores.artifacts.store(b"RIFF", content_type="audio/wav")

    descriptor = voice.descriptor
    assert (descriptor.semantic_kind, descriptor.render_kind, descriptor.modality) == (
        "voice",
        "audio",
        "voice",
    )
    assert (descriptor.task, descriptor.session_id, descriptor.node_id) == ("tts", "s1", "say")
    assert descriptor.classification_source == "runtime_tags"
    assert descriptor.provenance == {"source": "unit", "run_id": "r1"}
    assert (descriptor.media["duration_s"], descriptor.media["sample_rate"]) == (0.5, 8000)
    assert (code.descriptor.semantic_kind, code.descriptor.render_kind) == ("code", "code")
    assert code.descriptor.classification_source == "runtime_mime_inferred"
    assert (evidence.descriptor.semantic_kind, evidence.descriptor.render_kind) == (
        "evidence",
        "markdown",
    )
    assert evidence.descriptor.classification_source == "runtime_declared"
    assert "EOFError" in broken.descriptor.media["inspection_error"]
    for metadata in (voice, code, evidence, broken):
        assert stores.reopen().artifacts.get_metadata(metadata.artifact_id) == metadata
        assert metadata.blob_id == metadata.sha256
    assert json.loads(json.dumps(voice.to_dict())) == voice.to_dict()


@pytest.mark.item(448)
def test_a_description_is_changed_later(stores: Stores) -> None:
    """Fields that a change leaves empty stay, and so do the bytes; lists find the new values."""
    artifact = stores.artifacts.store(
        sound(), content_type="audio/wav", tags={"modality": "music"}, metadata={"a": 1, "b": 2}
    )
    name = artifact.artifact_id
    more = {"workflow_id": "graph", "media": {"title": "loop"}}
    stores.artifacts.update_metadata(
        name, tags={"session_id": "s1"}, metadata={"b": 3}, descriptor=more
    )
    store = stores.reopen().artifacts
    metadata = store.get_metadata(name)

    assert metadata.tags == {"modality": "music", "session_id": "s1"}
    assert metadata.metadata == {"a": 1, "b": 3}
    assert (metadata.descriptor.semantic_kind, metadata.descriptor.workflow_id) == (
        "music",
        "graph",
    )
    assert metadata.descriptor.session_id == "s1"
    assert (metadata.descriptor.media["duration_s"], metadata.descriptor.media["title"]) == (
        0.5,
        "loop",
    )
    assert store.load(name).content == sound()
    assert [a.artifact_id for a in store.search(workflow_id="graph")] == [name]
    replaced = store.update_metadata(
        name,
        tags={"x": "y"},
        metadata={},
        descriptor=ArtifactDescriptor(semantic_kind="evidence"),
        replace_tags=True,
        replace_metadata=True,
    )
    assert (replaced.tags, replaced.metadata) == ({"x": "y"}, {})
    assert replaced.descriptor.semantic_kind == "evidence"
    assert replaced.descriptor.workflow_id == "graph"
    assert store.update_metadata("nobody", tags={"a": "b"}) is None
    with pytest.raises(NotSerializableError, match="metadata"):
        store.update_metadata(name, metadata={"when": {1}})
    with pytest.raises(GraphError, match=r"descriptor\.media"):
        store.update_metadata(name, tags={"no": "no"}, descriptor={"media": "loud"})
    with pytest.raises(NotSerializableError, match="metadata"):
        store.store(b"x", artifact_id="never", metadata={"nan": float("nan")})
    assert not store.exists("never")
    assert stores.reopen().artifacts.get_metadata(name) == replaced


@pytest.mark.item(448)
def test_reads_of_an_artifact_are_counted(stores: Stores) -> None:
    """Each read counts once, from threads and processes; a load is no read."""
    name = stores.artifacts.store(b"x").artifact_id
    stores.artifacts.load(name)
    other = stores.reopen().artifacts

    at_once(
        partial(store.record_access, name, action="preview", actor_id="ada")
        for store in (stores.artifacts, other) * 10
    )
    last = other.record_access(name, action=" Read", at="2030-01-01T00:00:00+00:00", run_id="r1")
    access = stores.artifacts.get_metadata(name).access

    assert access == last.access
    assert (access.access_count, access.preview_count, access.content_access_count) == (21, 20, 1)
    assert (access.download_count, access.actions) == (0, {"preview": 20, "read": 1})
    assert (access.last_action, access.last_run_id) == ("read", "r1")
    assert (access.last_accessed_at, access.last_actor_id) == ("2030-01-01T00:00:00+00:00", None)
    assert other.record_access("nobody") is None


@pytest.mark.item(448)
def test_reads_of_threads_in_memory_are_counted() -> None:
    """Threads that switch as often as possible lose no count."""
    store = InMemoryArtifactStore()
    name = store.store(b"x").artifact_id

    def look() -> None:
        for _ in range(200):
            store.record_access(name)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        at_once([look] * 4)
    finally:
        sys.setswitchinterval(before)
    metadata = store.get_metadata(name)

    assert metadata is not None
    assert metadata.access.access_count == 800


@pytest.mark.item(448)
def test_artifacts_are_found_and_counted_by_description(stores: Stores) -> None:
    """All filters can be combined; pages in both orders; facets with the frequent values first."""
    store = stores.artifacts
    for n in range(4):
        kind = "voice" if n % 2 else "image"
        tags = {"modality": kind, "session_id": f"s{n // 2}"}
        store.store(b"x" * (n + 1), run_id="r1", artifact_id=f"a{n}", tags=tags)
    store.store(b"plain", content_type="text/plain", artifact_id="a4", metadata={"lang": "de"})

    def names(**filters: Any) -> list[str]:
        return [a.artifact_id for a in store.search(**filters)]

    assert names(modality="VOICE", run_id="r1") == ["a3", "a1"]
    assert names(semantic_kind="image", session_id="s1") == ["a2"]
    assert names(render_kind="text") == ["a4"]
    assert names(limit=2, offset=1) == ["a3", "a2"]
    assert names(order="asc", limit=0) == [f"a{n}" for n in range(5)]
    since = store.get_metadata("a3").created_at
    assert names(created_after=since) == ["a4", "a3"]
    assert names(created_before=since, limit=1) == ["a3"]
    assert names(created_after="2999-01-01") == []
    assert len(store.list_all(limit=0)) == 5
    assert (store.count(), store.count(modality="voice")) == (5, 2)
    assert store.facet_counts("semantic_kind", run_id="r1") == {"image": 2, "voice": 2}
    assert store.facet_counts("metadata:lang") == {"(none)": 4, "de": 1}
    assert [*store.facet_counts("tag:session_id").items()] == [("s0", 2), ("s1", 2), ("(none)", 1)]
    stats = store.stats(facets=["content_type"], run_id="r1")
    assert (stats["total"], stats["total_bytes"]) == (4, 10)
    assert stats["facets"] == {"content_type": {"application/octet-stream": 4}}
    with pytest.raises(GraphError, match="instant 'soon'"):
        store.count(created_after="soon")
    with pytest.raises(TypeError, match="colour"):
        store.search(colour="red")


@pytest.mark.item(448)
def test_a_crash_leaves_a_change_complete_or_undone(disk_stores: Stores) -> None:
    """At each of its points."""
    name = disk_stores.artifacts.store(b"x", metadata={"n": 0}).artifact_id
    points: list[str] = []
    disk_stores.reopen(fault=points.append).artifacts.update_metadata(name, metadata={"n": 0})
    assert points

    for point in points:

        def die(where: str, point: str = point) -> None:
            if where == point:
                raise CrashError

        before = disk_stores.artifacts.get_metadata(name)
        dying = disk_stores.reopen(fault=die).artifacts
        with pytest.raises(CrashError):
            dying.update_metadata(name, tags={"point": point}, metadata={"n": point})
        metadata = disk_stores.reopen().artifacts.get_metadata(name)

        is_done = point in {"file renamed", "transaction committed"}
        changed = (before.tags | {"point": point}, {"n": point})
        assert (metadata.tags, metadata.metadata) == (
            changed if is_done else (before.tags, before.metadata)
        )
        assert disk_stores.reopen().artifacts.load(name).content == b"x"


@pytest.mark.item(448)
def test_bytes_without_a_description_are_no_artifact(tmp_path: Path) -> None:
    """A process died between the two files: its file is collected, and the next writer stores the bytes."""
    store = files.FileArtifactStore(tmp_path)
    for point in ("file written", "file synced", "file renamed"):

        def die(where: str, point: str = point) -> None:
            if where == point:
                raise CrashError

        with pytest.raises(CrashError):
            files.FileArtifactStore(tmp_path, fault=die).store(b"torn")
        assert store.load(compute_artifact_id(b"torn")) is None
        assert store.list_all() == []
    (tmp_path / "artifacts" / "blobs" / ".killed.bin.tmp").write_bytes(b"to")
    assert store.gc()["blobs_deleted"] == 1
    assert store.gc(dry_run=False)["bytes_reclaimed"] == 4
    assert not [*(tmp_path / "artifacts" / "blobs").iterdir()]
    assert store.load_text(store.store(b"torn").artifact_id) == "torn"


@pytest.mark.item(448)
def test_the_first_of_two_writers_of_an_id_wins(tmp_path: Path) -> None:
    """The second writer comes between the first one's check and write, and gets the stored artifact."""
    other = files.FileArtifactStore(tmp_path)

    def come_between(where: str) -> None:
        if where == "file synced":
            other.store(b"first", artifact_id="a")

    stored = files.FileArtifactStore(tmp_path, fault=come_between).store(b"second", artifact_id="a")

    assert stored == other.get_metadata("a")
    assert other.load_text("a") == "first"


@pytest.mark.item(448)
def test_equal_bytes_of_a_folder_are_one_file(tmp_path: Path) -> None:
    """It is deleted with the last run that references it."""
    stores = Stores("files", tmp_path)
    store: Any = stores.artifacts
    assert isinstance(stores.artifacts, CollectableArtifactStore)
    spec = one_effect(EffectType.ANSWER_USER, {"message": "x"})
    runtime = stores.runtime(spec)
    for name in ("r1", "r2"):
        runtime.start(spec, run_id=name)
        runtime.tick(spec, name)
    first, second = (store.store(b"same", run_id=name) for name in ("r1", "r2"))
    blob = store.content_path(first.artifact_id)
    assert blob is not None
    assert blob == store.content_path(second.artifact_id)

    runtime.delete_run("r1")
    assert blob.read_bytes() == b"same"
    assert store.load(second.artifact_id).content == b"same"
    runtime.delete_run("r2")
    assert not blob.exists()


@pytest.mark.item(448)
def test_a_folder_of_an_older_release_is_taken_over(tmp_path: Path) -> None:
    """Descriptions without a descriptor get one; an interrupted take-over is repeated."""
    folder = tmp_path / "artifacts"
    folder.mkdir()
    row = {"artifact_id": "old", "content_type": "text/plain", "size_bytes": 3, "run_id": "r1"}
    row |= {"created_at": "2026-01-01T00:00:00+00:00", "tags": {"kind": "evidence"}, "sha256": "ab"}
    (folder / "old.json").write_text(json.dumps(row), encoding="utf-8")
    (folder / "old.bin").write_bytes(b"old")

    def die(_where: str) -> None:
        raise CrashError

    with pytest.raises(CrashError):
        files.FileArtifactStore(tmp_path, fault=die)
    store = files.FileArtifactStore(tmp_path)

    assert store.load_text("old") == "old"
    (artifact,) = store.search(run_id="r1", semantic_kind="evidence")
    assert (artifact.blob_id, artifact.descriptor.classification_source) == (
        "ab",
        "runtime_mime_inferred",
    )
    assert not [*folder.glob("old.*")]


@pytest.mark.item(448)
def test_a_description_cannot_reference_files_outside_its_folder(tmp_path: Path) -> None:
    """Whoever wrote the description."""
    store = files.FileArtifactStore(tmp_path)
    (tmp_path / "secret.bin").write_bytes(b"secret")
    row = store.store(b"x", artifact_id="evil").to_dict() | {"blob_id": "../../secret"}
    (tmp_path / "artifacts" / "refs" / "evil.meta").write_text(json.dumps(row), encoding="utf-8")

    for read in (store.load, store.content_path):
        with pytest.raises(GraphError, match="artifact_id"):
            read("evil")
    for change in (store.update_metadata, store.record_access):
        with pytest.raises(GraphError, match="artifact_id"):
            change("../evil")


def test_a_payload_for_a_store_hides_credentials(stores: Stores) -> None:
    """By their names, at any depth. Long texts are cut; the fields with texts of users are listed."""
    descriptor, metadata = build_artifact_descriptor_payload(
        semantic_kind="image",
        render_kind="",
        content_type="image/png",
        run_id="r1",
        producer={"provider": "p", "auth": {"api_key": "k1", "access-token": "k2"}},
        generation={"prompt": "x" * 13_000, "max_tokens": 5, "seed": b"ab"},
        turn_id="t1",
    )
    artifact = stores.artifacts.store(b"x", descriptor=descriptor, metadata=metadata)
    stored = stores.reopen().artifacts.get_metadata(artifact.artifact_id)

    assert stored.descriptor.render_kind == "image"
    assert stored.descriptor.turn_id == "t1"
    assert stored.descriptor.provenance["run_id"] == "r1"
    assert stored.descriptor.producer["auth"] == {
        "api_key": "[redacted]",
        "access-token": "[redacted]",
    }
    assert stored.descriptor.generation["prompt"].endswith("#TRUNCATION")
    assert stored.descriptor.generation["max_tokens"] == 5
    assert stored.descriptor.generation["seed"] == {"bytes": 2, "redacted": True}
    assert stored.descriptor.security["recorded_user_content_fields"] == ["prompt"]
    assert stored.metadata["producer"] == stored.descriptor.producer


@pytest.mark.parametrize("odd", ["a\0b", "\ud800"])
def test_a_description_that_could_not_be_read_is_refused(stores: Stores, odd: str) -> None:
    """At the call, whichever of its texts it is. Lists have the others."""
    artifact = stores.artifacts.store(b"x", run_id="r1")
    for options in ({"run_id": odd}, {"content_type": odd}, {"tags": {"a": odd}}):
        with pytest.raises(NotSerializableError):
            stores.artifacts.store(b"y", **options)
    with pytest.raises(NotSerializableError):
        stores.artifacts.update_metadata(artifact.artifact_id, tags={odd: "a"})
    with pytest.raises(NotSerializableError):
        stores.artifacts.record_access(artifact.artifact_id, actor_id=odd)

    assert stores.reopen().artifacts.list_all() == [artifact]


@pytest.mark.parametrize("damage", ["{", "[]", '{"artifact_id": "x"}', '{"run_id": "\\u0000"}'])
def test_a_damaged_description_hides_no_other(disk_stores: Stores, damage: str) -> None:
    """Lists and deletions of other runs go on. Bytes that it may name stay."""
    artifacts = disk_stores.artifacts
    bad, good = (artifacts.store(text, run_id="r1") for text in (b"bad", b"good"))
    folder = disk_stores.folder / "artifacts"
    if disk_stores.kind == "files":
        (folder / "refs" / f"{bad.artifact_id}.meta").write_text(damage, "utf-8")
    else:
        change = "update artifacts set metadata_json = ? where artifact_id = ?"
        with disk_stores.database.transaction() as connection:
            connection.execute(change, (damage, bad.artifact_id))

    assert artifacts.list_all() == artifacts.list_by_run("r1") == [good]
    assert artifacts.count() == 1
    artifacts.delete(good.artifact_id)
    if disk_stores.kind == "files":
        assert artifacts.gc(dry_run=False)["blobs_deleted"] == 0
        assert len([*(folder / "blobs").glob("*.bin")]) == 2
