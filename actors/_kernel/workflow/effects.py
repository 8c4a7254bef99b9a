"""Words of a graph: what a node asks for, what comes of it, and what a run waits for.

Answers to some waits have a form: decisions of a person, results of a client or an agent, effects in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from actors._kernel.runtime.effects import EffectMode
from actors._kernel.workflow.errors import GraphError


class RunStatus(StrEnum):
    """The state of a run. The last three are final."""

    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True if nothing happens to the run any more."""
        return self in {RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED}


class WaitReason(StrEnum):
    """The kind of thing that a run waits for. BRANCHES: each of its open branches waits; see `open_waits`."""

    USER = "user"
    UNTIL = "until"
    EVENT = "event"
    JOB = "job"
    SUBWORKFLOW = "subworkflow"
    BRANCHES = "branches"


class StepStatus(StrEnum):
    """The kind of a record in a ledger."""

    STARTED = "started"
    COMPLETED = "completed"
    WAITING = "waiting"
    FAILED = "failed"
    CANCELLED = "cancelled"


class EffectType(StrEnum):
    """The kind of an effect. Those of models and tools have no handler of their own: the host gives it."""

    WAIT_EVENT = "wait_event"
    WAIT_UNTIL = "wait_until"
    ASK_USER = "ask_user"
    ANSWER_USER = "answer_user"
    EMIT_EVENT = "emit_event"
    START_SUBWORKFLOW = "start_subworkflow"
    VARS_QUERY = "vars_query"
    LLM_CALL = "llm_call"
    TOOL_CALLS = "tool_calls"
    MEMORY_NOTE = "memory_note"
    MEMORY_QUERY = "memory_query"
    MEMORY_TAG = "memory_tag"
    MEMORY_COMPACT = "memory_compact"
    MEMORY_REHYDRATE = "memory_rehydrate"
    MEMORY_KG_ASSERT = "memory_kg_assert"
    MEMORY_KG_QUERY = "memory_kg_query"
    MEMORY_KG_RESOLVE = "memory_kg_resolve"


@dataclass(slots=True)
class Effect:
    """A request of a node. It is executed by a handler of its type, never by the node.

    Attributes:
        type: The kind.
        payload: JSON data for the handler.
        result_key: The name in the run's vars for the result; dots nest (``a.b`` is ``vars["a"]["b"]``).
            None if the result is in the ledger only.
        mode: The handling after a crash that left no result: executed again, or reported as in doubt.
    """

    type: EffectType
    payload: dict[str, Any] = field(default_factory=dict)
    result_key: str | None = None
    mode: EffectMode = EffectMode.IDEMPOTENT

    def __post_init__(self) -> None:
        self.type = EffectType(self.type)

    def to_dict(self) -> dict[str, Any]:
        """Return the effect as a ledger keeps it."""
        data: dict[str, Any] = {
            "type": str(self.type),
            "payload": self.payload,
            "result_key": self.result_key,
        }
        if self.mode is not EffectMode.IDEMPOTENT:
            data["mode"] = self.mode.value
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Effect:
        """Return the effect that `to_dict` described."""
        mode = EffectMode(data.get("mode", EffectMode.IDEMPOTENT))
        return cls(
            EffectType(data["type"]), data.get("payload") or {}, data.get("result_key"), mode
        )


@dataclass(slots=True)
class StepPlan:
    """The answer of a node: exactly one of a move, an effect (with the node behind it), branches, or the end.

    Attributes:
        node_id: The node that answers.
        effect: A request. Without `next_node` the run ends with its result.
        next_node: The node to go on with; of branches, the one at which they meet.
        complete_output: The run's output as JSON data, or None if the run does not end here.
        parallel: The first nodes of branches by the names of these, in the order in which they are merged.
    """

    node_id: str
    effect: Effect | None = None
    next_node: str | None = None
    complete_output: Any = None
    parallel: Mapping[str, str] | None = None


@dataclass(slots=True)
class WaitState:
    """A wait of a run. Instants are ISO 8601 in UTC.

    Attributes:
        reason: The kind.
        wait_key: The name by which the answer comes.
        until: The instant of an UNTIL wait, or the deadline of another one.
        resume_to_node: The node after the wait, or None if the answer ends the run.
        result_key: The path of the answer in the run's vars; dots nest.
        prompt: The question for a person.
        choices: The answers to choose from.
        allow_free_text: Whether a person may answer something else.
        details: JSON data of the program that made the wait.
    """

    reason: WaitReason
    wait_key: str | None = None
    until: str | None = None
    resume_to_node: str | None = None
    result_key: str | None = None
    prompt: str | None = None
    choices: list[str] | None = None
    allow_free_text: bool = True
    details: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.reason = WaitReason(self.reason)

    def to_dict(self) -> dict[str, Any]:
        """Return the wait as stores keep it."""
        return {
            "reason": self.reason.value,
            "wait_key": self.wait_key,
            "until": self.until,
            "resume_to_node": self.resume_to_node,
            "result_key": self.result_key,
            "prompt": self.prompt,
            "choices": self.choices,
            "allow_free_text": self.allow_free_text,
            "details": self.details,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WaitState:
        """Return the wait that `to_dict` described."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class EffectOutcome:
    """The end of one attempt of an effect. Made by `completed`, `waiting` or `failed`.

    Attributes:
        status: ``completed``, ``waiting`` or ``failed``.
        result: JSON data of a completed one.
        wait: The wait of a waiting one.
        error: The message of a failed one.
        retryable: Whether another attempt may succeed, if the policy has one.
        changes: Further changes of the vars by a completed one, recorded with its result: ``set`` is a list of
            ``[path, value]``; ``put`` is a list of ``[path, name, object]``: in the list at the path, the
            object takes the place of the one with the same value of `name`, or becomes the last one.
    """

    status: StepStatus
    result: Any = None
    wait: WaitState | None = None
    error: str | None = None
    retryable: bool = True
    changes: dict[str, Any] | None = None

    @classmethod
    def completed(
        cls, result: Any = None, *, changes: dict[str, Any] | None = None
    ) -> EffectOutcome:
        """Return the outcome of an effect that happened."""
        return cls(StepStatus.COMPLETED, result=result, changes=changes)

    @classmethod
    def waiting(cls, wait: WaitState) -> EffectOutcome:
        """Return the outcome of an effect whose result comes later, as the answer to `wait`."""
        return cls(StepStatus.WAITING, wait=wait)

    @classmethod
    def failed(cls, error: str, *, retryable: bool = True) -> EffectOutcome:
        """Return the outcome of an effect that did not happen."""
        return cls(StepStatus.FAILED, error=error, retryable=retryable)


APPROVAL: Final = "approval_required"
PASSTHROUGH: Final = "passthrough"
MODEL: Final = "model"
IN_DOUBT: Final = "in_doubt"
"""Mode of a wait for a decision on an effect that may have happened.

Its details also have the ``node``, the ``effect``, its ``idempotency_key``, and its ``seq`` in the ledger.
"""
DECISIONS: Final = "_decisions"
"""Key of the decisions in the payload of TOOL_CALLS: by call id ``approved``, ``reason`` and ``by``.

Only the machine writes it; it is removed from the plans of nodes.
"""
EXECUTE: Final = "execute"
"""Key in the details of a wait for a decision: the mode in which the approved calls are executed."""
ASKED: Final = "asked"
"""Key in the details of a wait: the agent that is asked (``type``, ``key``) and its time (``timeout_s``)."""
_MODES: Final = frozenset((APPROVAL, PASSTHROUGH, MODEL, IN_DOUBT))
_WORDS: Final = {
    **dict.fromkeys(("approve", "approved", "yes"), True),
    **dict.fromkeys(("deny", "denied", "no"), False),
}
_REMEDY: Final = (
    'answer {"approved": true}, {"approved": false, "reason": …} or {"decisions": {call_id: true}}'
)
DECIDE: Final = (
    'answer {"result": …} if it happened, {"error": "…"} if it failed, or {"execute": true} to '
    "execute it now"
)


def details_of_node(details: Any) -> dict[str, Any] | None:
    """Return the details of a node's own wait, without the names by which the runtime marks its waits.

    With them the answer to any question of a graph would execute tool calls that nobody was asked about.

    Raises:
        GraphError: They are no object.
    """
    if details is None:
        return None
    if not isinstance(details, dict):
        problem = f"it is a {type(details).__name__}. Give an object"
        raise GraphError("payload.details", problem)
    own_details = {name: value for name, value in details.items() if name not in {EXECUTE, ASKED}}
    if own_details.get("mode") in _MODES:
        del own_details["mode"]
    return own_details


def check_answer(wait: WaitState, payload: Any) -> None:
    """Check that an answer fits a wait of TOOL_CALLS or LLM_CALL, or of an effect in doubt.

    Other waits take any answer.

    Raises:
        GraphError: It decides nothing, it is about another call, or it is no answer of a model.
    """
    mode = (wait.details or {}).get("mode")
    where = f"answer to {wait.wait_key!r}"
    if mode == PASSTHROUGH:
        rows = _rows(payload)
        if rows is None:
            raise GraphError(where, "give results, a list with an object for each call_id")
        call_ids = [str(row.get("call_id")) for row in rows]
        _check_ids(where, wait, call_ids)
        missing_ids = [i for i in _ids(wait) if i not in call_ids]
        if missing_ids or len(call_ids) != len({*call_ids}):
            raise GraphError(where, f"give one result for each of {', '.join(_ids(wait))}")
    elif mode == APPROVAL:
        answer = payload if isinstance(payload, dict) else {}
        decisions = answer.get("decisions")
        if isinstance(decisions, dict):
            _check_ids(where, wait, map(str, decisions))
            if {*decisions} != {*_ids(wait)}:
                raise GraphError(where, f"decide on each of {', '.join(_ids(wait))}")
        if any(d["approved"] is None for d in _decisions(wait, payload).values()):
            raise GraphError(where, _REMEDY)
    elif mode == MODEL and _model_answer(payload) is None:
        raise GraphError(where, "give a text, or an object with content, a text, or tool_calls")
    elif mode == IN_DOUBT and not _decides(payload):
        raise GraphError(where, DECIDE)


def _decides(payload: Any) -> str:
    """Return the way in which an answer decides on an effect in doubt; empty: in no way, or in several."""
    match payload:
        case {"result": _, **rest} if not rest:
            return "result"
        case {"error": str(text), **rest} if text and not rest:
            return "error"
        case {"execute": True, **rest} if not rest:
            return "execute"
    return ""


def _check_ids(where: str, wait: WaitState, call_ids: Any) -> None:
    for call_id in call_ids:
        if call_id not in _ids(wait):
            own_ids = ", ".join(map(repr, _ids(wait)))
            raise GraphError(where, f"it is about call {call_id!r}. The run waits for {own_ids}")


def result_of_answer(wait: WaitState, payload: Any) -> Any:
    """Return an answer as the result of the effect: that of a client has one row for each call.

    After the deadline the calls are unsuccessful, and the result also has `timed_out` and `until`.
    """
    mode = (wait.details or {}).get("mode")
    if mode == MODEL:
        return _model_answer(payload) or payload
    if mode == IN_DOUBT:
        return payload["result"] if _decides(payload) == "result" else payload
    if mode != PASSTHROUGH:
        return payload
    rows = _rows(payload)
    rows_by_id = {str(row.get("call_id")): row for row in rows or []}
    result = {
        "mode": "executed",
        "results": [_row(call, rows_by_id.get(call["call_id"])) for call in _calls(wait)],
    }
    return result if rows is not None else result | {"timed_out": True, "until": wait.until}


def question_of(wait: WaitState, run_id: str) -> dict[str, Any]:
    """Return the question that an agent is asked for a run: ``run``, ``effect`` and ``payload``."""
    details = wait.details or {}
    if details["mode"] == MODEL:
        effect, payload = EffectType.LLM_CALL, details["payload"]
    else:
        effect, payload = EffectType.TOOL_CALLS, {"tool_calls": _calls(wait)}
    return {"run": run_id, "effect": effect.value, "payload": payload}


def failed_calls(wait: WaitState, problem: str) -> dict[str, Any] | None:
    """Return the answer by which each call of a wait fails, or None if the wait has no calls."""
    rows = [{"call_id": call_id, "error": problem} for call_id in _ids(wait)]
    return {"results": rows} if rows else None


def effect_behind(wait: WaitState, payload: Any) -> Effect | None:
    """Return the effect that executes a decision, or None if the answer is the result of the wait."""
    details = wait.details or {}
    if details.get("mode") == IN_DOUBT:
        executes = _decides(payload) == "execute"
        return Effect.from_dict(details["effect"]) if executes else None
    mode = details.get(EXECUTE)
    if mode is None:
        return None
    tool_payload = {"tool_calls": _calls(wait), DECISIONS: _decisions(wait, payload)}
    return Effect(EffectType.TOOL_CALLS, tool_payload, wait.result_key, EffectMode(mode))


def failure_in(wait: WaitState, payload: Any) -> str | None:
    """Return the error with which an answer ends an effect in doubt, or None if it does not fail the effect."""
    details = wait.details or {}
    decision = _decides(payload)
    if details.get("mode") != IN_DOUBT or decision in {"result", "execute"}:
        return None
    name = f"effect {details['effect']['type']} of node {details['node']!r}"
    reason = payload["error"] if decision == "error" else f"the decision is none: {DECIDE}"
    return f"{name} failed, as was decided on it in doubt: {reason}"


def _decisions(wait: WaitState, payload: Any) -> dict[str, dict[str, Any]]:
    """Return the decisions by call id; ``approved`` is None where there is none."""
    answer: Mapping[str, Any] = payload if isinstance(payload, dict) else {"approved": payload}
    overall, decisions_by_call_id = (
        answer.get("approved", answer.get("response")),
        answer.get("decisions"),
    )
    reason = "nobody decided in time" if answer.get("timed_out") else answer.get("reason")
    more = {"reason": str(reason or ""), "by": str(answer.get("by") or "")}
    if not isinstance(decisions_by_call_id, dict):
        decisions_by_call_id = dict.fromkeys(_ids(wait), overall)
    return {
        call_id: {"approved": _approval_in(decisions_by_call_id.get(call_id)), **more}
        for call_id in _ids(wait)
    }


def _approval_in(value: Any) -> bool | None:
    if isinstance(value, dict):
        value = value.get("approved")
    if isinstance(value, str):
        return _WORDS.get(value.strip().lower())
    return value if isinstance(value, bool) else None


def _row(call: dict[str, Any], answer: dict[str, Any] | None) -> dict[str, Any]:
    row = {"call_id": call["call_id"], "name": call["name"]}
    if answer is None:
        return row | {"success": False, "output": None, "error": "no result came in time"}
    error = answer.get("error")
    is_success = bool(answer.get("success", error is None))
    error = None if is_success else str(error or "it failed")
    return row | {"success": is_success, "output": answer.get("output"), "error": error}


def _model_answer(payload: Any) -> dict[str, Any] | None:
    """Return an answer in the shape of the result of LLM_CALL, or None if it has another shape."""
    answer = {"content": payload} if isinstance(payload, str) else payload
    if not isinstance(answer, dict) or not answer.keys() & {"content", "tool_calls"}:
        return None
    result = {"content": "", "tool_calls": [], **answer}
    is_valid = isinstance(result["content"], str) and isinstance(result["tool_calls"], list)
    return result if is_valid else None


def _rows(payload: Any) -> list[dict[str, Any]] | None:
    rows = payload.get("results") if isinstance(payload, dict) else payload
    is_list = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    return rows if is_list else None


def _calls(wait: WaitState) -> list[dict[str, Any]]:
    return list((wait.details or {}).get("tool_calls") or ())


def _ids(wait: WaitState) -> list[str]:
    return [call["call_id"] for call in _calls(wait)]
