"""The words of a graph: what a node asks for, what comes of it, and what a run waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from actors.kernel.runtime.effects import EffectMode


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
            None: the result is in the ledger only.
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
        told: dict[str, Any] = {
            "type": str(self.type),
            "payload": self.payload,
            "result_key": self.result_key,
        }
        if self.mode is not EffectMode.IDEMPOTENT:
            told["mode"] = self.mode.value
        return told

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
        complete_output: The run's output; JSON data. None: the run does not end here.
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
        resume_to_node: The node to go on with; None: the answer ends the run.
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
