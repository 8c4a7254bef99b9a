"""Statements of one step of an embedded graph on SQLite, and the work of a waiting run on a host.

They are the same on every machine.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import AgentId
from actors._kernel.workflow import run_state
from actors._kernel.workflow.durable import plain_copy
from actors._workflow.hosted.graph_run import ENTRIES_KEPT
from actors._workflow.hosted.runs import FlowRuns
from actors._workflow.machine import records
from actors.workflow import (
    EffectOutcome,
    EffectType,
    InMemoryLedgerStore,
    InMemoryRunStore,
    StepPlan,
    WorkflowRuntime,
    WorkflowSpec,
)
from persistence.sqlite import SqliteDatabase, SqliteLedgerStore, SqliteRunStore
from tests.benchmarks.flows import flows
from tests.benchmarks.lone import Lone
from tests.benchmarks.outside import Servers
from tests.conformance.workflow.stores import effect_then

if TYPE_CHECKING:
    from pathlib import Path

    from actors._kernel.runtime.ids import RunId
    from actors._workflow.handlers import Handler
    from actors.workflow import Effect, RunState
    from tests.benchmarks.workloads import Stage

STEP = {"pragma": 2, "begin": 2, "insert": 4, "commit": 2}
"""Of a step with an effect: its start is one transaction, which is not synced; its end is the other.

An insert is a record or its number. The settings turn the syncs off and on.
"""


def copies(monkeypatch: pytest.MonkeyPatch, handler: Handler) -> int:
    """Return how often the vars of a run are copied for a step whose effect this handler executes."""
    counts: Counter[str] = Counter()

    def copied(value: Any) -> Any:
        counts["vars"] += isinstance(value, dict) and "mark" in value
        return plain_copy(value)

    for module in (run_state, records):
        monkeypatch.setattr(module, "plain_copy", copied)
    runtime = WorkflowRuntime(
        run_store=InMemoryRunStore(),
        ledger_store=InMemoryLedgerStore(),
        effect_handlers={EffectType.LLM_CALL: handler},
    )
    nodes: dict[str, Any] = {
        "one": effect_then(EffectType.LLM_CALL, {}, after="two"),
        "two": effect_then(EffectType.LLM_CALL, {}, after="end"),
        "end": lambda run, _ctx: StepPlan(run.current_node, complete_output="done"),
    }
    spec = WorkflowSpec("graph", "one", nodes)
    run_id = runtime.start(spec, vars={"mark": 1})
    runtime.tick(spec, run_id, max_steps=1)
    before = counts["vars"]
    runtime.tick(spec, run_id, max_steps=1)
    return counts["vars"] - before


def statements(folder: Path, steps: int) -> Counter[str]:
    """Return the statements of a tick of this many steps, by their first word."""
    counts_by_word: Counter[str] = Counter()
    folder.mkdir()
    database = SqliteDatabase(folder / "graphs.db")
    runtime = WorkflowRuntime(
        run_store=SqliteRunStore(database),
        ledger_store=SqliteLedgerStore(database),
        effect_handlers={EffectType.LLM_CALL: lambda _run, _effect: EffectOutcome.completed("x")},
    )
    nodes = {str(n): effect_then(EffectType.LLM_CALL, {}, after=str(n + 1)) for n in range(steps)}
    nodes[str(steps)] = lambda run, _ctx: StepPlan(run.current_node, complete_output="done")
    spec = WorkflowSpec("graph", "0", nodes)
    run_id = runtime.start(spec)
    database.connection().set_trace_callback(lambda text: counts_by_word.update([text.split()[0]]))
    assert runtime.tick(spec, run_id).output == "done"
    database.close()
    return counts_by_word


def test_a_step_on_sqlite_is_two_transactions(tmp_path: Path) -> None:
    """With this many statements."""
    few, many = statements(tmp_path / "few", 2), statements(tmp_path / "many", 12)

    assert {name: count / 10 for name, count in (many - few).items()} == STEP


def test_vars_are_copied_for_a_handler_that_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, however often it does. For a handler that does not, only the node has a copy."""

    def reads(run: RunState, _effect: Effect) -> EffectOutcome:
        run.vars["own"] = [run.vars["mark"]]
        assert run.vars["own"] == [1]
        return EffectOutcome.completed("x")

    unread = copies(monkeypatch, lambda _run, _effect: EffectOutcome.completed("x"))

    assert copies(monkeypatch, reads) == unread + 1


APP = "waiting"
PARK = {"rows": 12, "groups": 1, "commits": 1, "statements": 4}
"""Of a run that is started and comes to wait for a person, until no task and no object of it is left."""
RESUME = {"rows": 9, "groups": 1, "commits": 1, "statements": 6}
"""Of its answer, until its end."""


class Waiting:
    """Runs of a host that wait for a person."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._runs = stage, FlowRuns(stage.runtime, APP)
        self._parked: list[RunId] = []

    async def park(self) -> None:
        """Start a run, and return when it is rows only."""
        self._parked.append(await self._runs.start("ask", vars={"n": 0}))
        await self._stage.rests()

    async def resume(self) -> None:
        """Answer a run that waits, and return when it has ended."""
        run_id = self._parked.pop()
        ended = self._stage.runtime._host.worker.completions.future_of(run_id)
        await self._runs.resume(run_id, "ok", {"response": "yes"})
        await ended


def objects() -> int:
    """Return how many objects of this product's classes there are, except ids, whose caches are bounded."""
    gc.collect()
    ours = ("actors.", "persistence.")
    kinds = (type(obj) for obj in gc.get_objects())
    return sum(kind.__module__.startswith(ours) and kind is not AgentId for kind in kinds)


async def test_a_waiting_run_costs_rows_only(postgres_dsn: str) -> None:
    """It has no task and no object in its host, and its park and its answer write this much."""
    async with Lone.on(Servers(postgres_dsn, ""), suspend_after=0.0) as (lone, stage):
        await flows(APP).register(stage.runtime)
        waiting = Waiting(stage)
        parked = await lone.each(waiting.park)
        tasks, before = len(asyncio.all_tasks()), objects()
        for _ in range(30):
            await waiting.park()
        more = objects() - before
        resumed = await lone.each(waiting.resume)

        assert len(asyncio.all_tasks()) <= tasks
        assert more < 15, more
        for figures, bounds in ((parked, PARK), (resumed, RESUME)):
            assert not {name: n for name, n in bounds.items() if round(figures[name]) > n}, figures


@pytest.mark.costly
async def test_a_long_run_loads_no_more_than_a_generation(postgres_dsn: str) -> None:
    """However many steps it has made, a bounded number of entries is read when it goes on."""
    async with Lone.on(Servers(postgres_dsn, ""), suspend_after=0.0) as (_, stage):
        await flows(APP).register(stage.runtime)
        loaded = []
        for steps in (200, 12_000):
            runs = FlowRuns(stage.runtime, APP)
            run_id = await runs.start("long", vars={"n": 0, "steps": steps})
            await stage.rests()
            [loaded_run] = await stage.store.reads.load([run_id])
            loaded.append((len(loaded_run.entries), loaded_run.row.last_seq + 1))
            await runs.resume(run_id, "ok", {"response": "yes"})
            await stage.runtime.result(run_id)
        [(few, whole), (many, all_)] = loaded

        assert few == whole
        assert many < 2 * ENTRIES_KEPT < all_
