"""The effects MEMORY_COMPACT and MEMORY_REHYDRATE: old messages are archived, and inserted again.

The artifact of archived messages is stored before a model is asked for a summary. The record of the effect's
result removes the messages from the context, and adds the summary and its span. If the process dies before that
record is durable, the context still has all messages.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Any, Final

from actors._kernel.runtime.ids import derive_id
from actors._kernel.workflow.durable import json_digest
from actors._kernel.workflow.effects import Effect, EffectOutcome, EffectType, StepStatus
from actors._workflow.handlers import Handler
from actors._workflow.machine.attempts import sound
from actors._workflow.machine.plans import with_attempt_facts
from actors._workflow.machine.variables import RUNTIME, namespace
from actors._workflow.notes.messages import (
    PLACEMENTS,
    CompactionSplit,
    Message,
    insert_messages,
    normalize_messages,
    note_message,
    span_metadata_from_messages,
    split_for_compaction,
    summary_message,
    text_of_messages,
    without_known,
)
from actors._workflow.notes.spans import (
    CONVERSATION,
    NOTE,
    PREVIEW,
    SPAN_ID,
    SPANS_PATH,
    Archive,
    MemoryRequest,
    Span,
    span_at,
    spans_of,
)

RECENT: Final = 6
MODES: Final = {
    "standard": "Keep facts, decisions, names, numbers and open questions.",
    "light": "Keep as much detail as you can; leave out repetitions only.",
    "heavy": "Keep the few facts and decisions without which nobody could go on.",
}
_PROMPT: Final = (
    "Summarize this conversation, so that it can go on with the summary in its place. {how}{focus}"
)
_TEXTS: Final = ("summary", "content", "text", "response")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """Archived messages that need a summary.

    Attributes:
        request: The request.
        split: The context in three parts.
        span: The span of the older messages.
    """

    request: MemoryRequest
    split: CompactionSplit
    span: Span

    def model_request(self) -> Effect:
        """Return the LLM_CALL for the summary. Its tokens do not count for the run's limits."""
        focus = self.request.payload.text("focus")
        how = MODES[self.request.payload.choice("compression_mode", *MODES)]
        ask = _PROMPT.format(how=how, focus=f" Above all: {focus}." if focus else "")
        text = text_of_messages(self.split.older_messages)
        payload = {"system_prompt": ask, "prompt": f"{text}\n\n---\n{ask}", **self._route()}
        return with_attempt_facts(Effect(EffectType.LLM_CALL, payload), self.request.open_step)

    def summarizer_request(self) -> Effect:
        """Return the effect for the handler of `summarizing`."""
        payload: dict[str, Any] = {"messages": self.split.older_messages, "preserve_recent": 0}
        payload["focus"] = self.request.payload.text("focus") or None
        payload["compression_mode"] = self.request.payload.choice("compression_mode", *MODES)
        return Effect(EffectType.MEMORY_COMPACT, payload | {"route": self._route()})

    def _route(self) -> dict[str, str]:
        """Return the provider and model of the run, if it has its own."""
        runtime_vars = namespace(self.request.run.vars, RUNTIME)
        route = {name: runtime_vars.get(name) for name in ("provider", "model")}
        return {name: value for name, value in route.items() if isinstance(value, str) and value}

    def outcome(self, answer: Any) -> EffectOutcome:
        """Return the outcome after the summary was made or failed.

        Without a summary the run's vars do not change.
        """
        outcome = sound(answer, self.request.open_step)
        if outcome.status == StepStatus.FAILED:
            return replace(outcome, error=f"summary: {outcome.error}")
        summary = _summary_in(outcome.result)
        if outcome.status != StepStatus.COMPLETED or not summary:
            problem = (
                "the answer has no text (summary, content, text or response), or it is not complete"
            )
            return EffectOutcome.failed(
                f"summary: {problem}. Give chat_summarizer", retryable=False
            )
        span_id, created_at = self.span[SPAN_ID], self.span["created_at"]
        message = summary_message(span_id, summary, created_at)
        messages = [*self.split.system_messages, message, *self.split.recent_messages]
        span = {**self.span, "summary_preview": summary[:PREVIEW]}
        changes = {
            "set": [self.request.archive.context_change(self.request.run, messages)],
            "put": [[SPANS_PATH, SPAN_ID, span]],
        }
        details = outcome.result if isinstance(outcome.result, dict) else {}
        meta: dict[str, Any] = {"span_id": span_id, "compacted": len(self.split.older_messages)}
        meta |= {"preserved": len(self.split.recent_messages), **span}
        meta |= {name: details[name] for name in ("key_points", "confidence") if name in details}
        return self.request.succeed(message["content"], meta, changes=changes)


def compaction_of(request: MemoryRequest) -> Compaction | None:
    """Archive the older messages of a run's context; return None if there are none.

    The artifact's id is derived from the effect's idempotency key and the context.
    """
    run, payload, key = request.run, request.payload, request.open_step.key
    payload.choice("compression_mode", *MODES)
    context = request.archive.context_of(run)
    messages = normalize_messages(
        context, now_iso=lambda: request.at, new_message_id=lambda index: derive_id(key, index)
    )
    split = split_for_compaction(messages, preserve_recent=payload.count("preserve_recent", RECENT))
    if not split.older_messages:
        return None
    content = {
        "messages": split.older_messages,
        "span": span_metadata_from_messages(split.older_messages),
        "created_at": request.at,
        "session_id": run.session_id,
    }
    artifact_id, tags = derive_id(key, json_digest(context)), {"kind": CONVERSATION}
    stored_content = request.archive.store_once(artifact_id, content, run_id=run.run_id, tags=tags)
    span: Span = {
        "kind": CONVERSATION,
        SPAN_ID: artifact_id,
        "created_at": stored_content["created_at"],
    }
    span |= stored_content["span"] | ({"created_by": run.actor_id} if run.actor_id else {})
    # An execution before a crash may have stored them with other ids and instants: the artifact's count.
    split = replace(split, older_messages=stored_content["messages"])
    return Compaction(request=request, split=split, span=span)


def _summary_in(result: Any) -> str:
    candidates = [result.get(name) for name in _TEXTS] if isinstance(result, dict) else [result]
    return next((text.strip() for text in candidates if isinstance(text, str) and text.strip()), "")


def summarizing(summarizer: Any) -> Handler:
    """Return a handler that calls a summarizer.

    Args:
        summarizer: An object with ``summarize_chat_history(messages, preserve_recent=, focus=,
            compression_mode=)``; it also gets ``provider`` and ``model`` if it has these parameters. It returns
            a dict, or an object with attributes, with ``summary`` and optionally ``key_points`` and
            ``confidence``.
    """
    call = summarizer.summarize_chat_history
    parameters = inspect.signature(call).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def handle(_run: Any, effect: Effect) -> EffectOutcome:
        payload = {name: value for name, value in effect.payload.items() if name != "messages"}
        route = dict.fromkeys(("provider", "model")) | payload.pop("route")
        extra = {name: value for name, value in route.items() if takes_all or name in parameters}
        answer = call(effect.payload["messages"], **payload, **extra)
        data = answer if isinstance(answer, dict) else None
        names = ("summary", "key_points", "confidence")
        values = [
            (name, data.get(name) if data is not None else getattr(answer, name, None))
            for name in names
        ]
        return EffectOutcome.completed({name: value for name, value in values if value is not None})

    return handle


UNKNOWN = "unknown"


def rehydrate_spans(request: MemoryRequest) -> EffectOutcome:
    """Insert the messages of spans into the context of the run, each message once, in the order of the spans.

    A span that does not exist is reported in ``artifacts``; the other spans are inserted.
    """
    run, payload, archive = request.run, request.payload, request.archive
    span_ids = payload.names("span_ids", "span_id")
    placement, max_messages = (
        payload.choice("placement", *PLACEMENTS),
        payload.count("max_messages", 0),
    )
    spans = [
        s for owner in request.memories.owners_to_search(payload) for s in spans_of(owner.vars)
    ]
    context = archive.context_of(run) if span_ids else []
    rows: list[dict[str, Any]] = []
    pieces: list[tuple[str, list[Message]]] = []
    present = [*context]
    for name in span_ids:
        span = span_at(spans, name)
        span_id = str(span[SPAN_ID] if span else name)
        kind, messages = content_of(archive, span_id)
        remaining = max_messages - (len(present) - len(context)) if max_messages else len(messages)
        new_messages = without_known(messages, present)[: max(0, remaining)]
        present += new_messages
        pieces.append((span_id, new_messages))
        row: dict[str, Any] = {SPAN_ID: span_id, "kind": kind, "inserted": len(new_messages)}
        row |= {"skipped": len(messages) - len(new_messages)}
        rows.append(row | ({"error": "there is no such memory"} if kind == UNKNOWN else {}))
    counts = {name: sum(row[name] for row in rows) for name in ("inserted", "skipped")}
    new_context = insert_messages(context, pieces, placement)
    changes = {"set": [archive.context_change(run, new_context)]} if counts["inserted"] else None
    return EffectOutcome.completed(counts | {"artifacts": rows}, changes=changes)


def content_of(archive: Archive, span_id: str) -> tuple[str, list[Message]]:
    """Return the kind of a memory artifact, and its messages. A note is one message."""
    content = archive.load(span_id) or {}
    messages, note = content.get("messages"), content.get("note")
    if isinstance(messages, list):
        return CONVERSATION, [m for m in messages if isinstance(m, dict)]
    if isinstance(note, str):
        return NOTE, [note_message(span_id, note, content.get("created_at"))]
    return UNKNOWN, []
