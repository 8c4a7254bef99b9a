"""Contracts of the stores of commands, snapshots and artifacts."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.workflow.errors import GraphError
from actors._kernel.workflow.stores import DeletableCommandStore
from actors.errors import NotSerializableError
from actors.workflow import (
    ArtifactStore,
    CommandAppendResult,
    CommandCursorStore,
    CommandRecord,
    CommandStore,
    EffectType,
    InMemoryRunStore,
    OffloadingRunStore,
    RunState,
    Snapshot,
    SnapshotStore,
    artifact_ref,
    compute_artifact_id,
    get_artifact_id,
    is_artifact_ref,
    offload_large_values,
    plain_value,
    resolve_artifact,
)
from tests.conformance.workflow.stores import at_once, one_effect

if TYPE_CHECKING:
    from tests.conformance.workflow.stores import Stores


def command(name: str, **more: Any) -> CommandRecord:
    """Return a command of this id."""
    return CommandRecord(command_id=name, run_id="r1", type="pause", **more)


@pytest.mark.item(453)
def test_a_command_is_kept_once_and_in_order(stores: Stores) -> None:
    """A reader continues from its cursor, also in another process."""
    assert isinstance(stores.commands, CommandStore)
    assert isinstance(stores.cursor, CommandCursorStore)
    first = stores.commands.append(command("c1", payload={"why": "ü"}))
    again = stores.commands.append(command("c1", payload={"why": "other"}))
    second = stores.commands.append(command("c2"))

    assert (first.accepted, first.duplicate, first.seq) == (True, False, 1)
    assert (again.accepted, again.duplicate, again.seq) == (False, True, 1)
    assert second.seq == 2
    page, cursor = stores.commands.list_after(after=0, limit=1)
    assert [(c.command_id, c.seq, c.payload) for c in page] == [("c1", 1, {"why": "ü"})]
    assert stores.cursor.load() == 0
    stores.cursor.save(cursor)
    other = stores.reopen()
    assert other.cursor.load() == 1
    page, cursor = other.commands.list_after(after=other.cursor.load())
    assert ([c.command_id for c in page], cursor) == (["c2"], 2)
    assert other.commands.list_after(after=2) == ([], 2)
    assert other.commands.append(command("c2")).duplicate
    assert other.commands.get_last_seq() == 2
    with pytest.raises(NotSerializableError):
        stores.commands.append(command("c3", payload={"x": {1}}))


@pytest.mark.item(453)
def test_commands_are_deleted_with_their_run(stores: Stores) -> None:
    """Their ids and positions stay taken: a reader continues, and none of them is accepted again."""
    assert isinstance(stores.commands, DeletableCommandStore)
    assert stores.commands.delete("r1") == 0
    spec = one_effect(EffectType.ANSWER_USER, {"message": "x"})
    runtime = stores.runtime(spec)
    runtime.start(spec, run_id="r1")
    runtime.tick(spec, "r1")
    for name in ("c1", "c2"):
        stores.commands.append(command(name))
    stores.commands.append(CommandRecord(command_id="c3", run_id="r2", type="pause"))
    stores.commands.append(command("c4", payload={"secret": "x"}))

    assert runtime.delete_run("r1", command_store=stores.commands) == 1

    other = stores.reopen().commands
    page, cursor = other.list_after(after=0, limit=1)
    assert ([c.command_id for c in page], cursor) == (["c3"], 3)
    assert other.list_after(after=cursor) == ([], 3)
    assert other.append(command("c4")) == CommandAppendResult(accepted=False, duplicate=True, seq=4)
    assert other.append(command("c5")).seq == other.get_last_seq() == 5
    assert [c.command_id for c in other.list_after(after=3)[0]] == ["c5"]
    assert (other.delete("r1"), other.delete("r1")) == (1, 0)
    if stores.kind == "files":
        assert "secret" not in (stores.folder / "commands.jsonl").read_text(encoding="utf-8")


@pytest.mark.item(453)
def test_one_of_many_equal_commands_is_accepted(stores: Stores) -> None:
    """And the positions have no gap."""
    results: list[CommandAppendResult] = []

    def give(n: int) -> None:
        results.extend(stores.commands.append(command(id_)) for id_ in ("same", f"own{n}"))

    at_once(partial(give, n) for n in range(6))

    assert sorted(r.seq for r in results if r.accepted) == [*range(1, 8)]
    assert stores.commands.get_last_seq() == 7


@pytest.mark.item(452)
def test_snapshots_are_found_by_run_tag_and_words(stores: Stores) -> None:
    """The newest first; a deleted one is not found."""
    assert isinstance(stores.snapshots, SnapshotStore)
    run = RunState.new(workflow_id="graph", entry_node="a", run_id="r1", vars={"x": [1]})
    first = Snapshot.from_run(run=run, name="invoice:1", description="First one", tags=["prod"])
    run.vars["x"].append(2)
    second = Snapshot.from_run(run=run, name="notes", description="misc", tags=["dev", "prod"])
    for snapshot in (first, second):
        stores.snapshots.save(snapshot)
    snapshots = stores.reopen().snapshots

    assert snapshots.load(first.snapshot_id) == first
    assert snapshots.load(first.snapshot_id).run_state["vars"] == {"x": [1]}
    assert [s.name for s in snapshots.list()] == ["notes", "invoice:1"]
    assert [s.name for s in snapshots.list(tag="dev")] == ["notes"]
    assert [s.name for s in snapshots.list(query="FIRST")] == ["invoice:1"]
    assert [s.name for s in snapshots.list(run_id="r1", limit=1)] == ["notes"]
    assert snapshots.list(run_id="r2") == []
    assert snapshots.delete(first.snapshot_id)
    assert not snapshots.delete(first.snapshot_id)
    assert snapshots.load(first.snapshot_id) is None


@pytest.mark.item(448)
def test_artifacts_are_kept_once_described_and_found(stores: Stores) -> None:
    """By id, run, kind and tags; equal bytes of a run are stored once."""
    assert isinstance(stores.artifacts, ArtifactStore)
    store: Any = stores.artifacts
    text = store.store_text("ü", run_id="r1", tags={"kind": "note"})
    data = store.store_json({"a": [1]}, run_id="r1")
    other = store.store_text("ü", run_id="r2", tags={"kind": "note"})
    assert store.store_text("ü", run_id="r1").artifact_id == text.artifact_id
    assert other.artifact_id != text.artifact_id
    store = stores.reopen().artifacts

    assert store.load(text.artifact_id).content == "ü".encode()
    assert store.load_text(text.artifact_id) == "ü"
    assert store.load_json(data.artifact_id) == {"a": [1]}
    assert store.get_metadata(data.artifact_id) == data
    assert (data.content_type, data.size_bytes) == ("application/json", 10)
    assert {a.artifact_id for a in store.list_by_run("r1")} == {text.artifact_id, data.artifact_id}
    assert [a.artifact_id for a in store.search(run_id="r1", tags={"kind": "note"})] == [
        text.artifact_id
    ]
    assert len(store.search(content_type="text/plain")) == 2
    assert store.exists(data.artifact_id)
    assert store.delete(data.artifact_id)
    assert not store.delete(data.artifact_id)
    assert store.load(data.artifact_id) is None
    assert store.load_json(data.artifact_id) is None
    assert store.delete_by_run("r1") == 1
    assert [a.artifact_id for a in store.list_all()] == [other.artifact_id]


@pytest.mark.item(448)
@pytest.mark.parametrize("name", ["../evil", "a/b", "a.b", "", "/etc", "a\x00", "..", "x" * 201])
def test_an_artifact_id_is_no_path(stores: Stores, name: str) -> None:
    """Neither on store nor on read."""
    with pytest.raises(GraphError, match="artifact_id"):
        stores.artifacts.store(b"evil", artifact_id=name)
    if stores.kind != "memory":
        with pytest.raises(GraphError, match="artifact_id"):
            stores.artifacts.load(name)


@pytest.mark.item(449)
def test_references_name_artifacts(stores: Stores) -> None:
    """The helpers make, recognise and follow them."""
    artifact = stores.artifacts.store_json([1], run_id="r1")
    ref = artifact_ref(artifact.artifact_id)

    assert ref == {"$artifact": artifact.artifact_id}
    assert is_artifact_ref(ref)
    assert not any(is_artifact_ref(value) for value in ("a", None, 1, {}, {"$artifact": 1}, [ref]))
    assert get_artifact_id(ref) == artifact.artifact_id
    resolved_artifact = resolve_artifact(ref, stores.artifacts)
    assert resolved_artifact is not None
    assert resolved_artifact.as_json() == [1]
    assert resolve_artifact(artifact_ref("nobody"), stores.artifacts) is None
    assert compute_artifact_id(b"[1]", run_id="r1") == artifact.artifact_id
    assert compute_artifact_id(b"[1]") != compute_artifact_id(b"[1]", run_id="r1")


@pytest.mark.item(397, 450)
def test_large_values_of_a_run_are_references(stores: Stores) -> None:
    """Ids and the runtime's own data stay; the artifacts belong to the run."""
    runs: Any = OffloadingRunStore(
        stores.runs, artifact_store=stores.artifacts, max_inline_bytes=300
    )
    run = RunState.new(workflow_id="graph", entry_node="a", run_id="r1", session_id="s" * 400)
    run.vars = {
        "text": "ü" * 300,
        "deep": {"rows": [{"n": n} for n in range(100)], "small": 1},
        "_runtime": {"own": "x" * 400},
    }
    run.output = {"report": "y" * 400, "short": "z"}
    runs.save(run)
    stored = stores.reopen().runs.load("r1")

    assert is_artifact_ref(stored.vars["text"])
    assert stored.vars["deep"]["small"] == 1
    assert is_artifact_ref(stored.vars["deep"]["rows"])
    assert plain_value(stored.vars["deep"]["rows"], stores.artifacts) == [
        {"n": n} for n in range(100)
    ]
    assert plain_value(stored.vars["text"], stores.artifacts) == "ü" * 300
    assert plain_value("here", stores.artifacts) == "here"
    assert stored.session_id == "s" * 400
    assert stored.vars["_runtime"] == {"own": "x" * 400}
    assert is_artifact_ref(stored.output["report"])
    assert stored.output["short"] == "z"
    assert len(stores.artifacts.list_by_run("r1")) == 3
    assert "text" in run.vars
    assert run.vars["text"] == "ü" * 300
    assert [r.run_id for r in runs.list_runs()] == ["r1"]
    runs.save(stored)
    assert len(stores.artifacts.list_by_run("r1")) == 3
    with pytest.raises(NotSerializableError):
        runs.save(RunState.new(workflow_id="g", entry_node="a", vars={"x": object()}))


def test_offloaded_paths_can_be_configured(stores: Stores) -> None:
    """By path; a whole value only if it may be replaced."""
    value = {"a": "x" * 400, "b": "y" * 400}
    offloaded_vars = offload_large_values(
        value,
        artifact_store=stores.artifacts,
        run_id="r1",
        max_inline_bytes=100,
        root_path="vars",
        allow_offload=lambda path, _value: path != "vars.b",
    )

    assert is_artifact_ref(offloaded_vars["a"])
    assert offloaded_vars["b"] == "y" * 400
    whole = offload_large_values(
        "z" * 400, artifact_store=stores.artifacts, run_id=None, max_inline_bytes=100
    )
    assert whole == "z" * 400
    assert json.dumps(value).count("x") == 400


def test_an_offloading_wrapper_keeps_the_stores_methods() -> None:
    """Drivers can call its other methods through the wrapper."""
    runs: Any = OffloadingRunStore(InMemoryRunStore(), artifact_store=None)

    assert runs.list_runs() == []
    assert not hasattr(runs, "lock")
