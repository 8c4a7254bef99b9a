"""Processes that drive the same runs."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from actors._kernel.workflow.errors import LedgerBrokenError, StoreBusyError
from actors.workflow import RunState
from persistence.sqlite import SqliteDatabase, SqliteRunStore
from tests.harness.slow import IS_SLOW
from tests.system.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

TRIES = 200 if IS_SLOW else 60


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.item(414)
@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_one_of_two_answering_processes_succeeds(tmp_path: Path, kind: str) -> None:
    """Many times: the other one gets the error that it was late, and the next node is called once."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.system.workflow.racing_graphs",
            kind,
            str(tmp_path),
            str(TRIES),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    outcomes = [json.loads(line) for line in done.stdout.splitlines()]

    assert outcomes == [[[0, 1], "x"]] * TRIES


@pytest.mark.item(442)
def test_a_locked_database_is_awaited(tmp_path: Path) -> None:
    """Until the lock is released. If that takes too long, an error is raised, and nothing is written."""
    path = tmp_path / "graphs.db"
    patient = SqliteRunStore(SqliteDatabase(path, busy_s=60))
    hasty_database = SqliteDatabase(path, busy_s=0.05)
    run = RunState.new(workflow_id="graph", entry_node="a", run_id="r1")
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("begin immediate")
    with pytest.raises(StoreBusyError, match=r"graphs\.db"):
        SqliteRunStore(hasty_database).save(run)
    assert patient.load("r1") is None

    saving = threading.Thread(target=patient.save, args=(run,))
    saving.start()
    saving.join(0.2)
    assert saving.is_alive()
    holder.execute("rollback")
    saving.join()

    assert patient.load("r1") == run
    holder.close()
    hasty_database.close()
    patient._database.close()


@pytest.mark.item(442)
def test_a_full_database_keeps_its_data(tmp_path: Path) -> None:
    """The error names the full disk; with free space it continues."""
    database = SqliteDatabase(tmp_path / "graphs.db")
    runs = SqliteRunStore(database)
    run = RunState.new(workflow_id="graph", entry_node="a", run_id="r1", vars={"x": 1})
    runs.save(run)
    pages = database.connection().execute("pragma page_count").fetchone()[0]
    database.connection().execute(f"pragma max_page_count = {pages}")
    run.vars["x"] = "x" * 1_000_000
    with pytest.raises(LedgerBrokenError, match="full"):
        runs.save(run)

    assert runs.load("r1").vars == {"x": 1}  # type: ignore[union-attr]
    database.connection().execute("pragma max_page_count = 1000000")
    runs.save(run)
    assert runs.load("r1") == run
    database.close()


def test_the_error_of_a_file_that_is_no_database_has_its_name(tmp_path: Path) -> None:
    """The error has its name."""
    path = tmp_path / "graphs.db"
    path.write_bytes(b"not a database, but long enough to be looked at" * 40)

    with pytest.raises(LedgerBrokenError, match=r"graphs\.db"):
        SqliteDatabase(path)
