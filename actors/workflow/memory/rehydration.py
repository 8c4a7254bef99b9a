"""The effect MEMORY_REHYDRATE: archived messages and notes are inserted into the context again."""

from __future__ import annotations

from typing import Any

from actors.kernel.workflow.effects import EffectOutcome
from actors.workflow.memory.archive import Archive
from actors.workflow.memory.messages import PLACEMENTS, Message, note_message, placed, without_known
from actors.workflow.memory.requests import MemoryRequest
from actors.workflow.memory.spans import CONVERSATION, NOTE, SPAN_ID, span_at, spans_of

UNKNOWN = "unknown"


def rehydrated(request: MemoryRequest) -> EffectOutcome:
    """Insert the messages of spans into the context of the run, each message once, in the order of the spans.

    A span that does not exist is reported in ``artifacts``; the other spans are inserted.
    """
    run, payload, archive = request.run, request.payload, request.archive
    wanted = payload.names("span_ids", "span_id")
    placement, most = payload.choice("placement", *PLACEMENTS), payload.count("max_messages", 0)
    spans = [one for owner in request.memories.some(payload) for one in spans_of(owner.vars)]
    context = archive.context_of(run) if wanted else []
    rows: list[dict[str, Any]] = []
    pieces: list[tuple[str, list[Message]]] = []
    known = [*context]
    for name in wanted:
        found = span_at(spans, name)
        span_id = str(found[SPAN_ID] if found else name)
        kind, messages = content_of(archive, span_id)
        room = most - (len(known) - len(context)) if most else len(messages)
        fresh = without_known(messages, known)[: max(0, room)]
        known += fresh
        pieces.append((span_id, fresh))
        row: dict[str, Any] = {SPAN_ID: span_id, "kind": kind, "inserted": len(fresh)}
        row |= {"skipped": len(messages) - len(fresh)}
        rows.append(row | ({"error": "there is no such memory"} if kind == UNKNOWN else {}))
    counts = {name: sum(one[name] for one in rows) for name in ("inserted", "skipped")}
    after = placed(context, pieces, placement)
    changes = {"set": [archive.changed_context(run, after)]} if counts["inserted"] else None
    return EffectOutcome.completed(counts | {"artifacts": rows}, changes=changes)


def content_of(archive: Archive, span_id: str) -> tuple[str, list[Message]]:
    """Return the kind of a memory artifact, and its messages. A note is one message."""
    found = archive.load(span_id) or {}
    messages, note = found.get("messages"), found.get("note")
    if isinstance(messages, list):
        return CONVERSATION, [one for one in messages if isinstance(one, dict)]
    if isinstance(note, str):
        return NOTE, [note_message(span_id, note, found.get("created_at"))]
    return UNKNOWN, []
