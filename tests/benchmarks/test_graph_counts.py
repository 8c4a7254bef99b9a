"""Statements of one step of an embedded graph on SQLite: the same on every machine."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from actors.workflow import EffectOutcome, EffectType, StepPlan, WorkflowRuntime, WorkflowSpec
from persistence.sqlite import SqliteDatabase, SqliteLedgerStore, SqliteRunStore
from tests.conformance.workflow.stores import effect_then

if TYPE_CHECKING:
    from pathlib import Path

STEP = {"begin": 2, "insert": 5, "delete": 1, "commit": 2}
"""Of a step with an effect: its beginning is one transaction; its end and the checkpoint are the other.

An insert is a record, its number, or the run's row (an insert that updates); the deletion is that of what
branches wait for.
"""


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
