"""The messages that a client shows: those that it came with, and those that a stream has made of events."""

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
    """A client's messages. The protocol takes no text back, so that a snapshot has to show all but that.

    Args:
        messages: Those that the client came with.
    """

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self._messages = {one.id: one for one in messages}
        self._calls: dict[str, ToolCall] = {}

    @property
    def messages(self) -> list[Message]:
        """The messages, in order."""
        return [*self._messages.values()]

    def note(self, event: BaseEvent) -> None:
        """Note an event that the client is sent."""
        match event:
            case TextMessageStartEvent():
                self._assistant(event.message_id, event.subagent_run_id)
            case TextMessageContentEvent():
                message = self._assistant(event.message_id, event.subagent_run_id)
                message.content = f"{message.content or ''}{event.delta}"
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
        """Drop the messages with such ids; return the snapshot without them, None if there are none."""
        gone = [id_ for id_ in self._messages if is_gone(id_)]
        for id_ in gone:
            del self._messages[id_]
        return MessagesSnapshotEvent(messages=self.messages) if gone else None
