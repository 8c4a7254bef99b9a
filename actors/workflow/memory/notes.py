"""The effects MEMORY_NOTE and MEMORY_TAG."""

from __future__ import annotations

from typing import Any

from actors.kernel.runtime.ids import derive_id
from actors.kernel.workflow.effects import EffectOutcome
from actors.workflow.memory.messages import PLACEMENTS, note_message, placed, without_known
from actors.workflow.memory.payloads import Payload
from actors.workflow.memory.requests import MemoryRequest
from actors.workflow.memory.spans import NOTE, PREVIEW, SPAN_ID, Span, span_at, spans_of, tagged


def noted(request: MemoryRequest) -> EffectOutcome:
    """Store a note as an artifact, and its span in the index.

    The artifact's id is derived from the effect's idempotency key, so a second execution stores no second note.
    """
    run, payload, archive = request.run, request.payload, request.archive
    note, owner = payload.text("note"), request.memories.one(payload)
    if not note:
        raise payload.wrong("note", "is nothing to keep")
    span_id, tags = derive_id(request.opened.key, NOTE), payload.tags()
    where = payload.text("location")
    content = {
        "note": note,
        "sources": _sources(payload, run.run_id),
        "created_at": request.at,
        "tags": tags,
        "location": where or None,
        "created_by": run.actor_id,
        "session_id": run.session_id,
    }
    kept = archive.kept(span_id, content, run_id=owner.run_id, tags={**tags, "kind": NOTE})
    span = _span(span_id, kept)
    meta: dict[str, Any] = {"span_id": span_id, **span}
    changes: dict[str, Any] = {**request.memories.put(owner, span)}
    if payload.flag("keep_in_context"):
        before = archive.context_of(run)
        fresh = without_known([note_message(span_id, note, kept["created_at"])], before)
        if fresh:
            after = placed(before, [(span_id, fresh)], payload.choice("placement", *PLACEMENTS))
            changes["set"] = [archive.changed_context(run, after)]
        meta["kept_in_context"] = {"inserted": len(fresh), "skipped": 1 - len(fresh)}
    return request.met(f"Noted: span_id={span_id}", meta, changes=changes)


def _sources(payload: Payload, run_id: str) -> dict[str, Any]:
    given = payload.get("sources")
    if not isinstance(given, dict | None):
        raise payload.wrong("sources", "is no object")
    return {"run_id": run_id, "span_ids": [], "message_ids": []} | (given or {})


def _span(span_id: str, kept: dict[str, Any]) -> Span:
    made = kept["created_at"]
    span: Span = {"kind": NOTE, SPAN_ID: span_id, "created_at": made}
    span |= {"from_timestamp": made, "to_timestamp": made, "message_count": 0}
    span["note_preview"] = kept["note"][:PREVIEW]
    more = {name: kept.get(name) for name in ("tags", "location", "created_by")}
    return span | {name: value for name, value in more.items() if value}


def tag(request: MemoryRequest) -> EffectOutcome:
    """Add tags to a span, or replace its tags. The artifact stays as it is."""
    payload = request.payload
    tags, merge = payload.tags(), payload.flag("merge", default=True)
    if not tags and merge:
        raise payload.wrong("tags", "is nothing to add")
    owner, wanted = request.memories.one(payload), payload.get("span_id")
    spans = spans_of(owner.vars)
    found = span_at(spans, wanted)
    if found is None:
        known = f"its index has {len(spans)} spans: list them by memory_query with return='meta'"
        return request.refused(f"there is no span {wanted!r} in run {owner.run_id}; {known}")
    span = tagged(found, tags, merge=merge)
    meta = {"span_id": span[SPAN_ID], "tags": span["tags"]}
    changes = request.memories.put(owner, span)
    return request.met(f"Tagged: span_id={span[SPAN_ID]}", meta, changes=changes)
