"""A run as one JSON value: to take it away, to look at it, to play it again, to go on with it elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from actors.kernel.workflow.artifacts import artifact_ref, references
from actors.kernel.workflow.drawn import utc_now_iso
from actors.kernel.workflow.durable import WRAPPED, durable_copy, json_digest
from actors.kernel.workflow.errors import GraphError, NoSuchRunError, RunIdentityConflict
from actors.kernel.workflow.ledger_store import metrics_of
from actors.kernel.workflow.run_lists import tree_of
from actors.kernel.workflow.run_state import RunState
from actors.workflow.embedded.starting import check_nodes
from actors.workflow.machine.branches import Path
from actors.workflow.machine.deltas import OpenStep
from actors.workflow.machine.recovery import behind_record, record_from
from actors.workflow.machine.spec import WorkflowSpec
from actors.workflow.machine.variables import RUNTIME, namespace, with_path

RUN_HISTORY_BUNDLE_VERSION_V1: Final = 1
SNAPSHOT: Final = "workflow_snapshot"
"""In `_runtime`: the reference to a description of the graph."""


def persist_workflow_snapshot(
    *,
    run_store: Any,
    artifact_store: Any,
    run_id: str,
    workflow_id: str,
    snapshot: Any,
    format: str,  # noqa: A002
) -> dict[str, Any]:
    """Keep a description of a run's graph as an artifact; return the reference, which the run has, too.

    Raises:
        NoSuchRunError: There is no such run.
    """
    run: RunState | None = run_store.load(run_id)
    if run is None:
        raise NoSuchRunError(run_id)
    clean = durable_copy(snapshot, "snapshot")
    kept = artifact_store.store_json(clean, run_id=run_id)
    ref = {
        **artifact_ref(kept.artifact_id),
        "artifact_id": kept.artifact_id,
        "workflow_id": workflow_id,
        "format": format,
        "sha256": json_digest(clean),
        "created_at": utc_now_iso(),
    }
    run.vars = with_path(run.vars, [RUNTIME, SNAPSHOT], ref)
    run_store.save(run)
    return ref


def export_run_history_bundle(  # noqa: PLR0913 - the source's parameters
    *,
    run_id: str,
    run_store: Any,
    ledger_store: Any,
    artifact_store: Any = None,
    include_subruns: bool = True,
    include_session: bool = False,
    session_turn_limit: int = 50,
    ledger_mode: str = "full",
    ledger_max_items: int = 2000,
    workflow: WorkflowSpec | None = None,
) -> dict[str, Any]:
    """Return all that is kept of a run as JSON data.

    Args:
        run_id: The run.
        run_store: Where it is.
        ledger_store: Where its records are.
        artifact_store: For the digests of artifacts; None: only their ids.
        include_subruns: With the runs below it.
        include_session: With the other runs of its session, by their index rows.
        session_turn_limit: Of those.
        ledger_mode: ``full``, or ``tail``: the last `ledger_max_items` records of each run.
        ledger_max_items: See `ledger_mode`.
        workflow: Its graph, to be described; else the description that `persist_workflow_snapshot` kept.

    Raises:
        NoSuchRunError: There is no such run.
        GraphError: `ledger_mode` is neither.
    """
    if ledger_mode not in {"full", "tail"}:
        raise GraphError(f"ledger_mode {ledger_mode!r}", "use 'full' or 'tail'")
    root: RunState | None = run_store.load(run_id)
    if root is None:
        raise NoSuchRunError(run_id)
    runs = tree_of(run_store, root) if include_subruns else [root]
    most = ledger_max_items if ledger_mode == "tail" else None
    bundle = {
        "version": RUN_HISTORY_BUNDLE_VERSION_V1,
        "generated_at": utc_now_iso(),
        "root_run_id": run_id,
        "run": root.to_dict(),
        "input_data": {name: one for name, one in root.vars.items() if not name.startswith("_")},
        "workflow_snapshot": _described(root, artifact_store, workflow),
        "subruns": [one.to_dict() for one in runs[1:]],
        "ledgers": {one.run_id: _ledger(one, ledger_store, artifact_store, most) for one in runs},
        "warnings": [],
    }
    bundle["warnings"] = [
        f"ledger of run {name}: {ledger['cursor_start'] - 1} records before the window are left out"
        for name, ledger in bundle["ledgers"].items()
        if ledger["cursor_start"] > 1
    ]
    if include_session and root.session_id:
        rows = run_store.list_run_index(session_id=root.session_id, limit=session_turn_limit)
        bundle["session"] = {"session_id": root.session_id, "turns": rows}
    copy: dict[str, Any] = durable_copy(bundle, "bundle", deepest=WRAPPED)
    return copy


def import_run_history_bundle(
    bundle: dict[str, Any], *, run_store: Any, ledger_store: Any
) -> list[str]:
    """Put the runs of a bundle into stores, with their records; return their ids.

    Open ones can be gone on with.

    Raises:
        GraphError: It is no bundle of this version, or a ledger is not whole.
        RunIdentityConflict: A run of one of the ids is there. Nothing of it is changed.
    """
    _check(bundle)
    runs = [RunState.from_dict(row) for row in (bundle["run"], *bundle["subruns"])]
    for run in runs:
        if run_store.load(run.run_id) is not None:
            raise RunIdentityConflict(run.run_id, "it is there already")
    for run in runs:
        for item in bundle["ledgers"][run.run_id]["items"]:
            ledger_store.append(record_from(item["record"]))
        run_store.create_if_absent(run.copied())
    return [run.run_id for run in runs]


def replay_run_history(bundle: dict[str, Any], workflow: WorkflowSpec) -> list[RunState]:
    """Return the states of a bundle's run, one behind each record that changed it; no code of a node runs.

    Raises:
        GraphError: The bundle is not whole, a node is not in `workflow`, or the records do not lead to the
            state that the bundle has.
    """
    _check(bundle)
    records = [item["record"] for item in bundle["ledgers"][bundle["root_run_id"]]["items"]]
    begun = next(
        (one["delta"]["start"] for one in records if "start" in (one["delta"] or {})), None
    )
    if begun is None:
        raise GraphError(
            "a history", "its first record is missing: export it with ledger_mode='full'"
        )
    states = [RunState.from_dict(durable_copy(begun, "start", deepest=WRAPPED))]
    state, opened = states[0], dict[Path, OpenStep]()
    for place, record in enumerate(records):
        state = behind_record(state, opened, record)
        if state is not states[-1]:
            check_nodes(f"record {place}", workflow, state)
            states.append(state)
    last = RunState.from_dict(bundle["run"])
    if (states[-1].status, states[-1].output) != (last.status, last.output):
        problem = f"the records lead to {states[-1].status.value}, the run is {last.status.value}"
        raise GraphError("a history", problem)
    return states


def _check(bundle: dict[str, Any]) -> None:
    version = bundle.get("version")
    if version != RUN_HISTORY_BUNDLE_VERSION_V1:
        problem = f"its version is {version!r}, this release reads {RUN_HISTORY_BUNDLE_VERSION_V1}"
        raise GraphError("a history", problem)
    if bundle.get("warnings"):
        raise GraphError("a history", f"it is not whole: {'; '.join(bundle['warnings'])}")


def _described(run: RunState, artifacts: Any, workflow: WorkflowSpec | None) -> Any:
    if workflow is not None:
        return workflow.described()
    ref = namespace(run.vars, RUNTIME).get(SNAPSHOT)
    if not ref or artifacts is None:
        return ref
    return {**ref, "snapshot": artifacts.load_json(ref["artifact_id"])}


def _ledger(run: RunState, ledger_store: Any, artifacts: Any, most: int | None) -> dict[str, Any]:
    records = ledger_store.list(run.run_id)
    start = 0 if most is None else max(0, len(records) - most)
    items = [{"cursor": n, "record": one} for n, one in enumerate(records[start:], start + 1)]
    return {
        "total": len(records),
        "cursor_start": start + 1,
        "items": items,
        "metrics": metrics_of(records),
        "artifacts": [*_digests(run, artifacts)],
    }


def _digests(run: RunState, artifacts: Any) -> Iterable[dict[str, Any]]:
    told = (
        {} if artifacts is None else {m.artifact_id: m for m in artifacts.list_by_run(run.run_id)}
    )
    for name in {**told, **dict.fromkeys(references([run.vars, run.output]))}:
        found = told.get(name) or (artifacts.get_metadata(name) if artifacts is not None else None)
        yield {"artifact_id": name, "missing": True} if found is None else found.to_dict()
