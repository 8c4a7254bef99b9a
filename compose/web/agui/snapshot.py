"""The messages of a session, in the form of the protocol.

The earlier events of a session's runs, read from their logs: questions, and pending answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ag_ui.core import (
    AssistantMessage,
    FunctionCall,
    Message,
    MessagesSnapshotEvent,
    ToolCall,
    ToolMessage,
)
from ag_ui.core import UserMessage as UserInput
from pydantic import TypeAdapter

from actors.kernel.agent.message import ContentBlock
from actors.kernel.agent.transcript import Turn
from actors.kernel.json import canonical_json
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.rows import RunRow
from actors.sessions.events import SessionEvent
from actors.sessions.translation import RunTranslator
from compose.web.agui.events import RunTree
from compose.web.endpoint import FoundSession, WebCall
from compose.web.resources.readers import feed_of_run
from compose.web.resources.runs import OPEN

MOST: Final = 1_000
"""Maximum number of messages of a snapshot: the last ones."""
_USER: Final = TypeAdapter(UserInput)
_MEDIA: Final = {"image": "image", "audio": "audio", "video": "video", "file": "document"}


def snapshot_of(turns: Sequence[Turn], *, open_run: str | None) -> MessagesSnapshotEvent:
    """Return turns as messages. Of an open run it has only the user's message: events carry the others."""
    shown = [one for one in turns[-MOST:] if one.run_id != open_run or one.message.role == "user"]
    return MessagesSnapshotEvent(messages=[message for turn in shown for message in _of(turn)])


def _of(turn: Turn) -> Iterator[Message]:
    message = turn.message
    if message.role == "assistant":
        calls = [_call(block) for block in message.content if block.type == "tool_call"]
        yield AssistantMessage(
            id=turn.id, content=message.text or None, tool_calls=calls or None, name=message.name
        )
    elif message.role == "user":
        yield _user(turn)
    elif message.role == "tool":
        for n, block in enumerate(one for one in message.content if one.type == "tool_result"):
            call = str((block.model_extra or {}).get("id"))
            yield ToolMessage(id=f"{turn.id}:{n}", tool_call_id=call, content=block.text or "")


def _call(block: ContentBlock) -> ToolCall:
    data: dict[str, Any] = block.model_extra or {}
    arguments = data.get("invalid_arguments", data.get("arguments"))
    text = arguments if isinstance(arguments, str) else canonical_json(arguments or {})
    function = FunctionCall(name=str(data.get("name")), arguments=text)
    return ToolCall(id=str(data.get("id")), function=function)


def _user(turn: Turn) -> UserInput:
    message = turn.message
    if all(one.type == "text" for one in message.content):
        return UserInput(id=turn.id, content=message.text)
    parts = [part for part in map(_part, message.content) if part is not None]
    return _USER.validate_python({"id": turn.id, "content": parts})


def _part(block: ContentBlock) -> dict[str, Any] | None:
    data: dict[str, Any] = block.model_extra or {}
    if block.type == "text":
        return {"type": "text", "text": block.text or ""}
    kind, mime = _MEDIA.get(block.type), data.get("media_type")
    if kind is not None and isinstance(data.get("url"), str):
        return {"type": kind, "source": {"type": "url", "value": data["url"], "mime_type": mime}}
    if kind is not None and isinstance(data.get("data"), str) and isinstance(mime, str):
        return {"type": kind, "source": {"type": "data", "value": data["data"], "mime_type": mime}}
    return None


MAX_OPEN: Final = 100
"""Maximum number of open runs of a session that are read."""
MAX_ENDED: Final = 10
"""Maximum number of ended runs, newest first, that are searched for an answer that was delivered before."""


async def open_runs_of(call: WebCall, found: FoundSession) -> list[RunRow]:
    """Return the open runs of a session, in the order of their arrival."""
    if not found.row.open_runs:
        return []
    rows = await call.runtime.store.lists.runs(agent=found.agent, status=OPEN, limit=MAX_OPEN)
    return sorted(rows, key=lambda row: row.arrival)


async def last_runs_of(call: WebCall, found: FoundSession) -> list[RunRow]:
    """Return the open runs of a session in the order of their arrival, then the newest other runs."""
    opened = await open_runs_of(call, found)
    newest = await call.runtime.store.lists.runs(agent=found.agent, limit=MAX_OPEN)
    known = {row.run_id for row in opened}
    return [*opened, *[row for row in newest if row.run_id not in known][:MAX_ENDED]]


async def tree_of(call: WebCall, found: FoundSession, run_id: RunId) -> RunTree:
    """Return the tree of a run and its descendants, with all events up to now."""
    tree = RunTree(run_id)
    feed = await feed_of_run(call, found.agent, run_id, None, live=False)
    below = [event async for event in feed.past() if _told(tree, event)]
    while below:
        said: Any = below.pop(0).payload
        child, agent = RunId(said["child"]), AgentId.parse(said["agent"])
        names = call.runtime.hidden_names
        translator = RunTranslator(found.agent.key, child, agent, names)
        async for entry in call.runtime.entries(child):
            below += [event for event in await translator.of(entry) if _told(tree, event)]
    return tree


def _told(tree: RunTree, event: SessionEvent) -> bool:
    """Add an event to the tree; return True if it is the start of a child run."""
    tree.of(event)
    return event.type == "child_started"
