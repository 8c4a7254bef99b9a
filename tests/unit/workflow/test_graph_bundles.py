"""`callboard graphs store-list|store-export|store-import|inspect|replay`: bundles of runs of one process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from actors.workflow import (
    Effect,
    EffectType,
    HashChainedLedgerStore,
    RunState,
    RunStatus,
    StepPlan,
    WorkflowSpec,
    create_scheduled_runtime,
)
from compose._cli import run
from compose._commands.output import Exit
from compose._tools.graph_stores import graph_stores
from tests.conformance.workflow.stores import one_effect

if TYPE_CHECKING:
    from pathlib import Path

    from actors.workflow import ScheduledRuntime
    from compose._tools.graph_stores import GraphStores

ASKING = one_effect(EffectType.ASK_USER, {"prompt": "Well?", "wait_key": "k"}, name="asking")
PARENT = one_effect(EffectType.START_SUBWORKFLOW, {"workflow_id": "asking"}, name="parent")
FLOWS = [PARENT, ASKING]
SHORT = WorkflowSpec("parent", "work", {"work": PARENT.nodes["work"]})
HERE = "tests.unit.workflow.test_graph_bundles"


class GraphsCommand:
    """What a command printed, and its exit code."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: str | Path) -> None:
        capsys.readouterr()
        self.code = run(["graphs", *map(str, words)])
        self.out, self.err = capsys.readouterr()
        assert "Traceback" not in self.out + self.err

    @property
    def data(self) -> Any:
        """The output as JSON."""
        return json.loads(self.out)


def runtime_of(stores: GraphStores, *, chained: bool = True) -> ScheduledRuntime:
    """Return a runtime with both graphs."""
    ledger = HashChainedLedgerStore(stores.ledger) if chained else stores.ledger
    return create_scheduled_runtime(
        run_store=stores.runs, ledger_store=ledger, workflows=FLOWS, auto_start=False
    )


def parked(path: Path, *, chained: bool = True) -> tuple[str, str]:
    """Return a run in new stores, which waits for the run below it, which waits for a person."""
    with graph_stores(path, create=True) as stores:
        runtime = runtime_of(stores, chained=chained)
        artifact = stores.artifacts.store_text("ü", run_id="r")
        ref = {"$artifact": artifact.artifact_id}
        run_id, _ = runtime.run(PARENT, vars={"order": 7, "text": ref})
        (child,) = stores.runs.list_children(parent_run_id=run_id)
    return run_id, child.run_id


@pytest.mark.item(463)
@pytest.mark.parametrize(("source", "target"), [("graphs.db", "folder"), ("folder", "graphs.db")])
def test_a_run_is_taken_to_other_stores_and_goes_on_there(
    source: str, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its ids, its ledger and the run below it, once however often; artifacts that lack are named."""
    store, other, file = tmp_path / source, tmp_path / "new" / target, tmp_path / "run.json"
    run_id, child_id = parked(store)

    (row,) = GraphsCommand(capsys, "store-list", store, "--json").data
    exported = GraphsCommand(capsys, "store-export", store, run_id, "-o", file)
    inspected = GraphsCommand(capsys, "inspect", file, "--json").data
    first = GraphsCommand(capsys, "store-import", other, file, "--json").data
    again = GraphsCommand(capsys, "store-import", other, file)

    assert (row["run_id"], row["workflow_id"], row["status"]) == (run_id, "parent", "waiting")
    assert "2 run(s)" in exported.err
    assert [run["run"] for run in inspected["runs"]] == [run_id, child_id]
    assert (inspected["ok"], {run["chain"] for run in inspected["runs"]}) == (True, {"ok"})
    assert (first["run"], first["runs"], len(first["missing_artifacts"])) == (run_id, 2, 1)
    assert (again.code, "is waiting: 2 run(s)" in again.out) == (Exit.OK, True)
    with graph_stores(store) as old, graph_stores(other) as new:
        assert new.ledger.list(run_id) == old.ledger.list(run_id)
        assert inspected["runs"][0]["head"] == new.ledger.list(run_id)[-1]["record_hash"]
        runtime = runtime_of(new)
        runtime.respond(child_id, "yes")
        state = runtime.runtime.tick(PARENT, run_id)
        assert state.output["out"]["output"]["out"] == "yes"
        assert old.runs.load(run_id).status is RunStatus.WAITING
    conflict = GraphsCommand(capsys, "store-import", other, file)
    assert (conflict.code, "it is there already" in conflict.err) == (Exit.USAGE, True)


@pytest.mark.item(463)
def test_a_replay_shows_the_states_and_checks_them_against_the_flow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the run or of one below it; the exit code is 1 where the flow has not the node."""
    run_id, child_id = parked(tmp_path / "g.db")
    file = tmp_path / "run.json"
    GraphsCommand(capsys, "store-export", tmp_path / "g.db", run_id, "-o", file)

    replay = GraphsCommand(capsys, "replay", file, f"{HERE}:FLOWS", "--json").data
    below = GraphsCommand(capsys, "replay", file, f"{HERE}:ASKING", "--run", child_id)
    short = GraphsCommand(capsys, "replay", file, f"{HERE}:SHORT")

    assert (replay["ok"], replay["flow"]) == (True, "parent")
    assert [state["status"] for state in replay["states"]] == ["running", "waiting"]
    assert RunState.from_dict(replay["states"][0]).vars["order"] == 7
    assert (below.code, "lead to the state" in below.out) == (Exit.OK, True)
    assert (short.code, "no node 'end'" in short.out) == (Exit.FAILED, True)
    for words, code in (
        ([file, "--run", "nobody"], Exit.NOT_FOUND),
        ([file, f"{HERE}:ASKING"], Exit.USAGE),
        ([tmp_path / "none.json"], Exit.USAGE),
    ):
        assert GraphsCommand(capsys, "replay", *words).code == code


@pytest.mark.item(447, 463)
def test_a_changed_bundle_is_shown_as_wrong_and_not_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the place; a ledger without hashes is checked by its states, and one with some must have all."""
    run_id, _ = parked(tmp_path / "g.db")
    plain_id, _ = parked(tmp_path / "plain", chained=False)
    file, plain = tmp_path / "run.json", tmp_path / "plain.json"
    GraphsCommand(capsys, "store-export", tmp_path / "g.db", run_id, "-o", file)
    GraphsCommand(capsys, "store-export", tmp_path / "plain", plain_id, "-o", plain)

    good = GraphsCommand(capsys, "inspect", plain, "--json").data
    assert (good["ok"], {run["chain"] for run in good["runs"]}) == (True, {"none"})
    for path, position in ((file, f"ledgers.{run_id}.items[0]: record hash"), (plain, "run.vars")):
        data = json.loads(path.read_text("utf-8"))
        record = data["ledgers"][data["root_run_id"]]["items"][0]["record"]
        record["delta"]["start"]["vars"]["order"] = 8
        path.write_text(json.dumps(data), encoding="utf-8")
        wrong = GraphsCommand(capsys, "inspect", path)
        assert (wrong.code, f"THE BUNDLE IS WRONG: {position}" in wrong.out) == (Exit.FAILED, True)
        refused = GraphsCommand(capsys, "store-import", tmp_path / "new.db", path)
        assert (refused.code, position in refused.err) == (Exit.USAGE, True)
    assert not (tmp_path / "new.db").exists()
    old = json.loads(file.read_text("utf-8")) | {"version": 2}
    file.write_text(json.dumps(old), encoding="utf-8")
    assert GraphsCommand(capsys, "inspect", file).code == Exit.USAGE


def test_an_export_has_the_records_of_a_driver_that_died(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records behind the last checkpoint count, as for the next driver: the bundle is complete."""

    def die(run: RunState, ctx: Any) -> StepPlan:
        raise KeyboardInterrupt

    say = Effect(EffectType.ANSWER_USER, {"message": "hi"}, "said")
    nodes = {"say": lambda _run, _ctx: StepPlan("say", say, next_node="die"), "die": die}
    spec = WorkflowSpec("dying", "say", nodes)
    with graph_stores(tmp_path, create=True) as stores:
        runtime = create_scheduled_runtime(
            run_store=stores.runs, ledger_store=stores.ledger, workflows=[spec], auto_start=False
        )
        run_id = runtime.runtime.start(spec)
        before = stores.runs.load(run_id)
        with pytest.raises(KeyboardInterrupt):
            runtime.runtime.tick(spec, run_id)
        stores.runs.save(before)

    file = tmp_path / "run.json"
    assert GraphsCommand(capsys, "store-export", tmp_path, run_id, "-o", file).code == Exit.OK

    assert GraphsCommand(capsys, "inspect", file).code == Exit.OK
    assert json.loads(file.read_text("utf-8"))["run"]["current_node"] == "die"


def test_what_is_no_store_is_named_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is made where something is to be read, nor over another file."""
    text = tmp_path / "notes.txt"
    text.write_text("notes", encoding="utf-8")
    run_id, _ = parked(tmp_path / "g.db")
    file = tmp_path / "run.json"
    GraphsCommand(capsys, "store-export", tmp_path / "g.db", run_id, "-o", file)
    (tmp_path / "empty").mkdir()

    wrong: list[tuple[list[str | Path], str]] = [
        (["store-list", tmp_path / "none.db"], "there is nothing"),
        (["store-list", tmp_path / "empty"], "no runs of graphs"),
        (["store-export", text, "r"], "no SQLite file"),
        (["store-import", text, file], "no SQLite file"),
        (["store-export", tmp_path / "g.db", "nobody"], "no run 'nobody'"),
    ]
    for words, problem in wrong:
        command = GraphsCommand(capsys, *words)
        assert (command.code, problem in command.err) == (Exit.NOT_FOUND, True), words
    assert text.read_text("utf-8") == "notes"
    assert not (tmp_path / "none.db").exists()
    assert [*(tmp_path / "empty").iterdir()] == []
