"""A graph of effects or of pure steps, over our stores or the source's: a program of `graphs` and `peers`.

`python graph_steps.py ours|theirs sqlite|files FOLDER STEPS [RUNS THREADS shipped|synced]` prints steps/s.
"theirs" imports the source, and nothing of ours. "synced" makes the source's stores sync what ours sync:
SQLite each transaction, files each line and each replaced file.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
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
        attributes = [
            getattr(module, word)
            for module in self._modules
            for word in names
            if hasattr(module, word)
        ]
        return attributes[0]


def steps_per_s(
    whose: str,
    kind: str,
    folder: Path,
    count: int,
    *,
    runs: int = 1,
    threads: int = 1,
    pure: bool = False,
) -> float:
    """Return the steps in a second of so many runs, each of `count` steps: of `threads` runs at once."""
    words: Any = Words(whose, kind)

    plan_of, effect_of, outcome_of = words.StepPlan, words.Effect, words.EffectOutcome.completed
    tools = words.EffectType.TOOL_CALLS

    def work(run: Any, _ctx: Any) -> Any:
        run.vars["n"] += 1
        if run.vars["n"] > count:
            return plan_of("work", complete_output={"n": count})
        if pure:
            return plan_of("work", next_node="work")
        effect = effect_of(tools, PAYLOAD, result_key="out")
        return plan_of("work", effect=effect, next_node="work")

    def handle(*_facts: Any) -> Any:
        return outcome_of(PAYLOAD)

    stores = stores_of(kind, folder, words)
    runtime = words.WorkflowRuntime(
        run_store=stores[0], ledger_store=stores[1], effect_handlers={tools: handle}
    )
    spec = words.WorkflowSpec("bench", "work", {"work": work})

    def play(_number: int) -> None:
        run_id = runtime.start(workflow=spec, vars={"n": 0})
        state = runtime.tick(workflow=spec, run_id=run_id, max_steps=count + 1)
        assert state.output == {"n": count}, state

    if runs > 1:
        play(0)  # what is made once is not measured
    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        for _ in map(play, range(runs)) if threads == 1 else pool.map(play, range(runs)):
            pass
        return count * runs / (time.perf_counter() - began)


def sync_theirs() -> None:
    """Have the source's stores sync what ours sync."""
    sqlite: Any = importlib.import_module("abstractruntime.storage.sqlite").SqliteDatabase
    files: Any = importlib.import_module("abstractruntime").JsonlLedgerStore
    settings, append, replace = sqlite._apply_pragmas, files.append, Path.replace

    def fully(self: Any, connection: Any) -> None:
        settings(self, connection)
        connection.execute("pragma synchronous = full")

    def line(self: Any, record: Any) -> None:
        append(self, record)
        _synced(self._path(record.run_id))

    def whole(self: Path, target: Any) -> Path:
        _synced(self)
        done = replace(self, target)
        _synced(self.parent)
        return done

    sqlite._apply_pragmas, files.append = fully, line
    Path.replace = whole  # type: ignore[method-assign, assignment]


def _synced(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def main(whose: str, kind: str, folder: str, *sizes: str) -> None:
    """Print the steps in a second."""
    steps, runs, threads, durability = (*sizes, *("1", "1", "shipped")[len(sizes) - 1 :])
    if durability == "synced" and whose == "theirs":
        sync_theirs()
    rate = steps_per_s(whose, kind, Path(folder), int(steps), runs=int(runs), threads=int(threads))
    print(rate)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
