"""Session events for tests, and the rules that clients of the protocol hold a stream to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors._sessions.events import EVENTS, SessionEvent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import BaseModel

ROOT = "0" * 32
CHILD = "c" * 32


def session_event(
    type_: str, payload: dict[str, Any], *, run: str = ROOT, **more: Any
) -> SessionEvent:
    """An event of a session."""
    event = {
        "session_id": "s",
        "run_id": run,
        "agent_id": "talk/s",
        "at": "2026-01-01T00:00:00Z",
        "type": type_,
        "payload": payload,
        **more,
    }
    return EVENTS.validate_python(event)


def piece(text: str, position: str = "0", *, attempt: int = 1, **more: Any) -> SessionEvent:
    """A piece of an answer."""
    return session_event(
        "text_delta", {"text": text, "attempt": attempt, "position": position}, **more
    )


def answer(
    text: str = "", *calls: tuple[str, str, Any], position: str = "0", **more: Any
) -> SessionEvent:
    """An answer, with calls of tools: id, name and arguments."""
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    content += [
        {"type": "tool_call", "id": id_, "name": name, "arguments": args}
        for id_, name, args in calls
    ]
    usage = {"input": 5, "cached": 2, "output": 3, "reasoning": 1, "cost_usd": None}
    payload = {"role": "assistant", "text": text, "content": content, "model": "m", "usage": usage}
    return session_event("message", {**payload, "position": position}, **more)


def approval(id_: str, call: str | None = None, **more: Any) -> SessionEvent:
    """A request for a person's approval."""
    payload = {"approval_id": id_, "what": "tool pay", "args": {"amount": 5}}
    return session_event("approval_requested", payload, tool_call_id=call, **more)


def dumped(events: Iterable[BaseModel]) -> list[dict[str, Any]]:
    """Events or messages of AG-UI as JSON, without their instants."""
    lines = [event.model_dump(mode="json", by_alias=True) for event in events]
    return [{key: value for key, value in line.items() if key != "timestamp"} for line in lines]


def check(events: list[dict[str, Any]]) -> None:
    """Hold a stream to the rules: begun before it goes on, ended once, all ended before the run."""
    opened: set[tuple[str, str]] = set()
    for event in events:
        kind, _, step = event["type"].rpartition("_")
        key = next(
            (event[name] for name in ("toolCallId", "messageId", "subagentRunId") if name in event),
            "",
        )
        if step in ("START", "STARTED") and kind != "RUN":
            assert (kind, key) not in opened, event
            opened.add((kind, key))
        elif step in ("CONTENT", "ARGS"):
            assert (kind.removesuffix("_ARGS"), key) in opened, event
        elif step in ("END", "FINISHED", "ERROR") and kind != "RUN":
            assert (kind, key) in opened, event
            opened.remove((kind, key))
        elif event["type"] == "RUN_FINISHED":
            assert not opened, opened
