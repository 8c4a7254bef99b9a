"""Logs and outputs of the runtime in the form of the model's predictions."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import LLMResponse
from tests.harness.simloop import EPOCH
from tests.model.history import RUN_KINDS, Line
from tests.model.memories import hits_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from actors._kernel.runtime.log_entry import RunLogEntry

NEAR_S: Final = 2e-3
"""Times that differ by less are the same; effects differ by far more."""

_INSTANTS: Final = (
    "ask.sent",
    "child.spawned",
    "effect.abandoned",
    "effect.intent",
    "msg.sent",
    "run.started",
    "select.won",
    "state.set",
    "timer.set",
    "tool.called",
)

_PLAIN: Final = {
    "child.spawned": ("child", "agent", "boot", "hash"),
    "follow.changed": ("topic", "following", "hash"),
    "orphans.resolved": ("policy", "children"),
    "run.cancelled": ("reason",),
    "effect.abandoned": ("effect",),
    "effect.intent": ("effect", "name", "hash", "mode"),
    "tool.called": ("effect", "name", "hash", "mode"),
    "msg.sent": ("message_id", "target", "hash"),
    "run.completed": ("output",),
    "run.continued": ("generation", "input"),
    "run.parked": ("reason",),
    "select.won": ("index",),
    "signal.received": ("name", "payload", "hash"),
    "state.set": ("key", "value", "deleted", "hash"),
}


def essential(entries: Iterable[RunLogEntry]) -> list[Line]:
    """Return the log without suspensions, with seqs and times counted like the model's."""
    lines: list[Line] = []
    number: dict[int, int] = {}
    for entry in entries:
        if entry.kind in RUN_KINDS:
            number[entry.seq] = len(lines) - 1
            continue
        number[entry.seq] = len(lines)
        data = _data(entry.kind, entry.payload, number)
        lines.append(Line(entry.kind, entry.position, data, seconds(entry.ts)))
    return lines


def seconds(at: datetime | str) -> float:
    """Return an instant as virtual seconds."""
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    return (moment - EPOCH).total_seconds()


def _data(kind: str, payload: dict[str, Any], number: dict[int, int]) -> dict[str, Any]:
    if kind in _PLAIN:
        return {key: payload[key] for key in _PLAIN[kind] if key in payload}
    if kind in ("effect.result", "tool.result", "llm.call"):
        return _result(payload)
    data: dict[str, Any] = {}
    if kind == "timer.set":
        data = {"at": seconds(payload["at"]), "hash": payload["hash"], "verb": payload["verb"]}
    elif kind == "msg.received":
        message = payload["message"]
        data = {"payload": message["payload"], "id": message["id"]}
        data |= {"hash": payload["hash"]} if "hash" in payload else {"boot": True}
    elif kind == "ask.sent":
        data = {key: payload[key] for key in ("target", "message_id", "hash")}
        data["at"] = seconds(payload["at"])
    elif kind in ("ask.replied", "ask.timeout"):
        data = {key: payload[key] for key in ("outcome", "handle", "hash")}
        if kind == "ask.replied":
            failed = str(payload["outcome"]).startswith("target_")
            data["result"] = plain_error(payload["result"]) if failed else payload["result"]
    elif kind == "child.completed":
        data = {key: payload.get(key) for key in ("child", "status", "output", "hash")}
        data["error"] = plain_error(payload.get("error"))
    elif kind == "run.attempt_failed":
        data = {
            "attempt": payload["attempt"],
            "error": _error(payload["error"]),
            "retry_from": number[payload["retry_from"]],
            "ending": payload.get("ending") is not None,
            "kept": payload.get("kept"),
            "at": seconds(payload["at"]),
        }
    elif kind == "run.failed":
        data = {"status": payload["status"], "error": _error(payload["error"])}
    return data


def _result(payload: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {
        key: payload[key] for key in ("effect", "name", "hash", "status") if key in payload
    }
    if payload["status"] == "error":
        data["error"] = _error(payload["error"])
        return data
    value: Any = payload.get("value")
    if payload["effect"] == "llm":
        receipt: Any = payload.get("receipt", {})
        text = LLMResponse.model_validate(value).text
        value = [text, *(receipt[key] for key in ("head", "cut", "turns") if receipt)]
    if payload.get("name") == "history.get":
        messages = [ChatMessage.model_validate(item) for item in value]
        value = [[message.role, message.text, message.turn] for message in messages]
    if payload.get("name") == "memory.recall":
        value = hits_of(value)
    if payload.get("name") in ("memory.block", "memory.set_block"):
        value = [value["text"], value["version"]]
    if payload["effect"] == "tool" and isinstance(value, dict):
        text = value.get("text", "") if value["status"] != "ok" else ""
        value = [value["status"], value.get("structured"), text]
    if payload["effect"] == "now":
        value = seconds(str(value))
    return {**data, "value": value}


def _error(record: dict[str, Any]) -> dict[str, Any]:
    name = str(record["type"]).rpartition(":")[2].rpartition(".")[2]
    return {"type": name, "message": record["message"]}


def plain_error(record: Any) -> Any:
    """Return an error in the form for other runs, without text for people."""
    if not isinstance(record, dict):
        return record
    return _error(record) if "type" in record else {"message": record["message"]}


def settled(lines: Sequence[Line]) -> list[Line]:
    """Return the log with each attempt's intents behind it, by position.

    An intent rides with the next flush, and effects that begin together begin in any order; what
    must hold of intents otherwise is in `checks.broken_laws`.
    """
    result: list[Line] = []
    intents: list[Line] = []
    counted: list[int] = []
    for line in lines:
        if _is_intent(line):
            intents.append(line)
        elif line.kind in ("run.attempt_failed", "run.continued"):
            result += [*sorted(intents, key=_position), line]
            intents = []
        else:
            result.append(line)
        counted.append(sum(not _is_intent(earlier) for earlier in lines[: len(counted) + 1]))
    result += sorted(intents, key=_position)
    return [_renumbered(line, counted) for line in result]


def _renumbered(line: Line, counted: Sequence[int]) -> Line:
    if line.kind != "run.attempt_failed":
        return line
    data = {**line.data, "retry_from": counted[line.data["retry_from"]]}
    return Line(line.kind, line.position, data, line.at)


def _is_intent(line: Line) -> bool:
    return line.kind in ("effect.intent", "tool.called")


def _position(line: Line) -> str:
    return line.position


DRAWN: Final = ("random", "uuid", "now")
"""Verbs whose values the model takes from the logs."""


def drawn(lines: Iterable[Line]) -> dict[str, list[Any]]:
    """Return the values of random sources and the clock, by position, in order."""
    values: dict[str, list[Any]] = {}
    for line in lines:
        if line.data.get("effect") in DRAWN:
            values.setdefault(line.position, []).append(line.data["value"])
    return values


def same(first: Any, second: Any) -> bool:
    """Return whether two values are equal, times by less than `NEAR_S`."""
    if isinstance(first, float | int) and isinstance(second, float | int):
        if isinstance(first, bool) or isinstance(second, bool):
            return first is second
        return abs(first - second) < NEAR_S
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    return bool(first == second)


def same_line(first: Line, second: Line) -> bool:
    """Return whether two entries are equal."""
    return (
        (first.kind, first.position) == (second.kind, second.position)
        and same(_comparable_data(first), _comparable_data(second))
        and (_is_buffered(first) or abs(first.at - second.at) < NEAR_S)
    )


def _is_buffered(line: Line) -> bool:
    """Return whether an entry is written with the next flush, so that its time is meaningless."""
    if line.kind == "effect.result":
        return bool(line.data["effect"] != "step")
    return line.kind in _INSTANTS or "boot" in line.data


def _comparable_data(line: Line) -> dict[str, Any]:
    """Return an entry's data; the model also has the content of a message, which its entry does not."""
    if line.kind != "msg.sent":
        return line.data
    return {key: value for key, value in line.data.items() if key != "payload"}
