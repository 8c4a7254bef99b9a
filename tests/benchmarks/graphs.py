"""Steps of embedded graphs, against plain writes of the same records, and against the source's own runtime.

An effect's step is two records and a checkpoint. Its floor on SQLite is one transaction of two inserts and an
update of a row, of the same texts, on the same settings; on files two synced appends and a replaced file. The
floor of pure steps is a loop that calls the same node; a second one gives each call its own copy of the run.
"""

from __future__ import annotations

import copy
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from actors.workflow import (
    InMemoryLedgerStore,
    InMemoryRunStore,
    RunState,
    RuntimeConfig,
    StepPlan,
    WorkflowRuntime,
    WorkflowSpec,
    ensure_namespaces,
)
from persistence.sqlite import SqliteDatabase, SqliteLedgerStore, SqliteRunStore
from tests.benchmarks.bench import report
from tests.benchmarks.graph_steps import steps_per_s
from tests.compat.abstractruntime.archive import UnfetchedError, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS: Final = 2_000
ROOT: Final = Path(__file__).parents[2]
SQL_INSERT: Final = "insert into ledger (run_id, seq, record_json) values (?, ?, ?)"
SQL_UPDATE: Final = "update runs set state_json = ?, updated_at = ? where run_id = ?"


async def run(*, scale: float = 1.0) -> None:
    """Print a line for each store."""
    count = max(20, round(STEPS * scale))
    with tempfile.TemporaryDirectory(prefix="callboard-graphs-") as name:
        folder = Path(name)
        source = _source(folder)
        floors: dict[str, Callable[[Path, int], float]] = {"sqlite": _rows, "files": _lines}
        for kind, floor in floors.items():
            store_folder = folder / kind
            for whose in ("warm", "ours", "floor"):
                (store_folder / whose).mkdir(parents=True)
            steps_per_s("ours", kind, store_folder / "warm", 20)
            floor_per_s = floor(store_folder / "floor", count)
            rate = steps_per_s("ours", kind, store_folder / "ours", count)
            figures: dict[str, Any] = {"floor_per_s": round(floor_per_s)}
            figures["ratio"] = round(rate / floor_per_s, 3)
            if source is not None:
                peer = _theirs(source, kind, store_folder / "theirs", count)
                figures |= {"peer_per_s": round(peer), "of_peer": round(rate / peer, 2)}
            report(benchmark="graphs", store=kind, steps_per_s=round(rate), **figures)
        _pure(count)


def _pure(count: int) -> None:
    """Report pure steps beside a loop over the same node."""

    def work(run: RunState, _ctx: Any) -> StepPlan:
        run.vars["n"] += 1
        if run.vars["n"] > count:
            return StepPlan("work", complete_output={"n": count})
        return StepPlan("work", next_node="work")

    rate = steps_per_s("ours", "memory", Path(), count, pure=True)
    state = RunState.new(workflow_id="bench", entry_node="work", vars={"n": 0})
    began = time.perf_counter()
    while work(state, None).complete_output is None:
        pass
    floor_per_s = count / (time.perf_counter() - began)
    state.vars = ensure_namespaces({"n": 0, "_limits": RuntimeConfig().to_limits_dict()})
    began = time.perf_counter()
    while work(state, None).complete_output is None:
        state = copy.deepcopy(state)
    copies_per_s = count / (time.perf_counter() - began)
    report(
        benchmark="graphs",
        store="pure steps in memory",
        steps_per_s=round(rate),
        floor_per_s=round(floor_per_s),
        ratio=round(rate / floor_per_s, 3),
        floor_of_copies_per_s=round(copies_per_s),
        of_copies=round(rate / copies_per_s, 3),
    )


def _texts() -> tuple[str, str]:
    """Return a record and a state of such a run, as texts."""
    runs, ledger = InMemoryRunStore(), InMemoryLedgerStore()
    runtime = WorkflowRuntime(run_store=runs, ledger_store=ledger)
    spec = WorkflowSpec("bench", "work", {"work": lambda _r, _c: StepPlan("work", None, "work")})
    run_id = runtime.start(spec, vars={"n": 0, "out": {"text": "x" * 200}})
    runtime.tick(spec, run_id, max_steps=1)
    record = ledger.list(run_id)[-1] | {"result": {"text": "x" * 200}}
    return json.dumps(record), json.dumps(runtime.get_state(run_id).to_dict())


def _rows(folder: Path, count: int) -> float:
    """Return transactions of two inserts and an update in a second."""
    database = SqliteDatabase(folder / "floor.db")
    SqliteLedgerStore(database)
    state = RunState.new(workflow_id="bench", entry_node="work", run_id="floor")
    SqliteRunStore(database).save(state)
    record, row = _texts()
    connection: sqlite3.Connection = database.connection()
    began = time.perf_counter()
    for step in range(count):
        connection.execute("begin immediate")
        connection.execute(SQL_INSERT, ("floor", 2 * step, record))
        connection.execute(SQL_INSERT, ("floor", 2 * step + 1, record))
        connection.execute(SQL_UPDATE, (row, str(step), "floor"))
        connection.execute("commit")
    took_s = time.perf_counter() - began
    database.close()
    return count / took_s


def _lines(folder: Path, count: int) -> float:
    """Return the steps in a second of a program that syncs two lines and replaces a file."""
    record, row = _texts()
    ledger, state, new = folder / "ledger", folder / "state", folder / "new"
    began = time.perf_counter()
    for _ in range(count):
        for _ in range(2):
            _synced(ledger, f"{record}\n", os.O_APPEND)
        _synced(new, row, os.O_TRUNC)
        new.replace(state)
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return count / (time.perf_counter() - began)


def _synced(path: Path, text: str, how: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | how)
    os.write(file, text.encode())
    os.fsync(file)
    os.close(file)


def _source(folder: Path) -> Path | None:
    try:
        return unpacked(folder)
    except UnfetchedError as exc:
        report(benchmark="graphs", floor="none of a peer", why=str(exc))
        return None


def _theirs(source: Path, kind: str, folder: Path, count: int) -> float:
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.graph_steps", "theirs", kind, folder, str(count)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{source / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)
