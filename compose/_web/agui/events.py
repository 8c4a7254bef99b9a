"""Translation of the session events of a run and its descendants into one stream of AG-UI events.

The messages that a client shows are those of its input, and those that a stream has sent as events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ag_ui.core import (
    AssistantMessage,
    BaseEvent,
    CustomEvent,
    FunctionCall,
    Interrupt,
    Message,
    MessagesSnapshotEvent,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedSuccessOutcome,
    SubagentErrorEvent,
    SubagentFinishedEvent,
    SubagentFinishedSuspendedOutcome,
    SubagentStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    TokenUsage,
    ToolCall,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
)

from actors._kernel.json import canonical_json
from actors._sessions.events import SessionEvent
from actors._sessions.run import ENDS, RunPhase

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


class RunTree:
    """Translates session events of a run and its descendants into AG-UI events.

    Args:
        root_id: The run's id.
        messages: The messages that the client shows.
        answered_ids: Ids of interrupts and calls that the client has answered. None of them is pending.

    Attributes:
        subagents: The descendants, by their run ids.
        end: The final phase of the run; None while the run is open.
    """

    def __init__(
        self,
        root_id: str,
        *,
        messages: ShownMessages | None = None,
        answered_ids: Iterable[str] = (),
    ) -> None:
        self._root_id, self._messages = root_id, messages or ShownMessages()
        self._answered_ids = frozenset(answered_ids)
        self._runs: dict[str, RunEvents] = {root_id: RunEvents(root_id)}
        self.subagents: dict[str, Subagent] = {}
        self.end: RunPhase | None = None
        self._result: Any = None

    @property
    def run_ids(self) -> tuple[str, ...]:
        """Ids of the runs, the root first."""
        return (self._root_id, *self.subagents)

    @property
    def calls(self) -> dict[str, KnownCall]:
        """The root's tool calls, by their ids."""
        return self._runs[self._root_id].calls

    @property
    def outcomes(self) -> dict[str, str]:
        """The outcomes of approvals that are no longer pending, by their ids."""
        return {id_: status for run in self._runs.values() for id_, status in run.outcomes.items()}

    def calls_of(self, interrupts: Collection[str]) -> frozenset[str]:
        """Return the ids of the tool calls that these approvals, pending or decided, are about."""
        runs = self._runs.values()
        pending_pairs = (
            (id_, interrupt.tool_call_id)
            for run in runs
            for id_, interrupt in run.interrupts.items()
        )
        decided_pairs = (pair for run in runs for pair in run.decided_calls.items())
        pairs = (*pending_pairs, *decided_pairs)
        return frozenset(
            call_id for id_, call_id in pairs if id_ in interrupts and call_id is not None
        )

    @property
    def answerable_ids(self) -> frozenset[str]:
        """Ids of all questions and tool calls that a client may answer, or has answered."""
        pending_ids = (id_ for run in self._runs.values() for id_ in run.interrupts)
        return frozenset((*pending_ids, *self.outcomes, *self.calls))

    def of(self, event: SessionEvent) -> list[BaseEvent]:
        """Translate a session event into AG-UI events."""
        agui_events: list[BaseEvent] = []
        for agui_event in self._translate(event):
            if isinstance(agui_event, VoidTextEvent):
                message_id = agui_event.message_id
                snapshot = self._messages.without(message_id.__eq__)
                agui_events += [] if snapshot is None else [snapshot]
            else:
                self._messages.note(agui_event)
                agui_events.append(agui_event)
        return agui_events

    def _translate(self, event: SessionEvent) -> Iterator[BaseEvent]:
        run = self._runs.get(event.run_id)
        payload: Any = event.payload
        if run is None:
            return
        yield from run.of(event)
        if event.type == "child_started":
            child_id = payload["child"]
            self._runs[child_id] = RunEvents(child_id, child_id)
            name = str(payload["agent"]).partition("/")[0].rpartition(":")[2]
            self.subagents[child_id] = Subagent(name, event.run_id)
            yield self._start_event(child_id)
        elif event.type == "child_finished":
            yield from self._finish(payload["child"], payload)
        elif event.type in ENDS or event.type == "run_dequeued":
            status = ENDS.get(event.type, "cancelled")
            yield from run.close()
            if event.run_id == self._root_id:
                self.end, self._result = status, payload
            else:
                yield from self._finish(event.run_id, {**payload, "status": status})

    def _start_event(self, child_id: str) -> SubagentStartedEvent:
        subagent = self.subagents[child_id]
        parent_id = None if subagent.parent == self._root_id else subagent.parent
        return SubagentStartedEvent(
            subagent_run_id=child_id, name=subagent.name, parent_subagent_run_id=parent_id
        )

    def _finish(self, child_id: str, payload: Any) -> Iterator[BaseEvent]:
        subagent = self.subagents.get(child_id)
        # The end of a child run is in its own log and in its parent's: the first of them counts.
        if subagent is None or not subagent.is_open:
            return
        # The runs below it end with it, also if their own ends are not read.
        for open_child_id in self._open_children(child_id):
            yield from self._finish(open_child_id, {"status": "cancelled"})
        subagent.is_open = False
        yield from self._runs[child_id].close()
        if payload["status"] == "completed":
            yield SubagentFinishedEvent(subagent_run_id=child_id, result=payload.get("output"))
        else:
            text = _problem_of(payload) or f"{subagent.name} was {payload['status']}"
            yield SubagentErrorEvent(subagent_run_id=child_id, message=text, code=payload["status"])

    def _open_children(self, run_id: str) -> list[str]:
        """Return the open child runs of a run."""
        return [
            id_
            for id_, subagent in self.subagents.items()
            if subagent.is_open and subagent.parent == run_id
        ]

    def pending(self) -> Pending:
        """Return the pending answers, as far as events were read."""
        interrupts = (
            interrupt for run in self._runs.values() for interrupt in run.interrupts.values()
        )
        call_ids = (id_ for id_, call in self.calls.items() if call.is_asked and not call.is_done)
        return Pending(
            tuple(interrupt for interrupt in interrupts if interrupt.id not in self._answered_ids),
            tuple(id_ for id_ in call_ids if id_ not in self._answered_ids),
        )

    def is_idle(self) -> bool:
        """Return True if no run is known to make progress without the pending answers."""
        pending = self.pending()
        pending_calls = {interrupt.tool_call_id for interrupt in pending.interrupts} | {
            *pending.calls
        }
        runs = self._runs.values()
        open_calls = {id_ for run in runs for id_, call in run.calls.items() if not call.is_done}
        if any(run.is_speaking for run in runs) or not open_calls <= pending_calls:
            return False
        return all(
            not subagent.is_open or self._runs[child].interrupts or self._open_children(child)
            for child, subagent in self.subagents.items()
        )

    def reopen(self) -> Iterator[BaseEvent]:
        """Yield start events of open content, for a client that joins now. Token usage is counted from here."""
        for id_, run in self._runs.items():
            run.usage.clear()
            subagent = self.subagents.get(id_)
            if subagent is not None and subagent.is_open:
                yield self._start_event(id_)
            yield from run.reopen()

    def close(self) -> Iterator[BaseEvent]:
        """Yield end events of open content, for a client that leaves now. Open descendants end as suspended."""
        for id_ in reversed(self.run_ids):
            yield from self._runs[id_].close()
            if id_ != self._root_id and self.subagents[id_].is_open:
                interrupt_ids = [*self._runs[id_].interrupts]
                outcome = SubagentFinishedSuspendedOutcome(interrupt_ids=interrupt_ids or None)
                yield SubagentFinishedEvent(subagent_run_id=id_, outcome=outcome)

    def last_event(self, thread_id: str, run_id: str) -> RunFinishedEvent | RunErrorEvent:
        """Return the last event of the stream, for a run that has ended or waits for the client."""
        usage = self._usage() or None
        if self.end == "failed":
            text = _problem_of(self._result) or "the run failed"
            code = (self._result.get("error") or {}).get("type")
            return RunErrorEvent(message=text, code=code, usage=usage)
        outcome: Any = RunFinishedCancelledOutcome()
        pending = self.pending() if self.end is None else Pending()
        if pending.interrupts:
            outcome = RunFinishedInterruptOutcome(interrupts=[*pending.interrupts])
        elif self.end != "cancelled":
            call_ids = [*pending.calls] or None
            outcome = RunFinishedSuccessOutcome(pending_tool_call_ids=call_ids)
        result = self._result.get("output") if self.end == "completed" else None
        return RunFinishedEvent(
            thread_id=thread_id, run_id=run_id, result=result, outcome=outcome, usage=usage
        )

    def _usage(self) -> list[TokenUsage]:
        total: dict[str, Counter[str]] = {}
        for run in self._runs.values():
            for model, tokens in run.usage.items():
                total.setdefault(model, Counter()).update(tokens)
        return [
            TokenUsage(
                model=model,
                input_tokens=tokens["input"],
                output_tokens=tokens["output"],
                total_tokens=tokens["input"] + tokens["output"],
                reasoning_tokens=tokens["reasoning"] or None,
                cached_input_tokens=tokens["cached"] or None,
                cache_write_input_tokens=tokens["cache_written"] or None,
            )
            for model, tokens in total.items()
        ]


class ShownMessages:
    """A client's messages.

    An event of the protocol cannot withdraw a text. Instead, a snapshot replaces all messages.

    Args:
        messages: The messages of the client's input.
    """

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self._messages = {message.id: message for message in messages}
        self._calls: dict[str, ToolCall] = {}
        self._pieces: dict[str, list[str]] = {}
        """Texts that are not in their messages yet, by id: a sum would copy a text with each piece."""

    @property
    def messages(self) -> list[Message]:
        """The messages, in order."""
        for id_, pieces in self._pieces.items():
            if isinstance(message := self._messages.get(id_), AssistantMessage):
                message.content = "".join((message.content or "", *pieces))
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
        message = self._messages.get(id_)
        if not isinstance(message, AssistantMessage):
            message = AssistantMessage(id=id_, subagent_run_id=subagent)
            self._messages[id_] = message
        return message

    def without(self, is_gone: Callable[[str], bool]) -> MessagesSnapshotEvent | None:
        """Drop the messages with matching ids; return a snapshot of the others, or None if no id matches."""
        dropped_ids = [id_ for id_ in self._messages if is_gone(id_)]
        for id_ in dropped_ids:
            del self._messages[id_]
            self._pieces.pop(id_, None)
        return MessagesSnapshotEvent(messages=self.messages) if dropped_ids else None


@dataclass(frozen=True, slots=True)
class Pending:
    """The answers that a tree of runs waits for from its client.

    Attributes:
        interrupts: Pending approvals.
        calls: Ids of pending calls of the client's tools.
    """

    interrupts: tuple[Interrupt, ...] = ()
    calls: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.interrupts or self.calls)


@dataclass(slots=True)
class Subagent:
    """A descendant run.

    Attributes:
        name: The agent's type.
        parent: The run that spawned it.
        is_open: True until the run has ended.
    """

    name: str
    parent: str
    is_open: bool = True


class RunEvents:
    """Translates the session events of one run, in their order, into AG-UI events.

    Attributes:
        calls: The tool calls, by their ids.
        interrupts: The pending approvals, by their ids.
        outcomes: The outcomes of approvals that are no longer pending, by their ids.
        decided_calls: The tool calls of these approvals, by the approvals' ids.
        usage: Tokens of model calls, by model.
    """

    def __init__(self, run_id: str, subagent: str | None = None) -> None:
        self._run_id, self._subagent = run_id, subagent
        self._texts: dict[str, list[str]] = {}
        self._thoughts: set[str] = set()
        self.calls: dict[str, KnownCall] = {}
        self.interrupts: dict[str, Interrupt] = {}
        self.outcomes: dict[str, str] = {}
        self.decided_calls: dict[str, str] = {}
        self.usage: dict[str, Counter[str]] = {}

    @property
    def is_speaking(self) -> bool:
        """True while a model's text or reasoning is being streamed."""
        return bool(self._texts or self._thoughts)

    def of(self, event: SessionEvent) -> Iterator[BaseEvent]:
        """Translate a session event into AG-UI events, with its time and its subagent."""
        for agui_event in self._translate(event):
            agui_event.timestamp = int(event.at.timestamp() * 1000)
            if self._subagent is not None:
                agui_event.subagent_run_id = self._subagent  # type: ignore[attr-defined]
            yield agui_event

    def _translate(self, event: SessionEvent) -> Iterator[BaseEvent]:
        payload: Any = event.payload
        match event.type:
            case "text_delta":
                yield from self._text(payload["position"], payload["text"])
            case "text_snapshot":
                yield from self._whole(payload["position"], payload["text"])
            case "reasoning_delta":
                yield from self._thought(payload["position"], payload["text"])
            case "message":
                yield from self._message(event, payload)
            case "tool_started" | "tool_finished":
                yield from self._tool(event, payload)
            case "approval_requested":
                id_ = payload["approval_id"]
                self.interrupts[id_] = self._interrupt(event, payload)
            case "approval_decided":
                interrupt = self.interrupts.pop(payload["approval_id"], None)
                if interrupt is not None and interrupt.tool_call_id is not None:
                    self.decided_calls[interrupt.id] = interrupt.tool_call_id
                self.outcomes[payload["approval_id"]] = payload["status"]
        if event.type in _UNCHANGED:
            yield CustomEvent(name=f"{CUSTOM}{event.type}", value=payload)

    def reopen(self) -> Iterator[BaseEvent]:
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
        sent_text = "".join(self._texts.get(position, ()))
        if not text.startswith(sent_text):
            yield from self._end_text(position)
            yield VoidTextEvent(message_id=self._id(position))
            sent_text = ""
        if rest := text[len(sent_text) :]:
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

    def _message(self, event: SessionEvent, payload: Mapping[str, Any]) -> Iterator[BaseEvent]:
        """Yield the unsent parts of a message: text and calls of a model, or results of tools."""
        if payload["role"] == "assistant":
            position = payload.get("position") or event.node_id or str(event.seq)
            if usage := payload.get("usage"):
                numbers = {name: n for name, n in usage.items() if isinstance(n, int)}
                self.usage.setdefault(str(payload.get("model")), Counter()).update(numbers)
            yield from self._end_thought(position)
            yield from self._whole(position, payload["text"])
            yield from self._end_text(position)
            if "stopped" in payload:
                value = {"messageId": self._id(position), "stopped": payload["stopped"]}
                yield CustomEvent(name=f"{CUSTOM}answer_stopped", value=value)
            for block in payload["content"]:
                if block.get("type") == "tool_call":
                    arguments = block.get("invalid_arguments", block.get("arguments"))
                    yield from self._call(
                        str(block.get("id")), str(block.get("name")), arguments, self._id(position)
                    )
        elif payload["role"] == "tool":
            for block in payload["content"]:
                if block.get("type") == "tool_result":
                    yield from self._result(str(block.get("id")), block.get("text") or "")

    def _call(self, id_: str, name: str, arguments: object, message: str) -> Iterator[BaseEvent]:
        self.calls[id_] = KnownCall(name, message)
        text = arguments if isinstance(arguments, str) else canonical_json(arguments or {})
        yield ToolCallStartEvent(tool_call_id=id_, tool_call_name=name, parent_message_id=message)
        yield ToolCallArgsEvent(tool_call_id=id_, delta=text)
        yield ToolCallEndEvent(tool_call_id=id_)

    def _tool(self, event: SessionEvent, payload: Mapping[str, Any]) -> Iterator[BaseEvent]:
        """Yield a tool call that no model made, or a tool's result."""
        name, id_ = payload["name"], event.tool_call_id
        if event.type == "tool_started":
            if id_ not in self.calls:
                message = self._id(str(event.seq))
                id_ = id_ or message
                yield from self._call(id_, name, payload.get("arguments"), message)
            self.calls[id_].is_asked = payload.get("client", False)
            return
        # A call that no model made has no id of its own: it got one of this run when it started.
        if id_ is None:
            prefix = self._id("")
            open_calls = (call_id for call_id, call in self.calls.items() if not call.is_done)
            id_ = next((call_id for call_id in open_calls if call_id.startswith(prefix)), "")
        yield from self._result(id_, _text_of(payload["result"]))

    def _result(self, call_id: str, text: str) -> Iterator[BaseEvent]:
        call = self.calls.get(call_id)
        if call is not None and not call.is_done:
            call.is_done = True
            id_ = f"{call.message_id}:{call_id}"
            yield ToolCallResultEvent(message_id=id_, tool_call_id=call_id, content=text)

    def _interrupt(self, event: SessionEvent, payload: Mapping[str, Any]) -> Interrupt:
        call_id = event.tool_call_id
        return Interrupt(
            id=payload["approval_id"],
            reason="confirmation" if call_id is None else "tool_call",
            message=payload["what"],
            tool_call_id=call_id,
            response_schema=ANSWER,
            expires_at=payload.get("expires_at"),
            subagent_run_id=self._subagent,
            metadata={"callboard": {"args": payload["args"]}},
        )


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


class VoidTextEvent(BaseEvent):
    """Internal mark that the text of a message was discarded. It is never sent.

    Attributes:
        message_id: The message.
    """

    type: Any = None
    message_id: str


def _text_of(result: object) -> str:
    """Return a tool's result as the text that the model reads."""
    data = result if isinstance(result, dict) else {}
    text = data.get("text") or data.get("message")
    if isinstance(text, str) and text:
        return text
    content = data.get("structured") if "structured" in data else result
    return "" if content is None else canonical_json(content)


def _problem_of(payload: Any) -> str:
    """Return the text of an error, or the reason of a cancel."""
    error = payload.get("error") or {}
    return str(
        error.get("message") or payload.get("reason") or (error and canonical_json(error)) or ""
    )
