"""Statements of one step of an embedded graph on SQLite: the same on every machine."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from actors.kernel.workflow import run_state
from actors.kernel.workflow.durable import plain_copy
from actors.workflow import (
    EffectOutcome,
    EffectType,
    InMemoryLedgerStore,
    InMemoryRunStore,
    StepPlan,
    WorkflowRuntime,
    WorkflowSpec,
)
from actors.workflow.machine import deltas
from persistence.sqlite import SqliteDatabase, SqliteLedgerStore, SqliteRunStore
from tests.conformance.workflow.stores import effect_then

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from actors.workflow import Effect, RunState
    from actors.workflow.handlers import Handler

STEP = {"begin": 2, "insert": 5, "delete": 1, "commit": 2}
"""Of a step with an effect: its beginning is one transaction; its end and the checkpoint are the other.

An insert is a record, its number, or the run's row (an insert that updates); the deletion is that of what
branches wait for.
"""


def copies(monkeypatch: pytest.MonkeyPatch, handler: Handler) -> int:
    """Return how often the vars of a run are copied for a step whose effect this handler executes."""
    counted: Counter[str] = Counter()

    def copied(value: Any) -> Any:
        counted["vars"] += isinstance(value, dict) and "mark" in value
        return plain_copy(value)

    for module in (run_state, deltas):
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
    before = counted["vars"]
    runtime.tick(spec, run_id, max_steps=1)
    return counted["vars"] - before


def statements(folder: Path, steps: int) -> Counter[str]:
    """Return the statements of a tick of this many steps, by their first word."""
    seen: Counter[str] = Counter()
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
    database.connection().set_trace_callback(lambda text: seen.update([text.split()[0]]))
    assert runtime.tick(spec, run_id).output == "done"
    database.close()
    return seen


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
