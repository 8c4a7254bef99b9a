"""Bundles of flow runs: exported from hosts, verified, refused if changed, and continued elsewhere."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.workflow.errors import NoSuchRunError
from actors._workflow.hosted import graph_run
from actors.workflow import (
    EffectOutcome,
    EffectType,
    HashChainedLedgerStore,
    InMemoryLedgerStore,
    InMemoryRunStore,
    RunStatus,
    Snapshot,
    WorkflowRuntime,
    WorkflowSpec,
    export_run_history_bundle,
    import_run_history_bundle,
    replay_run_history,
    verify_ledger_chain,
)
from compose._tools import graph_bundle
from compose._tools.graph_bundle import BundleError, RunBusyError, bundle_of, read_bundle
from tests.behaviour.flow_stage import Stage, asking, completing, ending, single, staged
from tests.behaviour.test_flow_parts import asking_for, forking

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from actors._kernel.runtime.ids import RunId
    from actors.workflow import Effect, RunState
    from tests.behaviour.bed import Bed

T = EffectType
PAY = asking(T.TOOL_CALLS, {"order": 7}, key="paid", after="sub")
SUB = asking(T.START_SUBWORKFLOW, {"workflow_id": "letter"}, key="letter", after="ask")
FLOW = WorkflowSpec("flow", "pay", {"pay": PAY, "sub": SUB, "ask": asking_for("ok"), "end": ending})
LETTER = WorkflowSpec("letter", "end", {"end": ending})


async def parked(bed: Bed) -> tuple[Stage, RunId]:
    """Return a run that has paid, had a sub-graph, and waits for a person."""
    handlers = {T.TOOL_CALLS: completing("paid")}
    stage = await staged(bed, FLOW, LETTER, effect_handlers=handlers)
    run_id = await stage.runs.start("flow", vars={"n": 1})
    await stage.waits(run_id)
    return stage, run_id


def in_file(folder: Path, bundle: dict[str, Any]) -> Path:
    """Return the file of a bundle."""
    path = folder / "run.json"
    path.write_text(json.dumps(bundle), encoding="utf-8")
    return path


@pytest.mark.item(463)
async def test_a_bundle_has_the_whole_run(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its sub-graph, over generations and notes. It can be replayed, and continued in other stores."""
    monkeypatch.setattr(graph_run, "ENTRIES_KEPT", 2)
    stage, run_id = await parked(bed)
    await stage.runs.steer(run_id, "quick")
    bundle = await bundle_of(bed.runtime, stage.runs, run_id)
    content = read_bundle(in_file(tmp_path, bundle))

    assert (content.run.status, content.runs, content.run.vars["n"]) == (RunStatus.WAITING, 2, 1)
    ledger = [item["record"] for item in bundle["ledgers"][run_id]["items"]]
    assert ledger == await stage.runs.ledger(run_id)
    assert [state.status.value for state in replay_run_history(bundle, FLOW)][-1] == "waiting"
    elsewhere: dict[str, Any] = {
        "run_store": InMemoryRunStore(),
        "ledger_store": InMemoryLedgerStore(),
    }
    child = bundle["subruns"][0]["run_id"]
    assert import_run_history_bundle(bundle, **elsewhere) == [run_id, child]
    assert verify_ledger_chain(elsewhere["ledger_store"].list(run_id))["ok"]
    alone = await bundle_of(bed.runtime, stage.runs, run_id, subruns=False)
    assert (alone["subruns"], [*alone["ledgers"]]) == ([], [run_id])
    with pytest.raises(NoSuchRunError):
        await bundle_of(bed.runtime, stage.runs, child[:-1])


@pytest.mark.item(452, 463)
async def test_a_bundle_starts_a_new_run(bed: Bed, tmp_path: Path) -> None:
    """The open wait is opened again, the payment is not repeated, and the first run stays."""
    stage, run_id = await parked(bed)
    bundle = await bundle_of(bed.runtime, stage.runs, run_id)
    await stage.restart()
    state = read_bundle(in_file(tmp_path, bundle)).run
    new = await stage.runs.restore(Snapshot.from_run(run=state, name="import"))
    await stage.waits(new)
    await stage.runs.resume(new, "ok", "yes")
    ended = await stage.ended(new)

    assert ended.output == {
        "n": 1,
        "paid": "paid",
        "letter": ended.output["letter"],
        "in": {"ok": "yes"},
    }
    assert (await stage.runs.state(run_id)).status is RunStatus.WAITING
    effects = [
        record["effect"]["type"] for record in await stage.runs.ledger(new) if record["effect"]
    ]
    assert "tool_calls" not in effects


@pytest.mark.item(463)
async def test_a_run_of_the_embedded_driver_continues_on_hosts(bed: Bed, tmp_path: Path) -> None:
    """Its ledger must be an intact chain; otherwise it may have been changed."""
    stage = await staged(bed, single(T.ASK_USER, {"prompt": "?", "wait_key": "ok"}))
    spec = stage.flows.specs["flow"]
    for ledger, is_chain in (
        (HashChainedLedgerStore(InMemoryLedgerStore()), True),
        (InMemoryLedgerStore(), False),
    ):
        where: dict[str, Any] = {"run_store": InMemoryRunStore(), "ledger_store": ledger}
        runtime = WorkflowRuntime(**where)
        run_id = runtime.start(spec, vars={"n": 1})
        runtime.tick(spec, run_id)
        runtime.steer(run_id, "quick")
        path = in_file(tmp_path, export_run_history_bundle(run_id=run_id, **where))
        if not is_chain:
            with pytest.raises(BundleError, match="missing record hash"):
                read_bundle(path)
            continue
        new = await stage.runs.restore(Snapshot.from_run(run=read_bundle(path).run, name="x"))
        await stage.waits(new)
        await stage.runs.resume(new, "ok", "yes")
        assert (await stage.ended(new)).output == {"n": 1, "out": "yes"}


@pytest.mark.item(463)
async def test_ended_runs_can_be_exported(bed: Bed, tmp_path: Path) -> None:
    """Completed and cancelled ones, with branches. A cancel has no record."""
    nodes = {"fork": forking("l", "r"), "l": asking_for("l"), "r": asking_for("r"), "end": ending}
    stage = await staged(bed, WorkflowSpec("flow", "fork", nodes), LETTER)
    done = await stage.runs.start("letter", vars={"n": 1})
    await stage.ended(done)
    cancelled = await stage.runs.start("flow")
    await stage.waits(cancelled, 2)
    await stage.runs.resume(cancelled, "l", 1)
    await stage.runs.cancel(cancelled)
    await bed.ended(cancelled)

    for run_id, status in ((done, RunStatus.COMPLETED), (cancelled, RunStatus.CANCELLED)):
        bundle = await bundle_of(bed.runtime, stage.runs, run_id)
        assert read_bundle(in_file(tmp_path, bundle)).run.status is status


@pytest.mark.item(447, 463)
async def test_a_changed_bundle_is_refused_with_the_place(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed record, a cut, another state, another version, one too large, and a file that is no bundle."""
    stage, run_id = await parked(bed)
    path = in_file(tmp_path, await bundle_of(bed.runtime, stage.runs, run_id))
    text = path.read_text(encoding="utf-8")

    def refused(change: Callable[[Any], Any]) -> str:
        data = json.loads(text)
        in_file(tmp_path, change(data) or data)
        with pytest.raises(BundleError) as refusal:
            read_bundle(path)
        assert str(refusal.value).startswith(f"{path}: ")
        assert "xport" in refusal.value.remedy
        return f"{refusal.value.place}: {refusal.value.problem}".replace(run_id, "RUN")

    def items(data: Any) -> list[Any]:
        ledger_items: list[Any] = data["ledgers"][run_id]["items"]
        return ledger_items

    def shorter(data: Any) -> None:
        items(data).pop()
        data["ledgers"][run_id]["total"] -= 1

    child = json.loads(text)["subruns"][0]["run_id"]
    lies = {
        "ledgers.RUN.items[2]: record hash mismatch": lambda d: items(d)[2]["record"].update(
            node_id="x"
        ),
        "ledgers.RUN.items[1]: prev hash mismatch": lambda d: (
            items(d).pop(1) and d["ledgers"][run_id].update(total=len(items(d)))
        ),
        "ledgers.RUN: it has 1 of": lambda d: items(d).__delitem__(slice(1, None)),
        "ledgers.RUN: the records lead to running, the run is waiting": shorter,
        "run.vars: the records lead to another": lambda d: d["run"]["vars"].update(paid="more"),
        "run.waiting: the records lead to another": lambda d: d["run"]["waiting"].update(
            resume_to_node="pay"
        ),
        "run.current_node: the records": lambda d: d["run"].update(current_node="pay"),
        "subruns[0].vars: the records": lambda d: d["subruns"][0]["vars"].update(x=1),
        f"ledgers.{child}: there is no": lambda d: d["ledgers"].pop(child) and None,
        "ledgers.RUN.items[0]: it is a record of another": lambda d: items(d)[0]["record"].update(
            run_id="x"
        ),
        "run: KeyError": lambda d: d["run"].pop("vars") and None,
        "run: ValueError": lambda d: d["run"].update(status="x"),
        "ledgers.RUN.items: Input should be": lambda d: d["ledgers"][run_id].update(items=7),
        "version: it is 2": lambda d: d.update(version=2),
        "version: it is None": lambda _d: [1],
        "root_run_id: it is not": lambda d: d.update(root_run_id=child),
    }
    for message, change in lies.items():
        assert refused(change).startswith(message), message
    path.write_text(text[: len(text) // 2], encoding="utf-8")
    with pytest.raises(BundleError, match=r"run\.json: the file: it is no JSON"):
        read_bundle(path)
    path.write_text("[" * 200_000, encoding="utf-8")
    with pytest.raises(BundleError, match="it is no JSON"):
        read_bundle(path)
    monkeypatch.setattr(graph_bundle, "MOST_BYTES", 1_000)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BundleError, match=r"more than 1000 bytes.*--no-subruns"):
        read_bundle(path)


@pytest.mark.item(463)
async def test_a_run_that_keeps_writing_must_be_paused_for_an_export(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state and its records would be of different times."""
    gate, reads = asyncio.Queue[int](), itertools.count(1)

    async def handle(_run: RunState, _effect: Effect) -> EffectOutcome:
        return EffectOutcome.completed(await gate.get())

    again = asking(T.TOOL_CALLS, {}, after="work")
    spin = WorkflowSpec("flow", "work", {"work": again})
    stage = await staged(bed, spin, effect_handlers={T.TOOL_CALLS: handle})
    run_id = await stage.runs.start("flow")
    await bed.seen(run_id, K.GRAPH_STEP)
    real = stage.runs.ledger

    async def ledger(of: RunId) -> list[dict[str, Any]]:
        records = await real(of)
        gate.put_nowait(n := next(reads))
        await bed.seen(of, K.EFFECT_RESULT, times=n)
        return records

    monkeypatch.setattr(stage.runs, "ledger", ledger)
    with pytest.raises(RunBusyError, match="graphs pause"):
        await bundle_of(bed.runtime, stage.runs, run_id)
