"""Snapshots and histories on every store: read, restored, exported."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from actors._kernel.workflow.errors import GraphError, NoSuchRunError, SpecChangedError
from actors._workflow.embedded.stores.ledgers import LedgerOver
from actors.workflow import (
    ActorFingerprint,
    EffectOutcome,
    EffectType,
    HashChainedLedgerStore,
    ObservableLedgerStore,
    OffloadingLedgerStore,
    OffloadingRunStore,
    RunStatus,
    Snapshot,
    StepPlan,
    WorkflowSpec,
    export_run_history_bundle,
    import_run_history_bundle,
    is_artifact_ref,
    persist_workflow_snapshot,
    plain_value,
    replay_run_history,
    restore_snapshot,
    verify_ledger_chain,
)
from tests.conformance.workflow.stores import Stores, effect_then, end_node, one_effect

if TYPE_CHECKING:
    from pathlib import Path

    from actors.workflow import RunState, WorkflowRuntime

ASKING = one_effect(EffectType.ASK_USER, {"prompt": "Well?", "wait_key": "k"}, name="asking")


def parked(stores: Stores, **more: Any) -> tuple[WorkflowRuntime, str]:
    """Return a runtime and a run that waits."""
    runtime = stores.runtime(ASKING)
    run_id = runtime.start(ASKING, **more)
    runtime.tick(ASKING, run_id)
    return runtime, run_id


@pytest.mark.item(452)
def test_a_restored_snapshot_is_a_new_run(stores: Stores) -> None:
    """It has the open question. The old run is unchanged, and each is answered separately."""
    runtime, run_id = parked(stores, vars={"n": 1})
    snapshot = Snapshot.from_run(
        run=runtime.get_state(run_id), name="before", spec_hash=ASKING.hash
    )
    stores.snapshots.save(snapshot)
    runtime.resume(ASKING, run_id, "k", "yes")
    stored = stores.reopen().snapshots.load(snapshot.snapshot_id)

    new_id = restore_snapshot(
        stored, ASKING, run_store=stores.runs, ledger_store=stores.ledger, run_id="again"
    )

    assert new_id == "again"
    assert runtime.get_state(new_id).status is RunStatus.WAITING
    assert runtime.resume(ASKING, new_id, "k", "no").output["out"] == "no"
    assert runtime.get_state(run_id).output["out"] == "yes"
    first = runtime.get_ledger(new_id)[0]
    assert first["result"]["restored_from"] == snapshot.snapshot_id


@pytest.mark.item(452)
def test_a_snapshot_of_another_graph_is_refused(stores: Stores) -> None:
    """Unless it is forced. Never without the next node, nor of an ended run."""
    runtime, run_id = parked(stores)
    snapshot = Snapshot.from_run(run=runtime.get_state(run_id), name="x", spec_hash=ASKING.hash)
    where: dict[str, Any] = {"run_store": stores.runs, "ledger_store": stores.ledger}
    changed = WorkflowSpec(
        "asking", "work", {**ASKING.nodes, "more": lambda _r, _c: StepPlan("more")}
    )
    smaller = WorkflowSpec("asking", "work", {"work": ASKING.nodes["work"]})

    with pytest.raises(SpecChangedError, match="with force if its nodes still fit"):
        restore_snapshot(snapshot, changed, **where)
    forced = restore_snapshot(snapshot, changed, **where, force=True)
    assert runtime.resume(changed, forced, "k", 1).status is RunStatus.COMPLETED
    with pytest.raises(GraphError, match="'end'"):
        restore_snapshot(snapshot, smaller, **where, force=True)
    with pytest.raises(ValueError, match="there already"):
        restore_snapshot(snapshot, ASKING, **where, run_id=run_id)
    ended = Snapshot.from_run(run=runtime.resume(ASKING, run_id, "k", 1), name="x")
    with pytest.raises(GraphError, match="nothing to go on with"):
        restore_snapshot(ended, ASKING, **where)


def tree(stores: Stores) -> tuple[WorkflowSpec, WorkflowRuntime, str]:
    """Return a run that waits for a child that waits for a person."""
    parent = one_effect(EffectType.START_SUBWORKFLOW, {"workflow_id": "asking"}, name="parent")
    runtime = stores.runtime(parent, ASKING)
    run_id = runtime.start(parent, session_id="s", vars={"prompt": "ü"})
    runtime.tick(parent, run_id)
    return parent, runtime, run_id


@pytest.mark.item(463)
def test_a_history_has_all_of_a_run(stores: Stores) -> None:
    """As JSON text: runs, records with cursors, artifacts with digests, the graph, the session."""
    parent, _, run_id = tree(stores)
    artifact = stores.artifacts.store_text("x", run_id=run_id)
    where: dict[str, Any] = {
        "run_store": stores.runs,
        "ledger_store": stores.ledger,
        "artifact_store": stores.artifacts,
    }
    persist_workflow_snapshot(
        **{name: where[name] for name in ("run_store", "artifact_store")},
        run_id=run_id,
        workflow_id="parent",
        snapshot=parent.described(),
        format="spec",
    )

    bundle = export_run_history_bundle(run_id=run_id, include_session=True, **where)

    assert json.loads(json.dumps(bundle, allow_nan=False)) == bundle
    assert bundle["version"] == 1
    assert bundle["run"] == stores.runs.load(run_id).to_dict()
    assert bundle["input_data"]["prompt"] == "ü"
    assert not any(name.startswith("_") for name in bundle["input_data"])
    assert bundle["workflow_snapshot"]["snapshot"]["nodes"] == ["end", "work"]
    (child,) = bundle["subruns"]
    assert {*bundle["ledgers"]} == {run_id, child["run_id"]}
    ledger = bundle["ledgers"][run_id]
    assert [item["cursor"] for item in ledger["items"]] == [*range(1, ledger["total"] + 1)]
    assert {a["artifact_id"]: a["sha256"] for a in ledger["artifacts"]}[
        artifact.artifact_id
    ] == artifact.sha256
    assert [turn["run_id"] for turn in bundle["session"]["turns"]] == [run_id]
    assert len(bundle["timeline"]) == ledger["total"] + bundle["ledgers"][child["run_id"]]["total"]
    tail = export_run_history_bundle(
        run_id=run_id, include_subruns=False, ledger_mode="tail", ledger_max_items=1, **where
    )
    assert [item["cursor"] for item in tail["ledgers"][run_id]["items"]] == [ledger["total"]]
    (warning,) = tail["warnings"]
    left_out = ledger["total"] - 1
    assert warning == {
        "code": "ledger_tail_window",
        "run_id": run_id,
        "detail": f"{left_out} records before the window are left out",
        "total": ledger["total"],
        "window": 1,
    }
    with pytest.raises(NoSuchRunError):
        export_run_history_bundle(run_id="nobody", **where)
    with pytest.raises(GraphError, match="ledger_mode"):
        export_run_history_bundle(run_id=run_id, ledger_mode="some", **where)
    with pytest.raises(GraphError, match="detail"):
        export_run_history_bundle(run_id=run_id, detail="some", **where)


@pytest.mark.item(463)
def test_a_history_for_a_replay_omits_model_requests(stores: Stores) -> None:
    """A mark with the size replaces the request.

    The history cannot be imported. A corrupt store is named, not hidden.
    """
    model_request = {"prompt": "secret", "temperature": 1}
    spec = one_effect(EffectType.LLM_CALL, model_request)
    result = {"content": "x", "metadata": {"_provider_request": "secret", "model": "m"}}
    handlers = {EffectType.LLM_CALL: lambda _run, _effect: EffectOutcome.completed(result)}
    runtime = stores.runtime(spec, effect_handlers=handlers)
    run_id = runtime.start(spec)
    runtime.tick(spec, run_id)
    where: dict[str, Any] = {"run_store": stores.runs, "ledger_store": stores.ledger}

    bundle = export_run_history_bundle(run_id=run_id, detail="replay", **where)

    record = bundle["ledgers"][run_id]["items"][2]["record"]
    omitted = {"$omitted": {"profile": "replay", "bytes": 8}}
    assert record["effect"]["payload"]["prompt"] == omitted
    assert record["effect"]["payload"]["temperature"] == 1
    assert record["result"] == {
        "content": "x",
        "metadata": {"_provider_request": omitted, "model": "m"},
    }
    assert runtime.get_ledger(run_id)[2]["effect"]["payload"]["prompt"] == "secret"
    with pytest.raises(GraphError, match="left out"):
        import_run_history_bundle(bundle, **where)
    where["ledger_store"] = Unreadable(stores.ledger)
    (warning,) = export_run_history_bundle(run_id=run_id, **where)["warnings"]
    assert (warning["code"], warning["detail"]) == ("ledger_read_failed", "OSError: disk is gone")


class Unreadable(LedgerOver):
    """A ledger that cannot be read."""

    @override
    def list(self, run_id: str) -> list[dict[str, Any]]:
        raise OSError("disk is gone")


@pytest.mark.item(463)
def test_an_imported_history_continues_in_other_stores(stores: Stores, tmp_path: Path) -> None:
    """In stores of another kind, once. An incomplete history, or one of another version, is refused."""
    parent, _, run_id = tree(stores)
    bundle = export_run_history_bundle(
        run_id=run_id, run_store=stores.runs, ledger_store=stores.ledger, workflow=parent
    )
    kind = {"memory": "sqlite", "files": "memory", "sqlite": "files"}[stores.kind]
    (tmp_path / "other").mkdir()
    other = Stores(kind, tmp_path / "other")
    where: dict[str, Any] = {"run_store": other.runs, "ledger_store": other.ledger}
    ids = import_run_history_bundle(json.loads(json.dumps(bundle)), **where)

    assert ids[0] == run_id
    runtime = other.runtime(parent, ASKING)
    assert runtime.get_state(run_id) == stores.runs.load(run_id)
    runtime.resume(ASKING, ids[1], "k", "elsewhere")
    state = runtime.tick(parent, run_id)
    assert state.output["out"]["output"]["out"] == "elsewhere"
    with pytest.raises(ValueError, match="there already"):
        import_run_history_bundle(bundle, **where)
    with pytest.raises(GraphError, match="version"):
        import_run_history_bundle(bundle | {"version": 2}, **where)
    with pytest.raises(GraphError, match="not whole"):
        import_run_history_bundle(bundle | {"warnings": [{"run_id": "x", "detail": "y"}]}, **where)
    other.close()


@pytest.mark.item(463)
def test_an_import_that_died_is_made_again(stores: Stores, tmp_path: Path) -> None:
    """At each write, in other stores: then all runs and records are there once, the run above at the end."""
    _, _, run_id = tree(stores)
    bundle = export_run_history_bundle(
        run_id=run_id, run_store=stores.runs, ledger_store=stores.ledger
    )
    names = [run_id, bundle["subruns"][0]["run_id"]]
    died = 0
    for at in range(100):
        other = Stores("files" if stores.kind == "memory" else stores.kind, tmp_path / f"at-{at}")
        steps_left = [at]

        def die(_: str, countdown: list[int] = steps_left) -> None:
            countdown[0] -= 1
            if countdown[0] < 0:
                raise BrokenPipeError

        dying = other.reopen(die)
        try:
            import_run_history_bundle(bundle, run_store=dying.runs, ledger_store=dying.ledger)
        except BrokenPipeError:
            died += 1
        dying.close()
        if other.runs.load(run_id) is not None:
            assert other.runs.load(names[1]) is not None
        where: dict[str, Any] = {"run_store": other.runs, "ledger_store": other.ledger}
        assert import_run_history_bundle(bundle, **where) == names
        assert import_run_history_bundle(bundle, **where) == names
        for name in names:
            assert other.runs.load(name) == stores.runs.load(name)
            assert other.ledger.list(name) == stores.ledger.list(name)
        other.close()
        if steps_left[0] >= 0:
            break
    assert 4 <= died == at


@pytest.mark.item(463)
def test_a_history_can_be_replayed(stores: Stores) -> None:
    """State by state, without a call of a node; a history that diverges is refused."""
    calls: list[str] = []

    def begin(run: RunState, _ctx: Any) -> StepPlan:
        calls.append("begin")
        run.vars["x"] = {"y": 1}
        return StepPlan("begin", next_node="say")

    say = effect_then(EffectType.ANSWER_USER, {"message": "hi"})
    spec = WorkflowSpec("graph", "begin", {"begin": begin, "say": say, "end": end_node})
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)
    ended = runtime.tick(spec, run_id)
    bundle = export_run_history_bundle(
        run_id=run_id, run_store=stores.runs, ledger_store=stores.ledger
    )

    states = replay_run_history(bundle, spec)

    assert calls == ["begin"]
    assert [(s.current_node, s.status.value) for s in states] == [
        ("begin", "running"),
        ("say", "running"),
        ("end", "running"),
        ("end", "completed"),
    ]
    assert states[1].vars["x"] == {"y": 1}
    assert states[-1].output == ended.output
    with pytest.raises(GraphError, match="'say'"):
        replay_run_history(bundle, WorkflowSpec("graph", "begin", {"begin": begin}))
    cut = json.loads(json.dumps(bundle))
    del cut["ledgers"][run_id]["items"][-2]
    with pytest.raises(GraphError, match="lead to running"):
        replay_run_history(cut, spec)


@pytest.mark.item(452, 463)
def test_branches_are_in_snapshots_and_histories(stores: Stores, tmp_path: Path) -> None:
    """Each continues in the new run, elsewhere, and in the old run; a replay shows each of their steps."""
    ask = {key: {"prompt": "?", "wait_key": key} for key in "ab"}
    nodes: dict[str, Any] = {
        key: effect_then(EffectType.ASK_USER, payload, key=f"out.{key}")
        for key, payload in ask.items()
    }
    nodes["fork"] = lambda run, _ctx: StepPlan(
        run.current_node, next_node="end", parallel={"a": "a", "b": "b"}
    )
    spec = WorkflowSpec("forked", "fork", {**nodes, "end": end_node})
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)
    runtime.tick(spec, run_id)
    state = runtime.resume(spec, run_id, "b", 1)
    where: dict[str, Any] = {"run_store": stores.runs, "ledger_store": stores.ledger}
    stores.snapshots.save(Snapshot.from_run(run=state, name="x", spec_hash=spec.hash))
    (snapshot,) = stores.reopen().snapshots.list()
    bundle = json.loads(json.dumps(export_run_history_bundle(run_id=run_id, **where)))
    other = Stores(stores.kind, tmp_path / "other")

    import_run_history_bundle(bundle, run_store=other.runs, ledger_store=other.ledger)
    again = restore_snapshot(snapshot, spec, **where)

    for id_, store in ((run_id, stores), (again, stores), (run_id, other)):
        done = store.reopen().runtime(spec).resume(spec, id_, "a", 2)
        assert done.output["out"] == {"a": 2, "b": 1}
    other.close()
    states = replay_run_history(export_run_history_bundle(run_id=run_id, **where), spec)
    forks = [s.fork for s in states]
    assert [fork and [branch.node for branch in fork.branches] for fork in forks] == [
        None,
        ["a", "b"],
        ["a", "b"],
        ["a", "b"],
        ["a", "end"],
        ["end", "end"],
        None,
        None,
    ]
    missing = WorkflowSpec("forked", "fork", {"fork": nodes["fork"], "a": nodes["a"]})
    with pytest.raises(GraphError, match="no node 'end'"):
        restore_snapshot(snapshot, missing, force=True, **where)


@pytest.mark.item(397, 446, 447, 450, 451, 459)
def test_all_wrappers_at_once_change_no_graph(stores: Stores) -> None:
    """Observed, chained and offloaded: nodes get references to large values, the chain is complete."""
    chain = HashChainedLedgerStore(
        OffloadingLedgerStore(stores.ledger, artifact_store=stores.artifacts, max_inline_bytes=500)
    )
    ledger = ObservableLedgerStore(chain)
    runs = OffloadingRunStore(stores.runs, artifact_store=stores.artifacts, max_inline_bytes=500)

    def read(run: RunState, ctx: Any) -> StepPlan:
        message = plain_value(run.vars["out"]["message"], ctx.artifacts)
        is_ref = is_artifact_ref(run.vars["out"]["message"])
        return StepPlan("read", complete_output={"length": len(message), "is_ref": is_ref})

    say = effect_then(EffectType.ANSWER_USER, {"message": "ü" * 900}, after="read")
    spec = WorkflowSpec("graph", "say", {"say": say, "read": read})
    runtime = stores.runtime(spec, run_store=runs, ledger_store=ledger)
    seen: list[dict[str, Any]] = []
    runtime.subscribe_ledger(seen.append)
    run_id = runtime.start(spec)

    state = runtime.tick(spec, run_id)

    assert state.output == {"length": 900, "is_ref": True}
    assert runtime.get_ledger(run_id)[2]["result"]["message"] == "ü" * 900
    report = verify_ledger_chain(stores.reopen().ledger.list(run_id))
    assert report["ok"], report
    assert len(seen) == report["count"] == 5
    assert runtime.delete_run(run_id) == 1
    assert stores.artifacts.list_all() == []
    with pytest.raises(TypeError, match="ObservableLedgerStore"):
        stores.runtime(spec).subscribe_ledger(seen.append)


@pytest.mark.item(474)
def test_records_and_runs_have_their_actor(stores: Stores) -> None:
    """Equal facts give equal actors; each record has actor and session."""
    actor = ActorFingerprint.from_metadata(kind="agent", display_name="Ada", team="x")
    again = ActorFingerprint.from_metadata(kind="agent", display_name="Ada", team="x")
    other = ActorFingerprint.from_metadata(kind="human", display_name="Ada", team="x")
    runtime, run_id = parked(stores, actor_id=actor.actor_id, session_id="s")

    assert actor == again
    assert actor.actor_id != other.actor_id
    records = stores.reopen().ledger.list(run_id)
    assert {(record["actor_id"], record["session_id"]) for record in records} == {
        (actor.actor_id, "s")
    }
    assert runtime.get_state(run_id).actor_id == actor.actor_id
