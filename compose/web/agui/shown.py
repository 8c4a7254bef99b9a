"""The messages that a client shows: those of its input, and those that a stream has sent as events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ag_ui.core import (
    AssistantMessage,
    BaseEvent,
    FunctionCall,
    Message,
    MessagesSnapshotEvent,
    TextMessageContentEvent,
    TextMessageStartEvent,
    ToolCall,
    ToolCallArgsEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
)


class ShownMessages:
    """A client's messages.

    An event of the protocol cannot withdraw a text. Instead, a snapshot replaces all messages.

    Args:
        messages: The messages of the client's input.
    """

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self._messages = {one.id: one for one in messages}
        self._calls: dict[str, ToolCall] = {}
        self._pieces: dict[str, list[str]] = {}
        """Texts that are not in their messages yet, by id: a sum would copy a text with each piece."""

    @property
    def messages(self) -> list[Message]:
        """The messages, in order."""
        for id_, pieces in self._pieces.items():
            if isinstance(found := self._messages.get(id_), AssistantMessage):
                found.content = "".join((found.content or "", *pieces))
        self._pieces.clear()
        return [*self._messages.values()]

    def note(self, event: BaseEvent) -> None:
        """Apply an event that is sent to the client."""
        match event:
            case TextMessageStartEvent():
                self._assistant(event.message_id, event.subagent_run_id)
            case TextMessageContentEvent():
                self._assistant(event.message_id, event.subagent_run_id)
                self._pieces.setdefault(event.message_id, []).append(event.delta)
            case ToolCallStartEvent(parent_message_id=str(parent)):
                message = self._assistant(parent, event.subagent_run_id)
                function = FunctionCall(name=event.tool_call_name, arguments="")
                call = self._calls[event.tool_call_id] = ToolCall(
                    id=event.tool_call_id, function=function
                )
                message.tool_calls = [*(message.tool_calls or ()), call]
            case ToolCallArgsEvent() if event.tool_call_id in self._calls:
                self._calls[event.tool_call_id].function.arguments += event.delta
            case ToolCallResultEvent():
                self._messages[event.message_id] = ToolMessage(
                    id=event.message_id,
                    tool_call_id=event.tool_call_id,
                    content=event.content,
                    subagent_run_id=event.subagent_run_id,
                )
            case _:
                pass

    def _assistant(self, id_: str, subagent: str | None) -> AssistantMessage:
        found = self._messages.get(id_)
        if not isinstance(found, AssistantMessage):
            found = AssistantMessage(id=id_, subagent_run_id=subagent)
            self._messages[id_] = found
        return found

    def without(self, is_gone: Callable[[str], bool]) -> MessagesSnapshotEvent | None:
        """Drop the messages with matching ids; return a snapshot of the others, or None if no id matches."""
        gone = [id_ for id_ in self._messages if is_gone(id_)]
        for id_ in gone:
            del self._messages[id_]
            self._pieces.pop(id_, None)
        return MessagesSnapshotEvent(messages=self.messages) if gone else None
