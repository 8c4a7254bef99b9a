"""Delivery of an event to very many runs that wait for it, and to runs that start to wait meanwhile."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from actors.workflow import EffectType, RunState, RunStatus, WaitReason, WaitState
from tests.conformance.workflow.stores import Stores, at_once, one_effect
from tests.harness import slow

if TYPE_CHECKING:
    from pathlib import Path

LISTENER = one_effect(EffectType.WAIT_EVENT, {"name": "go", "scope": "global"}, name="listener")
EMITTER = one_effect(EffectType.EMIT_EVENT, {"name": "go", "scope": "global"}, name="emitter")


@pytest.mark.item(420, 458)
def test_one_event_wakes_ten_thousand_listeners(stores: Stores) -> None:
    """Each once, by one effect; on disk as many with `CALLBOARD_TEST_SLOW`, else fewer."""
    many = 10_000 if stores.kind == "memory" or slow.IS_SLOW else 200
    wait = WaitState(
        WaitReason.EVENT, wait_key="evt:global:global:go", resume_to_node="end", result_key="out"
    )
    for number in range(many):
        run = RunState.new(workflow_id="listener", entry_node="work", run_id=f"l{number}")
        run.status, run.waiting = RunStatus.WAITING, wait
        stores.runs.save(run)
    runtime = stores.runtime(LISTENER, EMITTER)

    state = runtime.tick(EMITTER, runtime.start(EMITTER))

    delivery = state.output["out"]
    assert delivery["delivered"] == many
    assert len({*delivery["resumed"]}) == many
    runs = stores.reopen().runs
    woken = runs.list_runs(status=RunStatus.RUNNING, limit=many + 1)
    assert len(woken) == many
    assert {listener.vars["out"]["name"] for listener in woken} == {"go"}
    assert runs.list_runs(status=RunStatus.WAITING) == []
    again = runtime.tick(EMITTER, runtime.start(EMITTER))
    assert again.output["out"]["delivered"] == 0


@pytest.mark.item(420, 458)
def test_a_concurrent_listener_gets_the_event_or_the_next_one(stores: Stores) -> None:
    """Runs start to wait while events are emitted: none gets two, and one more event reaches the rest."""
    delivered: list[str] = []
    runtime = stores.runtime(LISTENER, EMITTER)
    ids = [f"l{number}" for number in range(24)]

    def park() -> None:
        for run_id in ids:
            runtime.start(LISTENER, run_id=run_id)
            runtime.tick(LISTENER, run_id)

    def emit() -> None:
        for _ in range(8):
            state = runtime.tick(EMITTER, runtime.start(EMITTER))
            delivered.extend(state.output["out"]["resumed"])

    at_once([park, emit])
    emit()

    assert sorted(delivered) == sorted(ids)
    for run_id in ids:
        state = runtime.tick(LISTENER, run_id)
        assert state.status is RunStatus.COMPLETED
        ends: list[Any] = [
            record
            for record in runtime.get_ledger(run_id)
            if (record["effect"] or {}).get("type") == "resume"
        ]
        assert len(ends) == 1


@pytest.mark.item(458)
@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_an_event_costs_the_same_writes_for_each_listener(kind: str, tmp_path: Path) -> None:
    """However many there are: a write of the record, and one of the run, or both in one transaction."""
    counts = []
    for many in (0, 10, 30):
        points: list[str] = []
        folder = tmp_path / str(many)
        folder.mkdir()
        stores = Stores(kind, folder)
        runtime = stores.runtime(LISTENER, EMITTER)
        for number in range(many):
            runtime.tick(LISTENER, runtime.start(LISTENER, run_id=f"l{number}"))
        counting = stores.reopen(points.append)
        runtime = counting.runtime(LISTENER, EMITTER)
        state = runtime.tick(EMITTER, runtime.start(EMITTER))
        assert state.output["out"]["delivered"] == many
        counts.append(Counter(points))
        counting.close()
        stores.close()

    none, ten, thirty = counts
    each = {point: (thirty[point] - none[point]) / 30 for point in thirty}
    assert {point: (ten[point] - none[point]) / 10 for point in thirty} == each
    written = {"files": ("line synced", "file renamed"), "sqlite": ("transaction committed",)}
    assert [each[point] for point in written[kind]] == [1] * len(written[kind])
