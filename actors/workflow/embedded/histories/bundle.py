"""A run as one JSON value, for export, reading, replay and import into other stores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from actors.kernel.json import canonical_json
from actors.kernel.workflow.artifacts import artifact_ref
from actors.kernel.workflow.durable import (
    WRAPPED,
    durable_copy,
    json_digest,
    normalize_utc_iso,
    utc_now_iso,
)
from actors.kernel.workflow.effects import EffectType, RunStatus
from actors.kernel.workflow.errors import GraphError, NoSuchRunError, RunIdentityConflict
from actors.kernel.workflow.run_state import RunState
from actors.kernel.workflow.step_record import StepRecord
from actors.kernel.workflow.stores import metrics_of
from actors.workflow.embedded.histories.source import HistorySource
from actors.workflow.embedded.histories.turns import duration_ms, session_turns
from actors.workflow.embedded.run_locks import RunLocks
from actors.workflow.embedded.stores.ledgers import append_all, delete_records
from actors.workflow.machine.branches import Path
from actors.workflow.machine.deltas import OpenStep
from actors.workflow.machine.recovery import behind_record, record_from
from actors.workflow.machine.spec import WorkflowSpec
from actors.workflow.machine.starting import check_nodes
from actors.workflow.machine.variables import (
    RECORDS,
    RUNTIME,
    SEQ,
    namespace,
    with_path,
    without_answers,
)

RUN_HISTORY_BUNDLE_VERSION_V1: Final = 1
REPLAY: Final = "replay"
_SENT: Final = ("messages", "system_prompt", "prompt")
_SENT_IN_RESULT: Final = ("_runtime_observability", "_provider_request")
RESOLVED: Final = "_runtime_resolved_action"
_FROM_OUTSIDE: Final = (RunStatus.CANCELLED, RunStatus.FAILED)
SNAPSHOT: Final = "workflow_snapshot"
"""Name in `_runtime` of the reference to a description of the graph."""


def persist_workflow_snapshot(
    *,
    run_store: Any,
    artifact_store: Any,
    run_id: str,
    workflow_id: str,
    snapshot: Any,
    format: str,  # noqa: A002
) -> dict[str, Any]:
    """Store a description of a run's graph as an artifact; return the reference. The run gets it, too.

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


def export_run_history_bundle(  # noqa: PLR0913 - AbstractRuntime's parameters
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
    """Return all stored data of a run as JSON data.

    Data that cannot be read is left out. ``warnings`` has ``code``, ``run_id`` and ``detail`` for each part.

    Args:
        run_id: The run.
        run_store: The store of the run.
        ledger_store: The store of the run's records.
        artifact_store: The store that has the artifacts' digests. None: the bundle has only the artifacts' ids.
        include_subruns: Include the runs below the run.
        include_session: Include the turns of the run's session up to this run, see `session_turns`.
        session_turn_limit: Maximum number of those turns. The last ones are kept.
        ledger_mode: ``full``, or ``tail``: the last `ledger_max_items` records of each run.
        ledger_max_items: See `ledger_mode`.
        detail: ``full``, or ``replay``: ``{"$omitted": …}`` replaces the data that was sent to models.
        workflow: The graph to describe. None: the description that `persist_workflow_snapshot` stored.

    Raises:
        NoSuchRunError: There is no such run.
        GraphError: `ledger_mode` or `detail` has another value.
    """
    if ledger_mode not in {"full", "tail"}:
        raise GraphError(f"ledger_mode {ledger_mode!r}", "use 'full' or 'tail'")
    if detail not in {"full", REPLAY}:
        raise GraphError(f"detail {detail!r}", f"use 'full' or {REPLAY!r}")
    root: RunState | None = run_store.load(run_id)
    if root is None:
        raise NoSuchRunError(run_id)
    source = HistorySource(run_store, ledger_store, artifact_store)
    runs = source.tree(root) if include_subruns else [root]
    most = ledger_max_items if ledger_mode == "tail" else None
    ledgers = {one.run_id: _ledger(source, one, most) for one in runs}
    bundle = {
        "version": RUN_HISTORY_BUNDLE_VERSION_V1,
        "detail": detail,
        "generated_at": utc_now_iso(),
        "root_run_id": run_id,
        "run": root.to_dict(),
        "input_data": {name: one for name, one in root.vars.items() if not name.startswith("_")},
        "workflow_snapshot": _described(root, artifact_store, workflow),
        "subruns": [one.to_dict() for one in runs[1:]],
        "ledgers": ledgers,
        "timeline": [] if detail == REPLAY else _timeline(ledgers),
        "resolved_actions": [*_resolved_actions(ledgers)],
        "warnings": source.warnings,
    }
    if detail == REPLAY:
        for ledger in ledgers.values():
            for item in ledger["items"]:
                item["record"] = _for_replay(item["record"])
    if include_session and root.session_id:
        turns = session_turns(source, root, session_turn_limit)
        bundle["session"] = {"session_id": root.session_id, "turns": turns}
    copy: dict[str, Any] = durable_copy(bundle, "bundle", deepest=WRAPPED)
    return copy


def import_run_history_bundle(
    bundle: dict[str, Any], *, run_store: Any, ledger_store: Any
) -> list[str]:
    """Write the runs of a bundle and their records into stores; return the runs' ids.

    Runs that have not ended can be continued. Answers that came before their waits are left out: give them
    again. A run is written after the runs below it, and its state after its
    records. If the process dies meanwhile, call this again: runs that were written are left as they are.

    Raises:
        GraphError: The bundle has another version, or a ledger is incomplete.
        RunIdentityConflict: The store has another run, or another state of a run, of one of the ids. It stays
            as it is, and nothing is written.
    """
    _check(bundle)
    runs = [_imported(RunState.from_dict(row)) for row in (bundle["run"], *bundle["subruns"])]
    ledgers = {
        run.run_id: [record_from(one["record"]) for one in bundle["ledgers"][run.run_id]["items"]]
        for run in runs
    }
    for run in runs:
        _is_imported(run, ledgers[run.run_id], run_store, ledger_store)
    locks = RunLocks(run_store)
    for run in reversed(runs):
        records = ledgers[run.run_id]
        with locks.hold(run.run_id):
            if _is_imported(run, records, run_store, ledger_store):
                continue
            if ledger_store.list(run.run_id):
                delete_records(ledger_store, run.run_id)  # of an import that did not end
            append_all(ledger_store, records)
            run_store.create_if_absent(run.copied())
    return [run.run_id for run in runs]


def _imported(run: RunState) -> RunState:
    """Return a run of a bundle as stores get it: without answers that came before their waits.

    Raises:
        GraphError: Its counters are no numbers, so that no driver could continue it.
    """
    own = namespace(run.vars, RUNTIME)
    for name in (SEQ, RECORDS):
        count = own.get(name, 0)
        if type(count) is not int or count < 0:
            raise GraphError(f"run {run.run_id!r}", f"its {RUNTIME}.{name} is {count!r}, no count")
    return run.moved(vars=without_answers(run.vars))


def _is_imported(
    run: RunState, records: list[StepRecord], run_store: Any, ledger_store: Any
) -> bool:
    """Return True if the stores have this run in this state, with these records; False: they have no run."""
    found: RunState | None = run_store.load(run.run_id)
    if found is None:
        return False
    stored = [record_from(one) for one in ledger_store.list(run.run_id)]
    if found.to_dict() != run.to_dict() or [*map(_said, stored)] != [*map(_said, records)]:
        raise RunIdentityConflict(run.run_id, "it is there already")
    return True


def _said(record: StepRecord) -> dict[str, Any]:
    """Return a record without the hashes, which a store that chains records writes itself."""
    return {**record.to_dict(), "prev_hash": None, "record_hash": None}


def replay_run_history(
    bundle: dict[str, Any], workflow: WorkflowSpec | None = None
) -> list[RunState]:
    """Return the states of a bundle's run, one after each record that changed it. No node is called.

    Args:
        bundle: See `export_run_history_bundle`.
        workflow: The graph whose nodes are checked. None: nodes are not checked.

    Raises:
        GraphError: The bundle is incomplete, a node is not in `workflow`, or the records do not lead to the
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
            if workflow is not None:
                check_nodes(f"record {place}", workflow, state)
            states.append(state)
    last = RunState.from_dict(bundle["run"])
    # A cancellation or failure from outside, on hosts, writes no step, so the records end before it.
    is_cut_short = last.status in _FROM_OUTSIDE and not states[-1].status.is_terminal
    if not is_cut_short and (states[-1].status, states[-1].output) != (last.status, last.output):
        problem = f"the records lead to {states[-1].status.value}, the run is {last.status.value}"
        raise GraphError("a history", problem)
    return states


def _check(bundle: dict[str, Any]) -> None:
    version = bundle.get("version")
    if version != RUN_HISTORY_BUNDLE_VERSION_V1:
        problem = f"its version is {version!r}, this release reads {RUN_HISTORY_BUNDLE_VERSION_V1}"
        raise GraphError("a history", problem)
    if bundle.get("detail", "full") != "full":
        raise GraphError(
            "a history", "the requests to models are left out. Export it with detail='full'"
        )
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


def _for_replay(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without the data that was sent to a model."""
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


def _ledger(source: HistorySource, run: RunState, most: int | None) -> dict[str, Any]:
    records = source.records(run)
    start = 0 if most is None else max(0, len(records) - most)
    if start:
        problem = f"{start} records before the window are left out"
        source.warn("ledger_tail_window", run, problem, total=len(records), window=most)
    items = [{"cursor": n, "record": one} for n, one in enumerate(records[start:], start + 1)]
    return {
        "run_id": run.run_id,
        "total": len(records),
        "cursor_start": start + 1,
        "cursor_end": len(records),
        "items": items,
        "metrics": metrics_of(records),
        "artifacts": source.artifacts_of(run),
    }


def _timeline(ledgers: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each record of all runs, ordered by the records' start."""
    rows = [_moment(run_id, one) for run_id, ledger in ledgers.items() for one in ledger["items"]]
    return sorted(rows, key=lambda row: normalize_utc_iso(row["started_at"]) or "")


def _moment(run_id: str, item: dict[str, Any]) -> dict[str, Any]:
    record = item["record"]
    begun, ended = record["started_at"], record["ended_at"] or record["started_at"]
    return {
        "run_id": run_id,
        "cursor": item["cursor"],
        "node_id": record["node_id"],
        "status": record["status"],
        "effect_type": (record["effect"] or {}).get("type"),
        "started_at": begun,
        "ended_at": ended,
        "duration_ms": duration_ms(begun, ended),
    }


def _resolved_actions(ledgers: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield the final actions that handlers report in ``metadata`` of their results."""
    for run_id, ledger in ledgers.items():
        for item in ledger["items"]:
            result = item["record"]["result"]
            told = result.get("metadata") if isinstance(result, dict) else None
            action = told.get(RESOLVED) if isinstance(told, dict) else None
            if isinstance(action, dict):
                yield {"run_id": run_id, **action}
