"""The translation of a run's log into events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from actors._kernel.agent.agent import DEFAULT_MODE
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import CUT_OFF, STOPPED
from actors._kernel.agent.transcript import Turn, turn_id
from actors._kernel.hidden import HiddenNames
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.log_entry import RunLogEntry
from actors._runtime.client.live_events import LivePiece
from actors._runtime.replay.history import PAID
from actors._sessions.events import EVENTS, SessionEvent

Nodes: TypeAlias = Callable[[Sequence[str]], Awaitable[list[Turn]]]
TurnMessage: TypeAlias = tuple[str, ChatMessage]
"""A turn: its id, and its message."""
Draft: TypeAlias = tuple[str, dict[str, Any], dict[str, str]]
"""An event without a position: its type, its payload, and the fields that name a node or a call."""
FoundEvent: TypeAlias = tuple[SessionEvent, int | None, bool]
"""An event, its number among the events of its entry, and True if the entry is a cancelled run's last one.

The number is None for the last event of an entry.
"""

AT_ONCE: Final = 8
"""Number of turns of an entry that are read at once."""
PERSON: Final = "person"
CLIENT: Final = "client"
_CONTENT: Final = frozenset(("args", "arguments", "content", "error", "output", "result", "text"))
"""Names in payloads whose values come from agents and models."""
_PIECES: Final = (K.TEXT_DELTA, K.REASONING_DELTA)
_TOOLS: Final = (K.TOOL_CALLED, K.TOOL_RESULT)
_ASKS: Final = (K.ASK_SENT, K.ASK_REPLIED, K.ASK_TIMEOUT)


@dataclass(slots=True)
class RunTranslator:
    """Translator of the entries of one run into events, in order.

    Attributes:
        session_id: The session.
        run_id: The run.
        agent_id: The run's agent.
        hidden: The names that are hidden in content.
        nodes: Function that returns turns of the session's conversation by id, or None if the run's turns are
            not nodes.
    """

    session_id: str
    run_id: RunId
    agent_id: AgentId
    hidden: HiddenNames
    nodes: Nodes | None = None
    _calls: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Arguments of the model's tool calls, by call id."""
    _pieces: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Attempt and number of the last piece of each answer in progress, by position."""
    _failed_calls: set[str] = field(default_factory=set)
    """Model calls of which an attempt has failed."""
    _approval_ids: dict[str, str] = field(default_factory=dict)
    """Ids of requested approvals, by position."""
    _client_calls: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Calls of the client's tools without a result, by position."""

    def note(self, entry: RunLogEntry) -> None:
        """Keep the facts that later events need of an entry whose events were read before."""
        if entry.kind == K.LLM_CALL:
            self._note_try(entry)
            self._note_calls(entry.payload)
        elif entry.kind in _ASKS:
            self._question(entry)

    async def of(self, entry: RunLogEntry) -> list[SessionEvent]:
        """Return the events of an entry, or the event of a live piece (seq -1). Many entries have no event."""
        drafts = await self._drafts(entry)
        return [self._event(entry, *draft) for draft in drafts]

    def _event(
        self, entry: RunLogEntry, type_: str, payload: dict[str, Any], about: dict[str, str]
    ) -> SessionEvent:
        if not isinstance(entry, LivePiece):
            return self._parse_event(entry, type_, payload, about)
        # All readers of a piece share its event: each of them would otherwise validate every piece again.
        key = (type_, self.session_id)
        event: SessionEvent | None = entry.shared.get(key)
        if event is None:
            event = entry.shared[key] = self._parse_event(entry, type_, payload, about)
        return event

    def _parse_event(
        self, entry: RunLogEntry, type_: str, payload: dict[str, Any], about: dict[str, str]
    ) -> SessionEvent:
        content = {key: self.hidden.shown(payload[key]) for key in _CONTENT & payload.keys()}
        origin = {
            "session_id": self.session_id,
            "run_id": self.run_id,
            "agent_id": str(self.agent_id),
        }
        fields = {"type": type_, "seq": entry.seq, "at": entry.ts, "payload": payload | content}
        return EVENTS.validate_python({**origin, **fields, **about})

    async def _drafts(self, entry: RunLogEntry) -> list[Draft]:
        kind, payload = entry.kind, entry.payload
        if kind == K.LLM_CALL:
            return await self._answer(entry)
        if kind == K.EFFECT_RESULT and payload.get("effect") == "history.append":
            return [_message_draft(turn) for turn in await self._turns_of(entry)]
        if kind in _ASKS:
            return self._question(entry)
        if kind in _TOOLS:
            return [self._tool(entry)]
        if kind in _PIECES:
            return self._piece(entry)
        drafts: list[Draft] = []
        if "turns" in payload:
            # The terminal entry of a run that ended before a model answered names the messages that it got.
            ids: Any = payload["turns"]
            drafts += [_message_draft(turn) for turn in await self._turns(entry, ids)]
        draft_of = _PLAIN.get(kind)
        return drafts if draft_of is None else [*drafts, draft_of(entry)]

    def _piece(self, entry: RunLogEntry) -> list[Draft]:
        """Return the event of a piece of an answer. A reader that begins in the middle of it gets a snapshot.

        If the answer starts again, an empty snapshot comes first.
        """
        piece: dict[str, Any] = entry.payload
        data = piece.get("data")
        if isinstance(data, dict) and data.get("session"):
            return []  # of a conversation that the user does not see
        payload = {"text": piece["text"], "attempt": piece["attempt"], "position": entry.position}
        piece_key, last_key = (
            (int(piece["attempt"]), int(piece["n"])),
            self._pieces.get(entry.position),
        )
        starts_again = last_key is not None and (
            piece_key[0] > last_key[0] or (piece_key[0] == last_key[0] and not piece_key[1])
        )
        if last_key is not None and piece_key <= last_key and not starts_again:
            return []
        self._pieces[entry.position] = piece_key
        type_ = "text_delta" if entry.kind == K.TEXT_DELTA else "reasoning_delta"
        if piece.get("whole") and type_ == "text_delta":
            return [("text_snapshot", payload, {})]
        if piece.get("whole") and last_key is not None and last_key[0] == piece_key[0]:
            return []  # the reader already has a part of it
        drafts: list[Draft] = [(type_, payload, {})]
        if starts_again:
            drafts.insert(0, ("text_snapshot", {**payload, "text": ""}, {}))
        return drafts

    async def _answer(self, entry: RunLogEntry) -> list[Draft]:
        payload: dict[str, Any] = entry.payload
        if payload.get("status") == "ok":
            self._pieces.pop(entry.position, None)
        turns = await self._turns_of(entry)
        # The turns before the answer were written with the failed attempt, whose events readers already have.
        if _entry_key(entry) in self._failed_calls:
            turns = [turn for turn in turns[-1:] if turn[1].role == "assistant"]
        self._note_try(entry)
        drafts = [_message_draft(turn) for turn in turns]
        if payload.get("status") != "ok":
            return drafts
        content = self._note_calls(payload)
        if self._is_inner(entry):
            return drafts
        if not drafts or drafts[-1][1]["role"] != "assistant":
            answer = ChatMessage.model_validate({"role": "assistant", "content": content})
            drafts.append(("message", _turn_payload(answer), {}))
        model_facts = {"model": payload.get("model"), "usage": payload.get("usage")}
        drafts[-1][1].update(model_facts, position=entry.position)
        return drafts

    def _is_inner(self, entry: RunLogEntry) -> bool:
        """Return True for an answer in another conversation than the run's, and for a summary of a strategy."""
        receipt: Any = entry.payload.get("receipt") or {}
        # Entries of the release before have no `session`: without the default all answers would be inner ones.
        is_other = (
            self.nodes is not None and receipt.get("session", self.session_id) != self.session_id
        )
        return bool(receipt.get("inner")) or is_other or PAID in entry.position

    def _note_calls(self, payload: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the blocks of an answer, and keep the arguments of its tool calls."""
        value = payload.get("value") if payload.get("status") == "ok" else None
        content: list[dict[str, Any]] = (value or {}).get("content") or []
        for block in content:
            if block.get("type") == "tool_call":
                self._calls[str(block.get("id"))] = block.get("arguments") or {}
        return content

    async def _turns_of(self, entry: RunLogEntry) -> list[TurnMessage]:
        """Return the turns that were written with an entry."""
        entry_key, turns, n = _entry_key(entry), list[TurnMessage](), 0
        # Without `said` each lookup is a read of the store, so one lookup takes several ids.
        at_once = AT_ONCE if entry.said is None else 1
        while True:
            ids = [turn_id(self.run_id, entry_key, n + i) for i in range(at_once)]
            page = await self._turns(entry, ids)
            turns += page
            n += at_once
            if len(page) < at_once:
                return turns

    async def _turns(self, entry: RunLogEntry, ids: Sequence[str]) -> list[TurnMessage]:
        """Return those of these turns that the session has. They were written with the entry."""
        if self.nodes is None:
            return []
        if entry.said is not None:
            return [(id_, entry.said[id_]) for id_ in ids if id_ in entry.said]
        return [(turn.id, turn.message) for turn in await self.nodes(ids)]

    def _note_try(self, entry: RunLogEntry) -> None:
        if entry.payload.get("status") != "ok":
            self._failed_calls.add(_entry_key(entry))

    def _tool(self, entry: RunLogEntry) -> Draft:
        payload: dict[str, Any] = entry.payload
        call = str(payload.get("call") or "")
        about = {"tool_call_id": call} if call else {}
        event_payload: dict[str, Any] = {"name": payload.get("name") or ""}
        if entry.kind == K.TOOL_CALLED:
            if call in self._calls:
                event_payload["arguments"] = self._calls[call]
            return "tool_started", event_payload, about
        value = payload.get("value") if payload.get("status") == "ok" else payload.get("error")
        inner = value.get("status") if isinstance(value, dict) else None
        status = str(inner or "ok") if payload.get("status") == "ok" else "error"
        return "tool_finished", {**event_payload, "status": status, "result": value}, about

    def _question(self, entry: RunLogEntry) -> list[Draft]:
        payload: dict[str, Any] = entry.payload
        if entry.kind == K.ASK_SENT:
            if payload["target"] == CLIENT:
                self._client_calls[entry.position] = request = payload["request"]
                event_payload = {
                    "name": request["name"],
                    "arguments": request["arguments"],
                    "client": True,
                }
                return [("tool_started", event_payload, {"tool_call_id": request["call"]})]
            if payload["target"] != PERSON:
                return []
            self._approval_ids[entry.position] = id_ = payload["message_id"]
            request = payload.get("request") or {}
            event_payload = {
                "approval_id": id_,
                "what": request.get("what", ""),
                "args": request.get("args"),
            }
            if "at" in payload:
                event_payload["expires_at"] = payload["at"]
            call = payload.get("call")
            return [
                ("approval_requested", event_payload, {"tool_call_id": str(call)} if call else {})
            ]
        if (client_call := self._client_calls.pop(entry.position, None)) is not None:
            result = payload.get("result")
            status = result.get("status") if isinstance(result, dict) else None
            event_payload = {
                "name": client_call["name"],
                "status": str(status or "error"),
                "result": result,
            }
            return [("tool_finished", event_payload, {"tool_call_id": client_call["call"]})]
        approval = self._approval_ids.pop(entry.position, None)
        if approval is None:
            return []
        result = payload.get("result") or {}
        event_payload = {"approval_id": approval, "status": payload["outcome"]}
        if result:
            event_payload |= {"by": result.get("by"), "comment": result.get("comment") or ""}
        return [("approval_decided", event_payload, {})]


class TranslatedLog:
    """The events of a run's entries behind a position.

    Args:
        translator: The translator of the run's entries.
        begin: Seq of the first entry whose events are wanted.
        skip: Number of that entry's events that are not wanted.
    """

    def __init__(self, translator: RunTranslator, begin: int, skip: int) -> None:
        self._translator, self._begin, self._skip = translator, begin, skip

    async def note(self, log: AsyncIterator[RunLogEntry]) -> None:
        """Keep what later events need of the entries before the position."""
        async for entry in log:
            if entry.seq >= self._begin:
                return
            self._translator.note(entry)

    async def of(self, entry: RunLogEntry) -> list[FoundEvent]:
        """Return the events of the next entry or piece, perhaps none."""
        events = await self._translator.of(entry)
        first, is_end = self._skip if entry.seq == self._begin else 0, entry.kind == K.RUN_CANCELLED
        last = len(events) - 1
        return [
            (event, None if number == last else number, is_end)
            for number, event in enumerate(events[first:], first)
        ]


def _entry_key(entry: RunLogEntry) -> str:
    """Return the part of turns' ids that names the entry with which they were written."""
    return f"{entry.position} {entry.payload['hash']}"


def _message_draft(turn: TurnMessage) -> Draft:
    id_, message = turn
    return "message", _turn_payload(message), {"node_id": id_}


def _turn_payload(message: ChatMessage) -> dict[str, Any]:
    content = [block.model_dump(mode="json", exclude_none=True) for block in message.content]
    payload = {"role": message.role, "text": message.text, "content": content}
    for block in message.content:
        if block.type == CUT_OFF:
            payload |= {"stopped": "length"}
        elif block.type == STOPPED:
            payload |= {"stopped": "cancelled", "position": (block.model_extra or {})["position"]}
    return payload


def _draft_of_keys(type_: str, *keys: str) -> Callable[[RunLogEntry], Draft]:
    """Return a function that makes an event of the values that a payload has under `keys`."""

    def draft_of(entry: RunLogEntry) -> Draft:
        return type_, {key: entry.payload[key] for key in keys if key in entry.payload}, {}

    return draft_of


def _start_draft(entry: RunLogEntry) -> Draft:
    return "loop_started", {"mode": entry.payload.get("mode") or DEFAULT_MODE}, {}


def _suspension_draft(entry: RunLogEntry) -> Draft:
    wake: Any = entry.payload["wake"]
    event_payload: dict[str, Any] = {}
    if wake.get("at"):
        event_payload["until"] = wake["at"]
    if wake.get("signals"):
        event_payload["signals"] = list(wake["signals"])
    return "run_waiting", event_payload, {}


def _parking_draft(entry: RunLogEntry) -> Draft:
    detail = {"detail": entry.payload["detail"]} if entry.payload.get("detail") else {}
    return "run_waiting", {"parked": entry.payload["reason"], **detail}, {}


def _continuation_draft(entry: RunLogEntry) -> Draft:
    return "run_resumed", {"reason": "continued"}, {}


def _failed_attempt_draft(entry: RunLogEntry) -> Draft:
    event_payload = {"attempt": entry.payload["attempt"], "error": entry.payload["error"]}
    return "attempt_failed", {**event_payload, "retry_at": entry.payload["at"]}, {}


_PLAIN: Final[dict[str, Callable[[RunLogEntry], Draft]]] = {
    K.CHILD_SPAWNED: _draft_of_keys("child_started", "child", "agent"),
    K.CHILD_COMPLETED: _draft_of_keys("child_finished", "child", "status", "output", "error"),
    K.RUN_STARTED: _start_draft,
    K.RUN_SUSPENDED: _suspension_draft,
    K.RUN_PARKED: _parking_draft,
    K.RUN_RESUMED: _draft_of_keys("run_resumed", "reason"),
    K.RUN_CONTINUED: _continuation_draft,
    K.RUN_ATTEMPT_FAILED: _failed_attempt_draft,
    K.CANCEL_REQUESTED: _draft_of_keys("cancel_requested", "reason"),
    K.RUN_COMPLETED: _draft_of_keys("run_completed", "output"),
    K.RUN_FAILED: _draft_of_keys("run_failed", "error"),
    K.RUN_CANCELLED: _draft_of_keys("run_cancelled", "reason"),
}
"""Functions that make the event of an entry that needs no other entry."""
