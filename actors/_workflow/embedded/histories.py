"""A run as one JSON value, for export, reading, replay and import into other stores.

A part that cannot be read is left out and named in a warning. The runs of the session are turns of a chat: the
question, the answer, the time and the tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from actors._kernel.json import canonical_json
from actors._kernel.workflow.artifacts import (
    artifact_ref,
    get_artifact_id,
    is_artifact_ref,
    plain_value,
    references,
)
from actors._kernel.workflow.durable import (
    WRAPPED,
    durable_copy,
    json_digest,
    normalize_utc_iso,
    utc_now_iso,
)
from actors._kernel.workflow.effects import EffectType, RunStatus, StepStatus
from actors._kernel.workflow.errors import GraphError, NoSuchRunError, RunIdentityConflict
from actors._kernel.workflow.run_state import RunState
from actors._kernel.workflow.step_record import StepRecord
from actors._kernel.workflow.stores import metrics_of, tree_of
from actors._workflow.embedded.held_run import RunLocks
from actors._workflow.embedded.stores.ledgers import append_all, delete_records
from actors._workflow.machine.branches import Path
from actors._workflow.machine.records import OpenStep
from actors._workflow.machine.recovery import behind_record, record_from
from actors._workflow.machine.spec import WorkflowSpec
from actors._workflow.machine.starting import check_nodes
from actors._workflow.machine.variables import (
    RECORDS,
    RUNTIME,
    SEQ,
    namespace,
    with_path,
    without_answers,
)
from actors.errors import NotSerializableError

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
    clean_snapshot = durable_copy(snapshot, "snapshot")
    artifact = artifact_store.store_json(clean_snapshot, run_id=run_id)
    ref = {
        **artifact_ref(artifact.artifact_id),
        "artifact_id": artifact.artifact_id,
        "workflow_id": workflow_id,
        "format": format,
        "sha256": json_digest(clean_snapshot),
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
        artifact_store: The store that has the artifacts' digests. If it is None, the bundle has only their ids.
        include_subruns: Include the runs below the run.
        include_session: Include the turns of the run's session up to this run, see `session_turns`.
        session_turn_limit: Maximum number of those turns. The last ones are kept.
        ledger_mode: ``full``, or ``tail``: the last `ledger_max_items` records of each run.
        ledger_max_items: See `ledger_mode`.
        detail: ``full``, or ``replay``: ``{"$omitted": …}`` replaces the data that was sent to models.
        workflow: The graph to describe. If it is None, the bundle has the description that
            `persist_workflow_snapshot` stored.

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
    max_items = ledger_max_items if ledger_mode == "tail" else None
    ledgers = {run.run_id: _ledger(source, run, max_items) for run in runs}
    bundle = {
        "version": RUN_HISTORY_BUNDLE_VERSION_V1,
        "detail": detail,
        "generated_at": utc_now_iso(),
        "root_run_id": run_id,
        "run": root.to_dict(),
        "input_data": {n: value for n, value in root.vars.items() if not n.startswith("_")},
        "workflow_snapshot": _describe_graph(root, artifact_store, workflow),
        "subruns": [run.to_dict() for run in runs[1:]],
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
    runs = [_importable_run(RunState.from_dict(row)) for row in (bundle["run"], *bundle["subruns"])]
    ledgers = {
        run.run_id: [record_from(item["record"]) for item in bundle["ledgers"][run.run_id]["items"]]
        for run in runs
    }
    # All are checked before the first is written: a conflict leaves the stores as they are.
    for run in runs:
        _is_imported(run, ledgers[run.run_id], run_store, ledger_store)
    locks = RunLocks(run_store)
    for run in reversed(runs):
        records = ledgers[run.run_id]
        with locks.hold(run.run_id):
            # Again, with the lock: another import may have written the run meanwhile.
            if _is_imported(run, records, run_store, ledger_store):
                continue
            if ledger_store.list(run.run_id):
                delete_records(ledger_store, run.run_id)  # of an import that did not end
            append_all(ledger_store, records)
            run_store.create_if_absent(run.copied())
    return [run.run_id for run in runs]


def _importable_run(run: RunState) -> RunState:
    """Return a run of a bundle as stores get it: without answers that came before their waits.

    Raises:
        GraphError: Its counters are no numbers, so that no driver could continue it.
    """
    runtime = namespace(run.vars, RUNTIME)
    for name in (SEQ, RECORDS):
        count = runtime.get(name, 0)
        if type(count) is not int or count < 0:
            raise GraphError(f"run {run.run_id!r}", f"its {RUNTIME}.{name} is {count!r}, no count")
    return run.moved(vars=without_answers(run.vars))


def _is_imported(
    run: RunState, records: list[StepRecord], run_store: Any, ledger_store: Any
) -> bool:
    """Return True if the stores have this run in this state with these records, False if they have no run."""
    stored_run: RunState | None = run_store.load(run.run_id)
    if stored_run is None:
        return False
    stored_records = [record_from(row) for row in ledger_store.list(run.run_id)]
    if stored_run.to_dict() != run.to_dict() or [*map(_without_hashes, stored_records)] != [
        *map(_without_hashes, records)
    ]:
        raise RunIdentityConflict(run.run_id, "it is there already")
    return True


def _without_hashes(record: StepRecord) -> dict[str, Any]:
    """Return a record without the hashes, which a store that chains records writes itself."""
    return {**record.to_dict(), "prev_hash": None, "record_hash": None}


def replay_run_history(
    bundle: dict[str, Any], workflow: WorkflowSpec | None = None
) -> list[RunState]:
    """Return the states of a bundle's run, one after each record that changed it. No node is called.

    Args:
        bundle: See `export_run_history_bundle`.
        workflow: The graph whose nodes are checked, or None if nodes are not checked.

    Raises:
        GraphError: The bundle is incomplete, a node is not in `workflow`, or the records do not lead to the
            state that the bundle has.
    """
    _check(bundle)
    records = [item["record"] for item in bundle["ledgers"][bundle["root_run_id"]]["items"]]
    start_data = next((r["delta"]["start"] for r in records if "start" in (r["delta"] or {})), None)
    if start_data is None:
        raise GraphError(
            "a history", "its first record is missing: export it with ledger_mode='full'"
        )
    states = [RunState.from_dict(durable_copy(start_data, "start", deepest=WRAPPED))]
    state, open_steps = states[0], dict[Path, OpenStep]()
    for index, record in enumerate(records):
        state = behind_record(state, open_steps, record)
        if state is not states[-1]:
            if workflow is not None:
                check_nodes(f"record {index}", workflow, state)
            states.append(state)
    final_state = RunState.from_dict(bundle["run"])
    # A cancellation or failure from outside, on hosts, writes no step, so the records end before it.
    is_cut_short = final_state.status in _FROM_OUTSIDE and not states[-1].status.is_terminal
    if not is_cut_short and (states[-1].status, states[-1].output) != (
        final_state.status,
        final_state.output,
    ):
        problem = (
            f"the records lead to {states[-1].status.value}, the run is {final_state.status.value}"
        )
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
        reasons = "; ".join(
            f"run {warning['run_id']}: {warning['detail']}" for warning in bundle["warnings"]
        )
        raise GraphError("a history", f"it is not whole: {reasons}")


def _describe_graph(run: RunState, artifacts: Any, workflow: WorkflowSpec | None) -> Any:
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
        record = {**record, "effect": {**effect, "payload": _omit(payload, _SENT)}}
    if isinstance(result, dict) and isinstance(result.get("metadata"), dict):
        metadata = _omit(result["metadata"], _SENT_IN_RESULT)
        record = {**record, "result": {**result, "metadata": metadata}}
    return record


def _omit(data: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    marks = {
        name: {"$omitted": {"profile": REPLAY, "bytes": len(canonical_json(data[name]).encode())}}
        for name in names
        if name in data
    }
    return {**data, **marks}


def _ledger(source: HistorySource, run: RunState, max_items: int | None) -> dict[str, Any]:
    records = source.records(run)
    start = 0 if max_items is None else max(0, len(records) - max_items)
    if start:
        problem = f"{start} records before the window are left out"
        source.warn("ledger_tail_window", run, problem, total=len(records), window=max_items)
    items = [{"cursor": n, "record": record} for n, record in enumerate(records[start:], start + 1)]
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
    rows = [_moment(run_id, item) for run_id, ledger in ledgers.items() for item in ledger["items"]]
    return sorted(rows, key=lambda row: normalize_utc_iso(row["started_at"]) or "")


def _moment(run_id: str, item: dict[str, Any]) -> dict[str, Any]:
    record = item["record"]
    started_at, ended_at = record["started_at"], record["ended_at"] or record["started_at"]
    return {
        "run_id": run_id,
        "cursor": item["cursor"],
        "node_id": record["node_id"],
        "status": record["status"],
        "effect_type": (record["effect"] or {}).get("type"),
        "started_at": started_at,
        "ended_at": ended_at,
        "duration_ms": duration_ms(started_at, ended_at),
    }


def _resolved_actions(ledgers: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield the final actions that handlers report in ``metadata`` of their results."""
    for run_id, ledger in ledgers.items():
        for item in ledger["items"]:
            result = item["record"]["result"]
            metadata = result.get("metadata") if isinstance(result, dict) else None
            action = metadata.get(RESOLVED) if isinstance(metadata, dict) else None
            if isinstance(action, dict):
                yield {"run_id": run_id, **action}


MOST_PLAIN_BYTES: Final = 4 * 1024 * 1024


class HistorySource:
    """The stores of runs. Each ledger is read once.

    Args:
        run_store: The store of the runs.
        ledger_store: The store of their records.
        artifact_store: The store of their artifacts. If it is None, only the artifacts' ids are known.

    Attributes:
        warnings: The parts that could not be read, as objects with ``code``, ``run_id`` and ``detail``.
    """

    def __init__(self, run_store: Any, ledger_store: Any, artifact_store: Any) -> None:
        self.runs, self.ledger, self.artifacts = run_store, ledger_store, artifact_store
        self.warnings: list[dict[str, Any]] = []
        self._records: dict[str, list[dict[str, Any]]] = {}

    def warn(self, code: str, run: RunState, detail: str, **more: Any) -> None:
        """Add a warning about a part that is missing in the history."""
        self.warnings.append({"code": code, "run_id": run.run_id, "detail": detail, **more})

    def tree(self, root: RunState) -> list[RunState]:
        """Return a run and the runs below it."""
        try:
            return tree_of(self.runs, root)
        # A store may be any code, and the rest of the history is of use without the runs below.
        except Exception as exc:  # noqa: BLE001 - the error is a warning of the bundle
            self.warn("subtree_discovery_failed", root, f"{type(exc).__name__}: {exc}")
            return [root]

    def records(self, run: RunState) -> list[dict[str, Any]]:
        """Return the records of a run."""
        if run.run_id not in self._records:
            try:
                self._records[run.run_id] = self.ledger.list(run.run_id)
            # A store may be any code, and the other parts of the history are of use without these records.
            except Exception as exc:  # noqa: BLE001 - the error is a warning of the bundle
                self.warn("ledger_read_failed", run, f"{type(exc).__name__}: {exc}")
                self._records[run.run_id] = []
        return self._records[run.run_id]

    def artifacts_of(self, run: RunState) -> list[dict[str, Any]]:
        """Return descriptions of the artifacts of a run, the oldest first, and of those that it refers to."""
        store = self.artifacts
        own_artifacts = (
            {}
            if store is None
            else {metadata.artifact_id: metadata for metadata in store.list_by_run(run.run_id)}
        )
        descriptions = dict(reversed(own_artifacts.items()))
        for name in references([run.vars, run.output]):
            descriptions.setdefault(name, None if store is None else store.get_metadata(name))
        return [
            {"artifact_id": name, "missing": True} if metadata is None else metadata.to_dict()
            for name, metadata in descriptions.items()
        ]

    def plain(self, run: RunState, value: Any) -> Any:
        """Return a value of a run. A reference to an artifact of the run is replaced by the artifact's content.

        A reference stays if the artifact has more than 4 MiB or belongs to another run.
        """
        if self.artifacts is None or not is_artifact_ref(value):
            return value
        metadata = self.artifacts.get_metadata(get_artifact_id(value))
        if (
            metadata is None
            or metadata.run_id != run.run_id
            or metadata.size_bytes > MOST_PLAIN_BYTES
        ):
            return value
        return plain_value(value, self.artifacts)


MOST_RUNS: Final = 10_000
"""Maximum number of runs of a session among which turns are chosen. The last updated runs are read."""
_ASKED: Final = ("prompt", "message", "task")
_ANSWERED: Final = ("response", "answer", "message", "text", "content")
_ENVELOPE: Final = re.compile(r"\s*<runtime_metadata>(.*?)</runtime_metadata>", re.DOTALL)
_INTERNAL: Final = re.compile(r"__.*__")
_USAGE: Final = {
    "input_tokens": ("input_tokens", "prompt_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens"),
    "total_tokens": ("total_tokens",),
}


def session_turns(source: HistorySource, root: RunState, limit: int) -> list[dict[str, Any]]:
    """Return the turns of a run's session up to this run, the oldest first: the last `limit` of them.

    A turn is a run without a parent run. It has ``run_id``, ``workflow_id``, ``kind`` (``chat``: its vars have
    messages; ``run``), ``status``, ``created_at``, ``updated_at``, ``prompt``, ``prompt_verbatim`` (with the
    envelope of metadata, if it had one), ``prompt_metadata``, ``attachments``, ``answer``, ``answer_meta``,
    ``stats`` and ``artifacts`` (both also of the runs below it). A value that a run does not have is None or
    empty.
    """
    rows = source.runs.list_run_index(session_id=root.session_id, root_only=True, limit=MOST_RUNS)
    until = _instant(root.created_at)
    turn_ids = sorted(
        (_instant(row["created_at"]), row["run_id"])
        for row in rows
        if _instant(row["created_at"]) <= until and not _INTERNAL.fullmatch(row["workflow_id"])
    )
    runs = (source.runs.load(run_id) for _, run_id in turn_ids[-max(limit, 1) :])
    return [_turn(source, run) for run in runs if run is not None]


def stats_of(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the totals of records: ``duration_ms``, ``llm_calls``, ``tool_calls``, ``usage`` and ``tok_s``.

    ``usage`` has the tokens of input, of output, and in total. ``tok_s`` is the number of all tokens per
    second, or None if there are no tokens or there is no duration.
    """
    counts, usage = metrics_of(records), dict.fromkeys(_USAGE, 0)
    for record in _completed_records(records, EffectType.LLM_CALL):
        usage_data = _object(_object(record.get("result")).get("usage"))
        tokens = {name: _first_number(usage_data, names) for name, names in _USAGE.items()}
        tokens["total_tokens"] = (
            tokens["total_tokens"] or tokens["input_tokens"] + tokens["output_tokens"]
        )
        usage = {name: usage[name] + count for name, count in tokens.items()}
    times = [_instant(r.get(name)) for r in records for name in ("started_at", "ended_at")]
    instants = sorted(filter(None, times))
    total_ms = (duration_ms(instants[0], instants[-1]) if instants else None) or 0.0
    return {
        "duration_ms": int(total_ms),
        "llm_calls": counts["llm_calls"],
        "tool_calls": counts["tool_calls"],
        "usage": usage,
        "tok_s": usage["total_tokens"] * 1000 / total_ms
        if total_ms and usage["total_tokens"]
        else None,
    }


def duration_ms(start: Any, end: Any) -> float | None:
    """Return the milliseconds between two instants, at least 0, or None if one of them is not an instant."""
    instants = [normalize_utc_iso(value) for value in (start, end)]
    if None in instants:
        return None
    start_at, end_at = (datetime.fromisoformat(str(instant)) for instant in instants)
    return round(max(0.0, (end_at - start_at).total_seconds() * 1000), 2)


def _turn(source: HistorySource, run: RunState) -> dict[str, Any]:
    context = _object(source.plain(run, run.vars.get("context")))
    messages = source.plain(run, context.get("messages"))
    question, question_metadata = _question_of(source, run, context, messages)
    envelope = _ENVELOPE.match(question)
    if envelope is not None:
        question_metadata = _metadata(envelope[1]) | question_metadata
    answer, answer_metadata = _answer_of(source, run)
    tree = source.tree(run)
    rows = source.plain(run, context.get("attachments"))
    attachments = rows if isinstance(rows, list) else []
    artifacts = {row["artifact_id"]: row for member in tree for row in source.artifacts_of(member)}
    return {
        "run_id": run.run_id,
        "workflow_id": run.workflow_id,
        "kind": "chat" if isinstance(messages, list) else "run",
        "status": RunStatus(run.status).value,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "prompt": question[envelope.end() if envelope else 0 :].strip() or None,
        "prompt_verbatim": question if envelope else None,
        "prompt_metadata": question_metadata or None,
        "attachments": [row for row in attachments if isinstance(row, dict)],
        "answer": answer,
        "answer_meta": answer_metadata,
        "stats": stats_of([record for member in tree for record in source.records(member)]),
        "artifacts": [*artifacts.values()],
    }


def _question_of(
    source: HistorySource, run: RunState, context: dict[str, Any], messages: Any
) -> tuple[str, dict[str, Any]]:
    """Return the question of a run and the metadata of its message. The last message of the user is taken.

    Vars with a question come before messages.
    """
    candidates = [run.vars.get(name) for name in _ASKED] + [
        context.get(name) for name in _ASKED[1:]
    ]
    for candidate in candidates:
        text = _text(source.plain(run, candidate))
        if text:
            return text, {}
    for item in reversed(messages if isinstance(messages, list) else []):
        message = _object(source.plain(run, item))
        if message.get("role") != "user":
            continue
        text = _text(source.plain(run, message.get("content")))
        if text:
            metadata = _object(message.get("metadata")).get("runtime_metadata")
            return text, _object(message.get("runtime_metadata") or metadata)
    return "", {}


def _answer_of(source: HistorySource, run: RunState) -> tuple[str | None, dict[str, Any] | None]:
    """Return a run's answer: from its output, else the last answer that it gave to the user."""
    output = source.plain(run, run.output)
    if isinstance(output, str) and output.strip():
        return output.strip(), None
    outer = _object(output)
    inner = _object(outer.get("result")) or _object(outer.get("output"))
    for container in (outer, inner):
        for name in _ANSWERED:
            text = _text(source.plain(run, container.get(name)))
            if text:
                return text.strip(), _object(outer.get("meta")) or _object(
                    inner.get("meta")
                ) or None
    for record in reversed([*_completed_records(source.records(run), EffectType.ANSWER_USER)]):
        text = _text(_object(record.get("result")).get("message"))
        if text:
            return text.strip(), None
    return None, None


def _metadata(text: str) -> dict[str, Any]:
    """Return the JSON object of an envelope, which any client may have written.

    The result is empty if the text is not a JSON object.
    """
    try:
        return _object(durable_copy(json.loads(text), "metadata"))
    except (ValueError, NotSerializableError, RecursionError):
        return {}


def _completed_records(
    records: Iterable[dict[str, Any]], kind: EffectType
) -> Iterable[dict[str, Any]]:
    for record in records:
        if (
            record.get("status") == StepStatus.COMPLETED
            and _object(record.get("effect")).get("type") == kind
        ):
            yield record


def _instant(value: Any) -> str:
    return normalize_utc_iso(value) or ""


def _first_number(usage: dict[str, Any], names: tuple[str, ...]) -> int:
    numbers = (usage.get(name) for name in names)
    return next((number for number in numbers if type(number) is int and number > 0), 0)


def _text(value: Any) -> str:
    return value if isinstance(value, str) and value.strip() else ""


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
