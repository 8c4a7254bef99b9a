"""Translation of one run's session events into AG-UI events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ag_ui.core import (
    BaseEvent,
    CustomEvent,
    Interrupt,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from actors.kernel.json import canonical_json
from actors.sessions.events import SessionEvent

CUSTOM: Final = "callboard."
"""Prefix of custom event names, for events without a type in the protocol. The session event's type follows."""
_UNCHANGED: Final = frozenset(
    {
        "run_queued",
        "run_waiting",
        "run_resumed",
        "attempt_failed",
        "cancel_requested",
        "approval_decided",
    }
)
ANSWER: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "comment": {"type": "string"}},
    "required": ["approved"],
}
"""The JSON schema of an answer to an interrupt."""


class VoidTextEvent(BaseEvent):
    """Internal mark that the text of a message was discarded. It is never sent.

    Attributes:
        message_id: The message.
    """

    type: Any = None
    message_id: str


@dataclass(slots=True)
class KnownCall:
    """A tool call that was sent to the client.

    Attributes:
        name: The tool's name.
        message_id: The message that has the call.
        is_asked: True if the run waits for the client to execute the call.
        is_done: True if the call has a result.
    """

    name: str
    message_id: str
    is_asked: bool = False
    is_done: bool = False


class RunEvents:
    """Translates the session events of one run, in their order, into AG-UI events.

    Attributes:
        calls: The tool calls, by their ids.
        interrupts: The pending approvals, by their ids.
        decided: The outcomes of approvals that are no longer pending, by their ids.
        decided_calls: The tool calls of these approvals, by the approvals' ids.
        usage: Tokens of model calls, by model.
    """

    def __init__(self, run_id: str, subagent: str | None = None) -> None:
        self._run_id, self._subagent = run_id, subagent
        self._texts: dict[str, list[str]] = {}
        self._thoughts: set[str] = set()
        self.calls: dict[str, KnownCall] = {}
        self.interrupts: dict[str, Interrupt] = {}
        self.decided: dict[str, str] = {}
        self.decided_calls: dict[str, str] = {}
        self.usage: dict[str, Counter[str]] = {}

    @property
    def is_speaking(self) -> bool:
        """True while a model's text or reasoning is being streamed."""
        return bool(self._texts or self._thoughts)

    def of(self, event: SessionEvent) -> Iterator[BaseEvent]:
        """Translate a session event into AG-UI events, with its time and its subagent."""
        for made in self._made(event):
            made.timestamp = int(event.at.timestamp() * 1000)
            if self._subagent is not None:
                made.subagent_run_id = self._subagent  # type: ignore[attr-defined]
            yield made

    def _made(self, event: SessionEvent) -> Iterator[BaseEvent]:
        said: Any = event.payload
        match event.type:
            case "text_delta":
                yield from self._text(said["position"], said["text"])
            case "text_snapshot":
                yield from self._whole(said["position"], said["text"])
            case "reasoning_delta":
                yield from self._thought(said["position"], said["text"])
            case "message":
                yield from self._message(event, said)
            case "tool_started" | "tool_finished":
                yield from self._tool(event, said)
            case "approval_requested":
                id_ = said["approval_id"]
                self.interrupts[id_] = self._interrupt(event, said)
            case "approval_decided":
                interrupt = self.interrupts.pop(said["approval_id"], None)
                if interrupt is not None and interrupt.tool_call_id is not None:
                    self.decided_calls[interrupt.id] = interrupt.tool_call_id
                self.decided[said["approval_id"]] = said["status"]
        if event.type in _UNCHANGED:
            yield CustomEvent(name=f"{CUSTOM}{event.type}", value=said)

    def reopened(self) -> Iterator[BaseEvent]:
        """Yield start events of open texts and reasonings, with the texts so far."""
        texts = {position: "".join(pieces) for position, pieces in self._texts.items()}
        thoughts, self._thoughts = self._thoughts, set()
        self._texts.clear()
        for position in sorted(thoughts):
            yield from self._thought(position, "")
        for position, text in texts.items():
            yield from self._text(position, text)

    def close(self) -> Iterator[BaseEvent]:
        """Yield end events of open texts and reasonings."""
        for position in sorted(self._thoughts):
            yield from self._end_thought(position)
        for position in sorted(self._texts):
            yield from self._end_text(position)

    def _id(self, position: str) -> str:
        return f"{self._run_id}:{position}"

    def _text(self, position: str, text: str) -> Iterator[BaseEvent]:
        """Yield a piece of a text, and the start event if it is the first piece."""
        yield from self._end_thought(position)
        id_ = self._id(position)
        if position not in self._texts:
            self._texts[position] = []
            yield TextMessageStartEvent(message_id=id_, role="assistant")
        if text:
            self._texts[position].append(text)  # joined at the end: a sum would copy it each time
            yield TextMessageContentEvent(message_id=id_, delta=text)

    def _whole(self, position: str, text: str) -> Iterator[BaseEvent]:
        """Yield the missing end of a text; the whole text if it does not continue the text that was shown."""
        shown = "".join(self._texts.get(position, ()))
        if not text.startswith(shown):
            yield from self._end_text(position)
            yield VoidTextEvent(message_id=self._id(position))
            shown = ""
        if rest := text[len(shown) :]:
            yield from self._text(position, rest)

    def _end_text(self, position: str) -> Iterator[BaseEvent]:
        if self._texts.pop(position, None) is not None:
            yield TextMessageEndEvent(message_id=self._id(position))

    def _thought(self, position: str, text: str) -> Iterator[BaseEvent]:
        id_ = f"{self._id(position)}:reasoning"
        if position not in self._thoughts:
            self._thoughts.add(position)
            yield ReasoningStartEvent(message_id=id_)
            yield ReasoningMessageStartEvent(message_id=id_, role="reasoning")
        yield ReasoningMessageContentEvent(message_id=id_, delta=text)

    def _end_thought(self, position: str) -> Iterator[BaseEvent]:
        if position in self._thoughts:
            self._thoughts.remove(position)
            id_ = f"{self._id(position)}:reasoning"
            yield ReasoningMessageEndEvent(message_id=id_)
            yield ReasoningEndEvent(message_id=id_)

    def _message(self, event: SessionEvent, said: Mapping[str, Any]) -> Iterator[BaseEvent]:
        """Yield the unsent parts of a message: text and calls of a model, or results of tools."""
        if said["role"] == "assistant":
            position = said.get("position") or event.node_id or str(event.seq)
            self._count(said)
            yield from self._end_thought(position)
            yield from self._whole(position, said["text"])
            yield from self._end_text(position)
            if "stopped" in said:
                value = {"messageId": self._id(position), "stopped": said["stopped"]}
                yield CustomEvent(name=f"{CUSTOM}answer_stopped", value=value)
            for block in said["content"]:
                if block.get("type") == "tool_call":
                    arguments = block.get("invalid_arguments", block.get("arguments"))
                    yield from self._call(
                        str(block.get("id")), str(block.get("name")), arguments, self._id(position)
                    )
        elif said["role"] == "tool":
            for block in said["content"]:
                if block.get("type") == "tool_result":
                    yield from self._result(str(block.get("id")), block.get("text") or "")

    def _count(self, said: Mapping[str, Any]) -> None:
        if used := said.get("usage"):
            numbers = {name: n for name, n in used.items() if isinstance(n, int)}
            self.usage.setdefault(str(said.get("model")), Counter()).update(numbers)

    def _call(self, id_: str, name: str, arguments: object, message: str) -> Iterator[BaseEvent]:
        self.calls[id_] = KnownCall(name, message)
        text = arguments if isinstance(arguments, str) else canonical_json(arguments or {})
        yield ToolCallStartEvent(tool_call_id=id_, tool_call_name=name, parent_message_id=message)
        yield ToolCallArgsEvent(tool_call_id=id_, delta=text)
        yield ToolCallEndEvent(tool_call_id=id_)

    def _tool(self, event: SessionEvent, said: Mapping[str, Any]) -> Iterator[BaseEvent]:
        """Yield a tool call that no model made, or a tool's result."""
        name, id_ = said["name"], event.tool_call_id
        if event.type == "tool_started":
            if id_ not in self.calls:
                message = self._id(str(event.seq))
                id_ = id_ or message
                yield from self._call(id_, name, said.get("arguments"), message)
            self.calls[id_].is_asked = said.get("client", False)
            return
        if id_ is None:
            ours = self._id("")
            own = (one for one, call in self.calls.items() if not call.is_done)
            id_ = next((one for one in own if one.startswith(ours)), "")
        yield from self._result(id_, _text_of(said["result"]))

    def _result(self, call_id: str, text: str) -> Iterator[BaseEvent]:
        call = self.calls.get(call_id)
        if call is not None and not call.is_done:
            call.is_done = True
            id_ = f"{call.message_id}:{call_id}"
            yield ToolCallResultEvent(message_id=id_, tool_call_id=call_id, content=text)

    def _interrupt(self, event: SessionEvent, said: Mapping[str, Any]) -> Interrupt:
        call = event.tool_call_id
        return Interrupt(
            id=said["approval_id"],
            reason="confirmation" if call is None else "tool_call",
            message=said["what"],
            tool_call_id=call,
            response_schema=ANSWER,
            expires_at=said.get("expires_at"),
            subagent_run_id=self._subagent,
            metadata={"callboard": {"args": said["args"]}},
        )


def _text_of(result: object) -> str:
    """Return a tool's result as the text that the model reads."""
    data = result if isinstance(result, dict) else {}
    text = data.get("text") or data.get("message")
    if isinstance(text, str) and text:
        return text
    found = data.get("structured") if "structured" in data else result
    return "" if found is None else canonical_json(found)
