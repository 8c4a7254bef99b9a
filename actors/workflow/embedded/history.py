"""A run as one JSON value: to take it away, to look at it, to play it again, to go on with it elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from actors.kernel.json import canonical_json
from actors.kernel.workflow.artifacts import artifact_ref, references
from actors.kernel.workflow.drawn import utc_now_iso
from actors.kernel.workflow.durable import WRAPPED, durable_copy, json_digest
from actors.kernel.workflow.effects import EffectType
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
REPLAY: Final = "replay"
_SENT: Final = ("messages", "system_prompt", "prompt")
_SENT_IN_RESULT: Final = ("_runtime_observability", "_provider_request")
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
    detail: str = "full",
    workflow: WorkflowSpec | None = None,
) -> dict[str, Any]:
    """Return all that is kept of a run as JSON data.

    What cannot be read is left out and named in ``warnings``: objects with ``code``, ``run_id``, ``detail``.

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
        detail: ``full``, or ``replay``: without what was sent to models: ``{"$omitted": …}`` stands there.
        workflow: Its graph, to be described; else the description that `persist_workflow_snapshot` kept.

    Raises:
        NoSuchRunError: There is no such run.
        GraphError: `ledger_mode` or `detail` is neither.
    """
    if ledger_mode not in {"full", "tail"}:
        raise GraphError(f"ledger_mode {ledger_mode!r}", "use 'full' or 'tail'")
    if detail not in {"full", REPLAY}:
        raise GraphError(f"detail {detail!r}", f"use 'full' or {REPLAY!r}")
    root: RunState | None = run_store.load(run_id)
    if root is None:
        raise NoSuchRunError(run_id)
    warnings: list[dict[str, Any]] = []
    runs = _runs_of(run_store, root, warnings) if include_subruns else [root]
    most = ledger_max_items if ledger_mode == "tail" else None
    bundle = {
        "version": RUN_HISTORY_BUNDLE_VERSION_V1,
        "detail": detail,
        "generated_at": utc_now_iso(),
        "root_run_id": run_id,
        "run": root.to_dict(),
        "input_data": {name: one for name, one in root.vars.items() if not name.startswith("_")},
        "workflow_snapshot": _described(root, artifact_store, workflow),
        "subruns": [one.to_dict() for one in runs[1:]],
        "ledgers": {
            one.run_id: _ledger(one, ledger_store, artifact_store, most, warnings) for one in runs
        },
        "warnings": warnings,
    }
    if detail == REPLAY:
        for ledger in bundle["ledgers"].values():
            for item in ledger["items"]:
                item["record"] = _for_replay(item["record"])
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
    if bundle.get("detail", "full") != "full":
        raise GraphError("a history", "what models were asked is left out. Export it with 'full'")
    if bundle.get("warnings"):
        told = "; ".join(f"run {one['run_id']}: {one['detail']}" for one in bundle["warnings"])
        raise GraphError("a history", f"it is not whole: {told}")


def _described(run: RunState, artifacts: Any, workflow: WorkflowSpec | None) -> Any:
    if workflow is not None:
        return workflow.described()
    ref = namespace(run.vars, RUNTIME).get(SNAPSHOT)
    if not ref or artifacts is None:
        return ref
    return {**ref, "snapshot": artifacts.load_json(ref["artifact_id"])}


def _runs_of(run_store: Any, root: RunState, warnings: list[dict[str, Any]]) -> list[RunState]:
    try:
        return tree_of(run_store, root)
    except Exception as exc:  # noqa: BLE001 - of a store that is broken: told
        warnings.append(_warning("subtree_discovery_failed", root, f"{type(exc).__name__}: {exc}"))
        return [root]


def _warning(code: str, run: RunState, detail: str, **more: Any) -> dict[str, Any]:
    return {"code": code, "run_id": run.run_id, "detail": detail, **more}


def _for_replay(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without what was sent to a model."""
    effect, result = record.get("effect") or {}, record.get("result")
    payload = effect.get("payload")
    if effect.get("type") == EffectType.LLM_CALL and isinstance(payload, dict):
        record = {**record, "effect": {**effect, "payload": _without(payload, _SENT)}}
    if isinstance(result, dict) and isinstance(result.get("metadata"), dict):
        told = _without(result["metadata"], _SENT_IN_RESULT)
        record = {**record, "result": {**result, "metadata": told}}
    return record


def _without(data: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    marks = {
        name: {"$omitted": {"profile": REPLAY, "bytes": len(canonical_json(data[name]).encode())}}
        for name in names
        if name in data
    }
    return {**data, **marks}


def _ledger(  # noqa: PLR0917 - facts of one export
    run: RunState,
    ledger_store: Any,
    artifacts: Any,
    most: int | None,
    warnings: list[dict[str, Any]],
) -> dict[str, Any]:
    try:
        records = ledger_store.list(run.run_id)
    except Exception as exc:  # noqa: BLE001 - of a store that is broken: told
        warnings.append(_warning("ledger_read_failed", run, f"{type(exc).__name__}: {exc}"))
        records = []
    start = 0 if most is None else max(0, len(records) - most)
    if start:
        problem = f"{start} records before the window are left out"
        warnings.append(
            _warning("ledger_tail_window", run, problem, total=len(records), window=most)
        )
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
