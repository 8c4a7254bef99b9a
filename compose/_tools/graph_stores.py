"""Stores of embedded graphs at a path: a folder, or an SQLite file; and the bundle of one of their runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from actors._kernel.workflow.errors import NoSuchRunError
from actors._workflow.embedded.held_run import HeldRun
from actors._workflow.machine.recovery import record_from
from actors.errors import ContractError, Facts
from actors.workflow import InMemoryLedgerStore, InMemoryRunStore, export_run_history_bundle

_SQLITE: Final = (".db", ".sqlite", ".sqlite3")
_MAGIC: Final = b"SQLite format 3\0"


class NoGraphStoreError(Facts, ContractError):
    """A path has no stores of graphs."""

    text = "{path}: {problem}. Give the folder or the SQLite file of the stores"
    path: Path
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphStores:
    """The stores at a path.

    Attributes:
        runs: The store of runs.
        ledger: The store of their records.
        artifacts: The store of their artifacts.
    """

    runs: Any
    ledger: Any
    artifacts: Any


@contextmanager
def graph_stores(path: Path, *, create: bool = False) -> Iterator[GraphStores]:
    """Yield the stores at a path.

    Args:
        path: A folder, or an SQLite file.
        create: Make the stores if there is nothing. A path that ends with ``.db``, ``.sqlite`` or ``.sqlite3``
            becomes an SQLite file, and another path a folder.

    Raises:
        NoGraphStoreError: There are no stores at the path.
    """
    _check(path, create=create)
    try:
        if path.is_dir() or not (path.exists() or path.suffix in _SQLITE):
            from persistence import files  # noqa: PLC0415 - only one of the two is needed

            yield GraphStores(
                runs=files.JsonFileRunStore(path),
                ledger=files.JsonlLedgerStore(path),
                artifacts=files.FileArtifactStore(path),
            )
            return
        from persistence import sqlite  # noqa: PLC0415 - as above

        database = sqlite.SqliteDatabase(path)
        try:
            yield GraphStores(
                runs=sqlite.SqliteRunStore(database),
                ledger=sqlite.SqliteLedgerStore(database),
                artifacts=sqlite.SqliteArtifactStore(database),
            )
        finally:
            database.close()
    except OSError as exc:
        raise NoGraphStoreError(path, exc.strerror or str(exc)) from exc


def _check(path: Path, *, create: bool) -> None:
    """Raise NoGraphStoreError if the path has no stores. Nothing is written to it."""
    if path.is_dir():
        if not create and not any(path.glob("run_*.json")):
            raise NoGraphStoreError(path, "the folder has no runs of graphs")
    elif path.exists():
        # SQLite opens any file, and says only at the first statement that it is no database.
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise NoGraphStoreError(path, "it is no SQLite file")
    elif not create:
        raise NoGraphStoreError(path, "there is nothing")


def stored_bundle(stores: GraphStores, run_id: str, *, subruns: bool = True) -> dict[str, Any]:
    """Return the bundle of a run of these stores, and with `subruns` of the runs below it.

    Each run is read while no driver changes it. Its state includes the records that a driver wrote before it
    died, as the next driver reads them.

    Raises:
        NoSuchRunError: The store has no such run.
        StoreBusyError: A driver held a run for 30 s.
    """
    states, ledgers = InMemoryRunStore(), InMemoryLedgerStore()
    run_ids = [run_id]
    for current_id in run_ids:
        try:
            with stores.runs.lock(current_id):
                state = HeldRun(stores.runs, stores.ledger, current_id).state
                records = stores.ledger.list(current_id)
        except NoSuchRunError:
            if current_id == run_id:
                raise
            continue  # it was deleted meanwhile
        states.create_if_absent(state)
        for record in records:
            ledgers.append(record_from(record))
        if subruns:
            run_ids += [
                child.run_id for child in stores.runs.list_children(parent_run_id=current_id)
            ]
    return export_run_history_bundle(
        run_id=run_id,
        run_store=states,
        ledger_store=ledgers,
        artifact_store=stores.artifacts,
        include_subruns=subruns,
    )
