"""Syncs of records and checkpoints: those that are left to a later write, and what readers see meanwhile."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.workflow.errors import LedgerBrokenError
from actors._workflow.embedded.held_run import HeldRun
from actors._workflow.machine import records
from actors.errors import EffectDidNotHappen
from actors.workflow import (
    Effect,
    EffectMode,
    EffectOutcome,
    EffectType,
    HashChainedLedgerStore,
    ObservableLedgerStore,
    OffloadingRunStore,
    ReconciledHandler,
    StepPlan,
    WorkflowSpec,
)
from persistence.files import JsonlLedgerStore
from tests.conformance.workflow.stores import Stores, effect_then, end_node
from tests.conformance.workflow.test_ledger_stores import record_of, steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from actors.workflow import RunState

T = EffectType


class Syncs:
    """The syncs of this process: of files and folders, and of transactions of a database."""

    def __init__(self, stores: Stores, patch: pytest.MonkeyPatch) -> None:
        self.count, self._level = 0, "full"
        if stores.kind == "sqlite":
            stores.database.connection().set_trace_callback(self._statement)
        real = os.fsync

        def fsync(descriptor: int) -> None:
            self.count += 1
            real(descriptor)

        patch.setattr(os, "fsync", fsync)

    def _statement(self, text: str) -> None:
        if text.startswith("pragma synchronous = "):
            self._level = text.rpartition(" ")[2]
        self.count += text == "commit" and self._level == "full"

    def of(self, work: Callable[[], object]) -> int:
        """Return the number of syncs that a function makes."""
        before = self.count
        work()
        return self.count - before


@pytest.fixture
def syncs(disk_stores: Stores, monkeypatch: pytest.MonkeyPatch) -> Syncs:
    """Count from now on."""
    return Syncs(disk_stores, monkeypatch)


@pytest.mark.item(398, 443)
def test_a_record_may_be_left_unsynced(disk_stores: Stores, syncs: Syncs) -> None:
    """Others see it at once. The next append syncs both, and so does `sync`."""
    ledger = disk_stores.ledger
    ledger.append(record_of("s0"))

    assert syncs.of(lambda: ledger.append_unsynced([record_of("s1")])) == 0
    assert steps(disk_stores.reopen().ledger.list("r1")) == ["s0", "s1"]
    assert syncs.of(lambda: ledger.append(record_of("s2"))) == 1
    assert syncs.of(lambda: ledger.append_unsynced([record_of("s3")])) == 0
    assert syncs.of(lambda: ledger.sync("r1")) == 1
    assert steps(disk_stores.reopen().ledger.list("r1")) == ["s0", "s1", "s2", "s3"]
    ledger.append_unsynced([])
    ledger.sync("nobody")


@pytest.mark.item(443)
@pytest.mark.parametrize(
    ("synced_count", "expected_steps"),
    [(0, ["s0"]), (1, ["s0"]), (2, None)],
    ids=["none", "before", "in it"],
)
def test_a_hole_behind_the_synced_records_is_cut_off(
    tmp_path: Path, synced_count: int, expected_steps: list[str] | None
) -> None:
    """A loss of power leaves NULs, and later blocks behind them. In synced records they are an error."""
    ledger = JsonlLedgerStore(tmp_path)
    ledger.append_many([record_of(f"s{n}") for n in range(3)])
    path = tmp_path / "ledger_r1.jsonl"
    first, second, third = path.read_bytes().splitlines(keepends=True)
    broken = first + second[:20] + bytes(50) + second[70:] + third
    path.write_bytes(broken)

    with pytest.raises(LedgerBrokenError, match="line 2"):
        ledger.list("r1")
    assert ledger.mend("r1", synced_count=synced_count) is (expected_steps is not None)

    if expected_steps is None:
        assert path.read_bytes() == broken
    else:
        assert steps(ledger.list("r1")) == expected_steps
        ledger.append(record_of("s9"))
        assert steps(ledger.list_after(run_id="r1", after=0)[0]) == [*expected_steps, "s9"]


def test_another_damage_is_not_cut_off(tmp_path: Path) -> None:
    """No loss of power leaves a line that is no JSON and has no NUL."""
    path = tmp_path / "ledger_r1.jsonl"
    path.write_text('{"step_id": "s0"}\n{"step\n{"step_id": "s2"}\n', encoding="utf-8")

    assert not JsonlLedgerStore(tmp_path).mend("r1", synced_count=0)
    assert path.read_text(encoding="utf-8").count("\n") == 3


ENDS: list[tuple[EffectMode, Any, int]] = [
    (EffectMode.IDEMPOTENT, None, 0),
    (EffectMode.AT_MOST_ONCE, None, 1),
    (EffectMode.IDEMPOTENT, ObservableLedgerStore, 1),
    (EffectMode.IDEMPOTENT, HashChainedLedgerStore, 1),
]


@pytest.mark.item(404, 415)
@pytest.mark.parametrize("end", ENDS)
def test_only_the_end_of_an_idempotent_effect_is_synced_with_the_next_start(
    disk_stores: Stores, syncs: Syncs, end: tuple[EffectMode, Any, int]
) -> None:
    """All else is synced at once. Subscribers hear of records, and heads name records, that stay."""
    mode, wrapper, more = end
    seen: list[tuple[int, list[str]]] = []
    ledger = disk_stores.ledger if wrapper is None else wrapper(disk_stores.ledger)

    def handler(run: RunState, _effect: Effect) -> EffectOutcome:
        statuses = [record["status"] for record in disk_stores.reopen().ledger.list(run.run_id)]
        seen.append((syncs.count, statuses))
        return EffectOutcome.completed("x")

    def asking(after: str) -> Any:
        effect = Effect(T.LLM_CALL, {}, "out", mode)
        return lambda run, _ctx: StepPlan(run.current_node, effect, after)

    spec = WorkflowSpec("g", "one", {"one": asking("two"), "two": asking("end"), "end": end_node})
    runtime = disk_stores.runtime(ledger_store=ledger, effect_handlers={T.LLM_CALL: handler})
    run_id = runtime.start(spec)
    before = syncs.count
    runtime.tick(spec, run_id)

    assert [statuses for _, statuses in seen] == [
        ["completed", "started"],
        ["completed", "started", "completed", "started"],
    ]
    assert [count - before for count, _ in seen] == [1, 1 + more + 1]


class Repeating:
    """A graph of equal steps, whose handler notes what this process and another one see of the run."""

    def __init__(self, stores: Stores, step_s: float) -> None:
        self.stores, self.step_s = stores, step_s
        self.seen: list[tuple[int, int]] = []
        self.calls = 0
        self.spec = WorkflowSpec("g", "work", {"work": self._work})

    def _work(self, run: RunState, _ctx: Any) -> StepPlan:
        n = run.vars["n"] = run.vars.get("n", 0) + 1
        if n > 6:
            return StepPlan("work", complete_output=n)
        return StepPlan("work", Effect(T.LLM_CALL, {}, "out"), "work")

    def handler(self, run: RunState, _effect: Effect) -> EffectOutcome:
        """Note what is seen."""
        self.calls += 1
        own, other = self.stores.runs.load(run.run_id), self.stores.reopen().runs.load(run.run_id)
        [stored] = self.stores.runs.list_runs(limit=9)
        assert stored.vars.get("n", 0) == own.vars.get("n", 0)
        self.seen.append((own.vars.get("n", 0), other.vars.get("n", 0)))
        self.stores.clock.advance(self.step_s)
        return EffectOutcome.completed("x")


@pytest.mark.item(391, 398, 442)
@pytest.mark.parametrize(
    ("step_s", "behind"),
    [(0.0, [0, 0, 0, 0, 0, 0]), (0.4, [0, 0, 0, 3, 3, 3]), (2.0, [0, 1, 2, 3, 4, 5])],
)
def test_a_checkpoint_is_written_each_second(
    disk_stores: Stores, step_s: float, behind: list[int]
) -> None:
    """This process sees each step, other processes see the last checkpoint that was written."""
    graph = Repeating(disk_stores, step_s)
    runtime = disk_stores.runtime(effect_handlers={T.LLM_CALL: graph.handler})
    run_id = runtime.start(graph.spec)

    assert runtime.tick(graph.spec, run_id).output == 7

    assert graph.seen == [*zip(range(6), behind, strict=True)]
    assert disk_stores.reopen().runs.load(run_id) == disk_stores.runs.load(run_id)
    assert disk_stores.runs.load(run_id).output == 7


@pytest.mark.item(391, 398, 441, 442)
def test_a_driver_that_dies_before_the_checkpoint_leaves_the_ledger(disk_stores: Stores) -> None:
    """Its process then sees what others see, too. The next driver repeats no recorded step."""
    graph = Repeating(disk_stores, 0.0)

    def dies(run: RunState, effect: Effect) -> EffectOutcome:
        if graph.calls == 4:
            raise KeyboardInterrupt
        return graph.handler(run, effect)

    runtime = disk_stores.runtime(effect_handlers={T.LLM_CALL: dies})
    run_id = runtime.start(graph.spec)
    with pytest.raises(KeyboardInterrupt):
        runtime.tick(graph.spec, run_id)

    for stores in (disk_stores, disk_stores.reopen()):
        assert stores.runs.load(run_id).vars.get("n", 0) == 0
    other = Repeating(disk_stores.reopen(), 0.0)
    state = other.stores.runtime(effect_handlers={T.LLM_CALL: other.handler}).tick(
        other.spec, run_id
    )
    assert (state.output, graph.calls, other.calls) == (7, 4, 2)
    assert disk_stores.runs.load(run_id).output == 7


@pytest.mark.item(401, 406)
def test_a_wait_is_written_at_once(disk_stores: Stores) -> None:
    """A branch that waits for an event is found by other processes while the other branch executes."""
    seen: list[list[str]] = []

    def handler(run: RunState, _effect: Effect) -> EffectOutcome:
        waiting = disk_stores.reopen().runs.list_event_waiters(wait_keys=["k"])
        seen.append([r.run_id for r in waiting])
        return EffectOutcome.completed("x")

    spec = WorkflowSpec(
        "g",
        "fork",
        {
            "fork": lambda _r, _c: StepPlan(
                "fork", next_node="end", parallel={"w": "wait", "d": "do"}
            ),
            "wait": effect_then(T.WAIT_EVENT, {"wait_key": "k"}),
            "do": effect_then(T.LLM_CALL, {}, after="again"),
            "again": effect_then(T.LLM_CALL, {}, key="more"),
            "end": end_node,
        },
    )
    runtime = disk_stores.runtime(effect_handlers={T.LLM_CALL: handler})
    run_id = runtime.start(spec)
    runtime.tick(spec, run_id)

    assert seen == [[run_id], [run_id]]


def test_a_store_that_offloads_writes_each_checkpoint(disk_stores: Stores) -> None:
    """Nodes get references in the place of large values, so these are stored at each step."""
    runs = OffloadingRunStore(disk_stores.runs, artifact_store=disk_stores.artifacts)
    graph = Repeating(disk_stores, 0.0)
    runtime = disk_stores.runtime(run_store=runs, effect_handlers={T.LLM_CALL: graph.handler})
    runtime.tick(graph.spec, runtime.start(graph.spec))

    assert [other for _, other in graph.seen] == [*range(6)]


@pytest.mark.item(391, 441, 443)
def test_what_a_dead_driver_left_unsynced_is_synced_before_the_checkpoint(
    disk_stores: Stores, syncs: Syncs
) -> None:
    """Else a loss of power could leave a checkpoint whose records are lost."""

    def dies(_run: RunState, _effect: Effect) -> EffectOutcome:
        raise KeyboardInterrupt

    nodes = {
        "first": lambda _r, _c: StepPlan("first", next_node="work"),
        "work": effect_then(T.LLM_CALL, {}),
        "end": end_node,
    }
    spec = WorkflowSpec("g", "first", nodes)
    dying = disk_stores.runtime(effect_handlers={T.LLM_CALL: dies})
    run_id = dying.start(spec)
    with pytest.raises(KeyboardInterrupt):
        dying.tick(spec, run_id)
    held_run = HeldRun(disk_stores.runs, disk_stores.ledger, run_id)

    assert syncs.of(held_run.save) == {"files": 1 + 2, "sqlite": 1}[disk_stores.kind]
    assert disk_stores.reopen().runs.load(run_id).current_node == "work"
    assert syncs.of(held_run.save) == 0


@pytest.mark.item(404, 415, 441)
def test_the_start_of_an_at_most_once_effect_is_synced_by_who_executes_it(
    disk_stores: Stores, syncs: Syncs
) -> None:
    """Its first driver may have died between the write and the sync."""
    seen: list[int] = []

    def happened(_run: RunState, _effect: Effect) -> EffectOutcome:
        raise EffectDidNotHappen("no")

    def handler(_run: RunState, _effect: Effect) -> EffectOutcome:
        seen.append(syncs.count)
        return EffectOutcome.completed("x")

    def dies(_run: RunState, _effect: Effect) -> EffectOutcome:
        raise KeyboardInterrupt

    effect = Effect(T.LLM_CALL, {}, "out", EffectMode.AT_MOST_ONCE)
    spec = WorkflowSpec(
        "g", "work", {"work": lambda _r, _c: StepPlan("work", effect, "end"), "end": end_node}
    )
    dying = disk_stores.runtime(effect_handlers={T.LLM_CALL: dies})
    run_id = dying.start(spec)
    with pytest.raises(KeyboardInterrupt):
        dying.tick(spec, run_id)
    handlers = {T.LLM_CALL: ReconciledHandler(handler, happened)}
    before = syncs.count

    assert disk_stores.runtime(effect_handlers=handlers).tick(spec, run_id).output["out"] == "x"
    assert seen == [before + 1]


@pytest.mark.item(398, 442, 460)
def test_a_change_that_the_ledger_does_not_give_back_is_written_at_once(
    disk_stores: Stores,
) -> None:
    """With the next step: records of a pause, of limits and of messages have no delta."""
    graph = Repeating(disk_stores, 0.0)

    def handler(run: RunState, effect: Effect) -> EffectOutcome:
        if graph.calls == 1:
            runtime.pause_run(run.run_id, reason="r")
            runtime.resume_run(run.run_id)
        return graph.handler(run, effect)

    runtime = disk_stores.runtime(effect_handlers={T.LLM_CALL: handler})
    runtime.tick(graph.spec, runtime.start(graph.spec))

    assert [other for _, other in graph.seen] == [0, 0, 0, 3, 3, 3]


@pytest.mark.item(391, 392, 442)
@pytest.mark.parametrize("run_id", [None, "r1"])
def test_a_start_is_one_transaction_where_the_stores_have_some(
    disk_stores: Stores, syncs: Syncs, run_id: str | None
) -> None:
    """No process finds a run without its first record. An observed ledger has one of its own."""
    spec = WorkflowSpec("g", "end", {"end": end_node})
    wrapped = ObservableLedgerStore(disk_stores.ledger)
    runtime = disk_stores.runtime()
    seen: list[str] = []
    wrapped.subscribe(lambda record: seen.append(record["run_id"]))

    count = syncs.of(lambda: runtime.start(spec, run_id=run_id))
    runtime.start(spec, run_id="r1")
    runtime.start(spec, run_id="r1")
    other = disk_stores.runtime(ledger_store=wrapped)
    observed = syncs.of(lambda: other.start(spec, run_id="r2"))

    each = {"files": (2 + 2, 4), "sqlite": (1, 2)}[disk_stores.kind]
    assert (count, observed, seen) == (*each, ["r2"])
    assert len(disk_stores.reopen().ledger.list("r1")) == 1


@pytest.mark.item(443)
def test_a_save_syncs_the_records_before_it(disk_stores: Stores, syncs: Syncs) -> None:
    """Also if it has no record of its own."""
    spec = WorkflowSpec("g", "end", {"end": end_node})
    run_id = disk_stores.runtime().start(spec)
    held_run = HeldRun(disk_stores.runs, disk_stores.ledger, run_id)
    held_run.take(records.failed(held_run.state, "x", at="2030-01-01T00:00:00+00:00"))

    assert syncs.of(lambda: held_run.flush(synced=False)) == 0
    assert syncs.of(held_run.save) == {"files": 1 + 2, "sqlite": 1}[disk_stores.kind]


@pytest.mark.item(443)
def test_a_ledger_may_be_a_link(tmp_path: Path) -> None:
    """Its target is appended to."""
    (tmp_path / "elsewhere").touch()
    (tmp_path / "ledger_r1.jsonl").symlink_to(tmp_path / "elsewhere")
    JsonlLedgerStore(tmp_path).append(record_of("s0"))

    assert steps(JsonlLedgerStore(tmp_path).list("r1")) == ["s0"]
    assert (tmp_path / "elsewhere").read_bytes().endswith(b"\n")
