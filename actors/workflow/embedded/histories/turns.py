"""The runs of a session as turns of a chat: the question, the answer, the time and the tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from actors.errors import NotSerializableError
from actors.kernel.workflow.durable import durable_copy, normalize_utc_iso
from actors.kernel.workflow.effects import EffectType, RunStatus, StepStatus
from actors.kernel.workflow.run_state import RunState
from actors.kernel.workflow.stores import metrics_of
from actors.workflow.embedded.histories.source import HistorySource

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
    chosen = sorted(
        (_instant(row["created_at"]), row["run_id"])
        for row in rows
        if _instant(row["created_at"]) <= until and not _INTERNAL.fullmatch(row["workflow_id"])
    )
    runs = (source.runs.load(run_id) for _, run_id in chosen[-max(limit, 1) :])
    return [_turn(source, run) for run in runs if run is not None]


def stats_of(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the totals of records: ``duration_ms``, ``llm_calls``, ``tool_calls``, ``usage`` and ``tok_s``.

    ``usage`` has the tokens of input, of output, and in total. ``tok_s`` is the number of all tokens per
    second. None: there are no tokens or there is no duration.
    """
    counts, usage = metrics_of(records), dict.fromkeys(_USAGE, 0)
    for record in _ended(records, EffectType.LLM_CALL):
        found = _object(_object(record.get("result")).get("usage"))
        told = {name: _first_number(found, names) for name, names in _USAGE.items()}
        told["total_tokens"] = told["total_tokens"] or told["input_tokens"] + told["output_tokens"]
        usage = {name: usage[name] + count for name, count in told.items()}
    times = [_instant(one.get(name)) for one in records for name in ("started_at", "ended_at")]
    known = sorted(filter(None, times))
    took = (duration_ms(known[0], known[-1]) if known else None) or 0.0
    return {
        "duration_ms": int(took),
        "llm_calls": counts["llm_calls"],
        "tool_calls": counts["tool_calls"],
        "usage": usage,
        "tok_s": usage["total_tokens"] * 1000 / took if took and usage["total_tokens"] else None,
    }


def duration_ms(begun: Any, ended: Any) -> float | None:
    """Return the milliseconds between two instants, at least 0. None: one of them is not an instant."""
    known = [normalize_utc_iso(one) for one in (begun, ended)]
    if None in known:
        return None
    first, last = (datetime.fromisoformat(str(one)) for one in known)
    return round(max(0.0, (last - first).total_seconds() * 1000), 2)


def _turn(source: HistorySource, run: RunState) -> dict[str, Any]:
    context = _object(source.plain(run, run.vars.get("context")))
    messages = source.plain(run, context.get("messages"))
    asked, noted = _asked(source, run, context, messages)
    envelope = _ENVELOPE.match(asked)
    if envelope is not None:
        noted = _metadata(envelope[1]) | noted
    answer, about = _answered(source, run)
    tree = source.tree(run)
    attachments = source.plain(run, context.get("attachments"))
    artifacts = {row["artifact_id"]: row for one in tree for row in source.artifacts_of(one)}
    return {
        "run_id": run.run_id,
        "workflow_id": run.workflow_id,
        "kind": "chat" if isinstance(messages, list) else "run",
        "status": RunStatus(run.status).value,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "prompt": asked[envelope.end() if envelope else 0 :].strip() or None,
        "prompt_verbatim": asked if envelope else None,
        "prompt_metadata": noted or None,
        "attachments": [*_objects(attachments)],
        "answer": answer,
        "answer_meta": about,
        "stats": stats_of([record for one in tree for record in source.records(one)]),
        "artifacts": [*artifacts.values()],
    }


def _asked(
    source: HistorySource, run: RunState, context: dict[str, Any], messages: Any
) -> tuple[str, dict[str, Any]]:
    """Return the question of a run and the metadata of its message. The last message of the user is taken.

    Vars with a question come before messages.
    """
    told = [run.vars.get(name) for name in _ASKED] + [context.get(name) for name in _ASKED[1:]]
    for one in told:
        text = _text(source.plain(run, one))
        if text:
            return text, {}
    for one in reversed(messages if isinstance(messages, list) else []):
        message = _object(source.plain(run, one))
        if message.get("role") != "user":
            continue
        text = _text(source.plain(run, message.get("content")))
        if text:
            about = _object(message.get("metadata")).get("runtime_metadata")
            return text, _object(message.get("runtime_metadata") or about)
    return "", {}


def _answered(source: HistorySource, run: RunState) -> tuple[str | None, dict[str, Any] | None]:
    """Return a run's answer: from its output, else the last answer that it gave to the user."""
    output = source.plain(run, run.output)
    if isinstance(output, str) and output.strip():
        return output.strip(), None
    whole = _object(output)
    inner = _object(whole.get("result")) or _object(whole.get("output"))
    for one in (whole, inner):
        for name in _ANSWERED:
            text = _text(source.plain(run, one.get(name)))
            if text:
                return text.strip(), _object(whole.get("meta")) or _object(
                    inner.get("meta")
                ) or None
    for record in reversed([*_ended(source.records(run), EffectType.ANSWER_USER)]):
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


def _ended(records: Iterable[dict[str, Any]], kind: EffectType) -> Iterable[dict[str, Any]]:
    for one in records:
        if (
            one.get("status") == StepStatus.COMPLETED
            and _object(one.get("effect")).get("type") == kind
        ):
            yield one


def _instant(value: Any) -> str:
    return normalize_utc_iso(value) or ""


def _first_number(found: dict[str, Any], names: tuple[str, ...]) -> int:
    numbers = (found.get(name) for name in names)
    return next((one for one in numbers if type(one) is int and one > 0), 0)


def _text(value: Any) -> str:
    return value if isinstance(value, str) and value.strip() else ""


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> Iterable[dict[str, Any]]:
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else ()
