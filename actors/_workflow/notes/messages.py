"""The messages of a context: their ids, the choice of those to archive, and the places of restored ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from actors._kernel.json import canonical_json
from actors._kernel.workflow.durable import new_id

SUMMARY: Final = "memory_summary"
"""The kind in the metadata of a message that is the summary of a span."""
AFTER_SUMMARY: Final = "after_summary"
AFTER_SYSTEM: Final = "after_system"
AT_END: Final = "end"
PLACEMENTS: Final = (AFTER_SUMMARY, AFTER_SYSTEM, AT_END)

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CompactionSplit:
    """A context in three parts, each in its order.

    Attributes:
        system_messages: The messages of role ``system``, including summaries. They stay.
        older_messages: The messages that are archived.
        recent_messages: The last messages. They stay.
    """

    system_messages: list[Message]
    older_messages: list[Message]
    recent_messages: list[Message]


def normalize_messages(
    messages: Any,
    *,
    now_iso: Callable[[], str],
    new_message_id: Callable[[int], str] = lambda _index: new_id(),
) -> list[Message]:
    """Return copies of messages. Each copy has a ``timestamp`` and ``metadata.message_id``.

    Args:
        messages: The messages. Items that are not objects are left out.
        now_iso: Function that returns the instant for messages without ``timestamp``.
        new_message_id: Function that returns the id for a message without one, from its place.
    """
    copies = []
    for index, message in enumerate(messages if isinstance(messages, list) else []):
        if not isinstance(message, dict):
            continue
        metadata = metadata_of(message)
        metadata = {**metadata, "message_id": metadata.get("message_id") or new_message_id(index)}
        copies.append(
            {**message, "timestamp": message.get("timestamp") or now_iso(), "metadata": metadata}
        )
    return copies


def split_for_compaction(
    messages: Sequence[Message], *, preserve_recent: int = 6
) -> CompactionSplit:
    """Divide a context into three parts. The recent part has at least `preserve_recent` messages.

    It does not begin with a tool result, so that a tool's call and result stay together.
    """
    system = [m for m in messages if m.get("role") == "system"]
    others = [m for m in messages if m.get("role") != "system"]
    border = max(0, len(others) - max(0, preserve_recent))
    while 0 < border < len(others) and others[border].get("role") == "tool":
        border -= 1
    return CompactionSplit(system, others[:border], others[border:])


def span_metadata_from_messages(messages: Sequence[Message]) -> dict[str, Any]:
    """Return the number of messages, and the instants and ids of the first and the last one."""
    first, last = (messages[0], messages[-1]) if messages else ({}, {})
    return {
        "from_timestamp": first.get("timestamp"),
        "to_timestamp": last.get("timestamp"),
        "from_message_id": metadata_of(first).get("message_id"),
        "to_message_id": metadata_of(last).get("message_id"),
        "message_count": len(messages),
    }


def metadata_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a message, or an empty object if it has none."""
    metadata = message.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def summary_message(span_id: str, summary: str, at: str) -> Message:
    """Return the message that replaces archived messages."""
    metadata = {
        "kind": SUMMARY,
        "source_artifact_id": span_id,
        "message_id": f"memory_summary:{span_id}",
    }
    content = f"[SUMMARY span_id={span_id}]: {summary}"
    return {"role": "system", "content": content, "timestamp": at, "metadata": metadata}


def note_message(span_id: str, note: str, at: str | None) -> Message:
    """Return the message that shows a note."""
    metadata = {"kind": "memory_note", "source_artifact_id": span_id}
    metadata["message_id"] = f"memory_note:{span_id}"
    content = f"[MEMORY NOTE]\n{note}"
    return {"role": "system", "content": content, "timestamp": at, "metadata": metadata}


def summaries_in(messages: Iterable[Message]) -> dict[str, str]:
    """Return the texts of summaries, by the id of the artifact with the archived messages."""
    return {
        str(metadata_of(m)["source_artifact_id"]): str(m.get("content") or "")
        for m in messages
        if metadata_of(m).get("kind") == SUMMARY and metadata_of(m).get("source_artifact_id")
    }


def text_of_messages(messages: Iterable[Message]) -> str:
    """Return messages as text, each on at least one line."""
    return "\n".join(f"{m.get('role') or 'user'}: {content_of(m)}" for m in messages)


def content_of(message: Mapping[str, Any]) -> str:
    """Return the content of a message as text."""
    content = message.get("content")
    parts = content if isinstance(content, str) else canonical_json(content) if content else ""
    calls = message.get("tool_calls")
    return f"{parts} {canonical_json(calls)}".strip() if calls else parts


def identity_of(message: Message) -> str:
    """Return the id of a message. If it has none, return its role, content and timestamp as text."""
    name = metadata_of(message).get("message_id")
    if isinstance(name, str) and name:
        return f"id:{name}"
    return canonical_json([message.get(name) for name in ("role", "content", "timestamp")])


def without_known(messages: Iterable[Message], present: Iterable[Message]) -> list[Message]:
    """Return the messages that are not known, each once."""
    present_ids = {identity_of(message) for message in present}
    new_messages = []
    for message in messages:
        identity = identity_of(message)
        if identity not in present_ids:
            present_ids.add(identity)
            new_messages.append(message)
    return new_messages


def insert_messages(
    context: Sequence[Message], pieces: Iterable[tuple[str, Sequence[Message]]], placement: str
) -> list[Message]:
    """Return a context with messages inserted. Pieces for the same place keep their order.

    Args:
        context: The messages before the insertion.
        pieces: The id of an artifact and the messages from it, for each piece.
        placement: ``after_summary``: after the summary of their artifact, or as ``after_system`` if there is
            none. ``after_system``: after the system messages at the start. ``end``: at the end.
    """
    after_system = next(
        (index for index, message in enumerate(context) if message.get("role") != "system"),
        len(context),
    )
    default_index = len(context) if placement == AT_END else after_system
    indexes_by_span_id: dict[str, int] = {}
    if placement == AFTER_SUMMARY:
        for index, message in enumerate(context):
            if metadata_of(message).get("kind") == SUMMARY:
                indexes_by_span_id[str(metadata_of(message).get("source_artifact_id"))] = index + 1
    messages_by_index: dict[int, list[Message]] = {}
    for span_id, messages in pieces:
        messages_by_index.setdefault(indexes_by_span_id.get(span_id, default_index), []).extend(
            messages
        )
    new_context: list[Message] = []
    for index in range(len(context) + 1):
        new_context += [*messages_by_index.get(index, ()), *context[index : index + 1]]
    return new_context
