"""The bundle of a run of a flow: write it from the rows of a store, and read and check it.

Its format is that of embedded graphs, which `actors.workflow.export_run_history_bundle` writes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from pydantic import BaseModel, ValidationError

from actors._kernel.runtime.ids import RunId
from actors._kernel.stores.runs import RunFilter
from actors._kernel.workflow.errors import GraphError, NoSuchRunError
from actors._kernel.workflow.run_state import RunState
from actors._kernel.workflow.step_record import verify_ledger_chain
from actors._runtime import Runtime
from actors._workflow.machine.records import CONTROL, INBOX
from actors._workflow.machine.recovery import record_from
from actors._workflow.machine.variables import LIMITS, RECORDS, RUNTIME, namespace
from actors.errors import ConflictError, ContractError, Facts
from actors.workflow import (
    RUN_HISTORY_BUNDLE_VERSION_V1,
    FlowRuns,
    InMemoryLedgerStore,
    InMemoryRunStore,
    WorkflowSpec,
    export_run_history_bundle,
    replay_run_history,
)

MOST_BYTES: Final = 64 * 1024 * 1024
"""Greatest size of a file that is read, in bytes."""
_NAMES: Final = (
    "workflow_id",
    "session_id",
    "actor_id",
    "parent_run_id",
    "current_node",
    "created_at",
    "vars",
)
_OPEN: Final = ("waiting", "fork")
"""Facts that are checked only for an open run, because a cancel changes them without a record."""
_NOTED: Final = (CONTROL, INBOX, RECORDS)
_TRIES: Final = 10
_PAGE: Final = 500


class BundleError(Facts, ContractError):
    """A file is not a complete bundle, or was changed after the export."""

    text = "{file}: {place}: {problem}. {remedy}"
    file: Path
    place: str
    problem: str
    remedy: str = "Export the run again"


class RunBusyError(Facts, ConflictError):
    """A run writes faster than it can be read."""

    text = "run {run_id} writes while it is read. Pause it: callboard graphs pause {run_id}"
    run_id: str


class _Item(BaseModel):
    record: dict[str, Any]


class _Ledger(BaseModel):
    run_id: str
    total: int
    items: list[_Item]


class _Bundle(BaseModel):
    root_run_id: str
    run: dict[str, Any]
    subruns: list[dict[str, Any]]
    ledgers: dict[str, _Ledger]


class CheckedBundle(NamedTuple):
    """A checked bundle: its run, its numbers of runs and records, and the last hash of its run's ledger.

    `head` is None if the ledgers are no chains.
    """

    run: RunState
    runs: int
    records: int
    head: str | None


async def bundle_of(
    runtime: Runtime, runs: FlowRuns, run_id: RunId, *, subruns: bool = True
) -> dict[str, Any]:
    """Return the bundle of a run, and with `subruns` of the runs below it.

    Raises:
        NoSuchRunError: The store has no such run, or it was swept.
        RunBusyError: The run wrote during each of 10 reads.
    """
    states, ledgers = InMemoryRunStore(), InMemoryLedgerStore()
    run_ids = [run_id]
    for current_id in run_ids:
        try:
            state, records = await _read_unchanged(runtime, runs, current_id)
        except NoSuchRunError:
            if current_id == run_id:
                raise
            continue  # a sub-graph's run was swept
        states.create_if_absent(state)
        for record in records:
            ledgers.append(record_from(record))
        if subruns:
            run_ids += [child async for child in _children(runtime, runs, current_id)]
    return export_run_history_bundle(
        run_id=run_id, run_store=states, ledger_store=ledgers, include_subruns=subruns
    )


async def _read_unchanged(
    runtime: Runtime, runs: FlowRuns, run_id: RunId
) -> tuple[RunState, list[dict[str, Any]]]:
    """Return a run's state and its records, between whose reads the run wrote nothing."""
    for _ in range(_TRIES):
        before = await runtime.store.reads.run(run_id)
        state, records = await runs.state(run_id), await runs.ledger(run_id)
        after = await runtime.store.reads.run(run_id)
        if before is not None and after is not None and before.last_seq == after.last_seq:
            return state, records
    raise RunBusyError(run_id)


async def _children(runtime: Runtime, runs: FlowRuns, run_id: RunId) -> AsyncIterator[RunId]:
    last_id: RunId | None = None
    while True:
        among = RunFilter(parent=run_id, type=runs.app, tenant=runs.tenant, after=last_id)
        rows = await runtime.store.lists.runs(among=among, limit=_PAGE)
        for row in rows:
            yield row.run_id
        if len(rows) < _PAGE:
            return
        last_id = rows[-1].run_id


def load_bundle(path: Path) -> dict[str, Any]:
    """Return the data of a file with a bundle of this version. Its runs and records are not checked.

    Raises:
        BundleError: The file is too large, not JSON, of another version, or a part is missing.
        ContractError: The file cannot be read.
    """
    with _bundle_errors(path):
        if path.stat().st_size > MOST_BYTES:
            text = f"it has more than {MOST_BYTES} bytes"
            raise BundleError(path, "the file", text, "Export it with --no-subruns")
        data = json.loads(path.read_text(encoding="utf-8"))
        version = data.get("version") if isinstance(data, dict) else None
        if version != RUN_HISTORY_BUNDLE_VERSION_V1:
            problem = f"it is {version!r}, and this release reads {RUN_HISTORY_BUNDLE_VERSION_V1}"
            raise GraphError("version", problem)
        _Bundle.model_validate(data)
        for n, state in enumerate(runs_of(data)):
            with _run_errors(n):
                RunState.from_dict(state)
        return cast("dict[str, Any]", data)


def check_bundle(path: Path, data: dict[str, Any], *, needs_chain: bool = True) -> CheckedBundle:
    """Check the data of `load_bundle`, and return its run.

    The chains of hashes must be complete, and the records of each run must lead to the state in the file.

    Args:
        path: The file, for errors.
        data: Its data.
        needs_chain: If False, a ledger whose records all have no hash is accepted, too.

    Raises:
        BundleError: The bundle is incomplete or was changed. Names the place.
    """
    with _bundle_errors(path):
        bundle = _Bundle.model_validate(data)
        for n, state in enumerate(runs_of(data)):
            with _run_errors(n) as position:
                _check_run(position, data, state, bundle.ledgers, needs_chain=needs_chain)
        if bundle.root_run_id != bundle.run["run_id"]:
            raise GraphError("root_run_id", "it is not the id of the run")
        records = sum(len(ledger.items) for ledger in bundle.ledgers.values())
        head = bundle.ledgers[bundle.root_run_id].items[-1].record.get("record_hash")
        return CheckedBundle(RunState.from_dict(bundle.run), len(runs_of(data)), records, head)


def read_bundle(path: Path) -> CheckedBundle:
    """Read and check a file with a bundle whose ledgers are chains, and return its run.

    Raises:
        BundleError: The file is not a bundle of this version, is incomplete, or was changed.
        ContractError: The file cannot be read.
    """
    return check_bundle(path, load_bundle(path))


def runs_of(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the states of a bundle's runs, that of its own run first."""
    return [data["run"], *data["subruns"]]


def chain_of(data: dict[str, Any], run_id: str) -> tuple[str, str | None]:
    """Return ``none``, ``ok`` or ``broken`` for the chain of a run's ledger, and the last hash."""
    items = data["ledgers"].get(run_id, {}).get("items", ())
    records = [item["record"] for item in items]
    head = records[-1].get("record_hash") if records else None
    if not _has_chain(records):
        return "none", None
    return ("ok" if verify_ledger_chain(records)["ok"] else "broken"), head


def replay_states(
    data: dict[str, Any], state: dict[str, Any], workflow: WorkflowSpec | None
) -> list[RunState]:
    """Return the states through which the records of one run of a bundle lead, the last one last.

    Raises:
        GraphError: The records do not lead to the state in the file, or a node is not in `workflow`.
    """
    return replay_run_history({**data, "run": state, "root_run_id": state["run_id"]}, workflow)


@contextmanager
def _bundle_errors(path: Path) -> Iterator[None]:
    """Raise errors of a bundle with the file and the place."""
    try:
        yield
    except OSError as exc:
        raise ContractError(f"cannot read {path}: {exc.strerror or exc}") from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        raise BundleError(path, _position_text(*first["loc"]), first["msg"]) from None
    except GraphError as exc:
        raise BundleError(path, exc.what, exc.problem) from None
    except (RecursionError, ValueError) as exc:  # UnicodeDecodeError is a ValueError
        raise BundleError(path, "the file", f"it is no JSON: {exc}") from None


@contextmanager
def _run_errors(n: int) -> Iterator[str]:
    """Yield the place of a run in a bundle; raise errors of data of another form with it."""
    position = "run" if n == 0 else f"subruns[{n - 1}]"
    try:
        yield position
    except GraphError:  # it is a ValueError too, and says already where and why
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise GraphError(position, f"{type(exc).__name__}: {exc}") from None


def _has_chain(records: list[dict[str, Any]]) -> bool:
    return any(record.get("record_hash") is not None for record in records)


def _check_run(
    position: str,
    data: dict[str, Any],
    state: dict[str, Any],
    ledgers: dict[str, _Ledger],
    *,
    needs_chain: bool,
) -> None:
    """Raise GraphError if the run's records do not lead to its state."""
    run_id = str(state["run_id"])
    ledger_path, ledger = f"ledgers.{run_id}", ledgers.get(run_id)
    if ledger is None:
        raise GraphError(ledger_path, f"there is no ledger of {position}")
    records = [item.record for item in ledger.items]
    if ledger.total != len(records):
        raise GraphError(ledger_path, f"it has {len(records)} of {ledger.total} records")
    for n, record in enumerate(records):
        if record.get("run_id") != run_id:
            raise GraphError(
                _position_text(ledger_path, "items", n), "it is a record of another run"
            )
    if needs_chain or _has_chain(records):
        for error in verify_ledger_chain(records)["errors"]:
            raise GraphError(
                _position_text(ledger_path, "items", error["index"]),
                error["type"].replace("_", " "),
            )
    try:
        states = replay_states(data, state, None)
    except GraphError as exc:
        raise GraphError(ledger_path, exc.problem) from None
    run = RunState.from_dict(state)
    facts, replayed_facts = _facts(run), _facts(states[-1])
    for name in (*_NAMES, *(() if run.status.is_terminal else _OPEN)):
        if facts.get(name) != replayed_facts.get(name):
            raise GraphError(f"{position}.{name}", "the records lead to another value")


def _facts(run: RunState) -> dict[str, Any]:
    """Return a run's facts without those that change between its steps by notes, which have no delta."""
    own_vars = {
        name: value for name, value in namespace(run.vars, RUNTIME).items() if name not in _NOTED
    }
    variables = {**run.vars, RUNTIME: own_vars, LIMITS: None}
    return {**run.to_dict(), "vars": variables}


def _position_text(*parts: object) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.lstrip(".") or "the file"
