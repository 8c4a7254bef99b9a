"""One graph of effects or of pure steps, over our stores or the source's: a program that `graphs` starts.

`python -m tests.benchmarks.graph_steps OURS|THEIRS KIND FOLDER STEPS` prints steps per second.
THEIRS imports the source from PYTHONPATH, and nothing of ours.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any

PAYLOAD = {"text": "x" * 200}


def stores_of(kind: str, folder: Path, words: Any) -> tuple[Any, Any]:
    """Return a run store and a ledger."""
    if kind == "sqlite":
        database = words.SqliteDatabase(folder / "graphs.db")
        return words.SqliteRunStore(database), words.SqliteLedgerStore(database)
    if kind == "files":
        return words.JsonFileRunStore(folder), words.JsonlLedgerStore(folder)
    return words.InMemoryRunStore(), words.InMemoryLedgerStore()


class Words:
    """The names of graphs and of stores, of ours or of the source."""

    def __init__(self, whose: str, kind: str) -> None:
        stores = {"sqlite": "persistence.sqlite", "files": "persistence.files"}
        names: tuple[str, ...] = ("actors.workflow", stores.get(kind, "actors.workflow"))
        if whose == "theirs":
            names = (
                "abstractruntime",
                "abstractruntime.core.models",
                "abstractruntime.core.runtime",
            )
        self._modules = [importlib.import_module(name) for name in names]

    def __getattr__(self, name: str) -> Any:
        names = (name, "Runtime") if name == "WorkflowRuntime" else (name,)
        found = [
            getattr(one, word) for one in self._modules for word in names if hasattr(one, word)
        ]
        return found[0]


def steps_per_s(whose: str, kind: str, folder: Path, count: int, *, pure: bool = False) -> float:
    """Return the steps of one run in a second."""
    words: Any = Words(whose, kind)

    plan_of, effect_of, outcome_of = words.StepPlan, words.Effect, words.EffectOutcome.completed
    tools = words.EffectType.TOOL_CALLS

    def work(run: Any, _ctx: Any) -> Any:
        run.vars["n"] += 1
        if run.vars["n"] == count:
            return plan_of("work", complete_output={"n": count})
        if pure:
            return plan_of("work", next_node="work")
        effect = effect_of(tools, PAYLOAD, result_key="out")
        return plan_of("work", effect=effect, next_node="work")

    def handle(*_facts: Any) -> Any:
        return outcome_of(PAYLOAD)

    runs, ledger = stores_of(kind, folder, words)
    runtime = words.WorkflowRuntime(
        run_store=runs, ledger_store=ledger, effect_handlers={tools: handle}
    )
    spec = words.WorkflowSpec("bench", "work", {"work": work})
    run_id = runtime.start(workflow=spec, vars={"n": 0})
    began = time.perf_counter()
    state = runtime.tick(workflow=spec, run_id=run_id, max_steps=count + 1)
    took_s = time.perf_counter() - began
    assert state.output == {"n": count}, state
    return count / took_s


if __name__ == "__main__":
    whose, kind, folder, steps = sys.argv[1:]
    print(steps_per_s(whose, kind, Path(folder), int(steps)))  # noqa: T201
