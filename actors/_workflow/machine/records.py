"""The decisions of the machine as records, with the state after them, and the decisions that end a run.

The same function changes a state by a record while a run executes and after a crash.

The `delta` of a record has a ``seq``, the number of the change, and those of these names that apply: ``set``
and ``unset`` (paths in the vars), ``put`` (objects in lists of the vars), ``key`` (the path of the record's
result in the vars), ``node``, ``status``, ``fork`` (the branches that begin), ``joined`` (the branches were
joined), ``then`` (the effect that is open after the record). In a branch the delta also has ``branch``, the
path to it. A record that begins an effect has ``open`` instead of ``seq``: the number of the change that the
effect's end will be, and ``origin`` if a decision on an effect in doubt opened it. A record of an attempt that
another attempt follows has ``retry``, the instant of the next attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from actors._kernel.json import canonical_json
from actors._kernel.json_data import clean_text
from actors._kernel.runtime.ids import derive_id
from actors._kernel.workflow.durable import MAX_DEPTH, TRUNCATION, durable_copy, plain_copy
from actors._kernel.workflow.effects import Effect, EffectType, RunStatus, StepStatus, WaitState
from actors._kernel.workflow.run_state import GraphBranch, GraphFork, RunState
from actors._kernel.workflow.step_record import StepRecord
from actors._workflow.machine.variables import (
    BRANCH,
    LIMITS,
    RUNTIME,
    SEQ,
    STREAK,
    namespace,
    object_at,
    place_of,
    seq_of,
    with_item,
    with_path,
    without_path,
)

TRACES: Final = "node_traces"
TRACES_PER_NODE: Final = 5
"""Number of attempts of a node that each checkpoint keeps; the ledger has every attempt."""
TRACE_BYTES: Final = 4096
TRACE_DEPTH: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStep:
    """An effect that has started and has not ended.

    Attributes:
        seq: The number of the change of the state that the effect's end will be.
        node_id: The node that asked for the effect.
        effect: The effect in the form that its records have.
        next_node: The node after the effect, or None if the effect's result ends the run.
        changed: The node's changes of the vars, as ``set`` and ``unset`` of a delta.
        attempt: The number of the attempt, from 1.
        key: The effect's idempotency key.
        step_id: The id of this attempt.
        started_at: The start of the attempt, in ISO 8601 in UTC.
        due: The instant at which the attempt is due, or None if the attempt has started.
        origin: `seq` of the effect before it was in doubt, if a decision to execute it now opened it. It is
            None if the effect was not in doubt.
    """

    seq: int
    node_id: str
    effect: Effect
    next_node: str | None
    changed: dict[str, Any]
    attempt: int
    key: str
    step_id: str
    started_at: str
    due: str | None = None
    origin: int | None = None

    @property
    def first_seq(self) -> int:
        """`seq` of the effect, also of one that is executed again after it was in doubt."""
        return self.seq if self.origin is None else self.origin

    def to_dict(self) -> dict[str, Any]:
        """Return the step as JSON data."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.origin is None:
            del data["origin"]
        return data | {"effect": self.effect.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OpenStep:
        """Return the step from the data of `to_dict`."""
        return cls(**{**data, "effect": Effect.from_dict(data["effect"])})


def apply_record(
    state: RunState, record: StepRecord, open_step: OpenStep | None = None
) -> RunState:
    """Return the state after a record. `open_step` is the effect that the record ends, if it ends one.

    Raises:
        GraphError: A path leads through a value that is not an object.
    """
    delta = record.delta or {}
    if "seq" not in delta:
        return state
    variables = apply_delta(state.vars, open_step.changed if open_step else {})
    variables = apply_delta(variables, delta, record.result)
    runtime = {**object_at(variables, [RUNTIME])}
    if open_step is not None:
        runtime[TRACES] = _with_trace(namespace(runtime, TRACES), record)
        runtime |= _streak_behind(runtime, record)
    runtime[SEQ] = int(delta["seq"]) + 1
    variables = _with_token_count({**variables, RUNTIME: runtime}, record)
    status = RunStatus(delta.get("status", state.status))
    result = record.result if isinstance(record.result, dict) else {}
    waiting = None
    if status is RunStatus.WAITING:
        waiting = WaitState.from_dict(result["wait"]) if "wait" in result else state.waiting
    return state.moved(
        vars=variables,
        status=status,
        current_node=delta.get("node") or state.current_node,
        waiting=waiting,
        output=result.get("output") if status is RunStatus.COMPLETED else state.output,
        error=record.error if status in {RunStatus.FAILED, RunStatus.CANCELLED} else None,
        updated_at=record.ended_at or state.updated_at,
        fork=_fork_of(state, delta),
    )


def _fork_of(state: RunState, delta: dict[str, Any]) -> GraphFork | None:
    fork_data = delta.get("fork")
    if fork_data is None:
        return None if "joined" in delta else state.fork
    branches = tuple(GraphBranch(name=name, node=node) for name, node in fork_data["branches"])
    return GraphFork(seq=int(delta["seq"]), join=fork_data["join"], branches=branches)


def apply_delta(
    variables: dict[str, Any], delta: dict[str, Any], result: Any = None
) -> dict[str, Any]:
    """Return the vars with the changes of a delta applied. The result is set at the delta's ``key``.

    Raises:
        GraphError: See `apply_record`.
    """
    if not delta:
        return variables
    for path, value in delta.get("set") or ():
        variables = with_path(variables, path, value)
    for path in delta.get("unset") or ():
        variables = without_path(variables, path)
    for path, name, item in delta.get("put") or ():
        variables = with_item(variables, path, name, item)
    if delta.get("key"):
        variables = with_path(variables, delta["key"], result)
    return variables


def _with_trace(traces: dict[str, Any], record: StepRecord) -> dict[str, Any]:
    """Return the traces with the attempt added to the last attempts of its node."""
    old_trace = namespace(traces, record.node_id)
    entry = {
        "ts": record.ended_at,
        "step_id": record.step_id,
        "node_id": record.node_id,
        "status": str(record.status),
        "attempt": record.attempt,
        "started_at": record.started_at,
        "effect": _shorten(record.effect),
        "result": _shorten(record.result),
        "error": _shorten(record.error),
    }
    # A file of a history may have anything here; an error would break each further step of the run.
    old_steps, old_count = old_trace.get("steps"), old_trace.get("dropped")
    all_steps = [*(old_steps if isinstance(old_steps, list) else ()), entry]
    steps = all_steps[-TRACES_PER_NODE:]
    dropped_count = (old_count if type(old_count) is int else 0) + len(all_steps) - len(steps)
    trace = {"node_id": record.node_id, "steps": steps, "dropped": dropped_count}
    return {**traces, record.node_id: trace}


def _streak_behind(runtime: dict[str, Any], record: StepRecord) -> dict[str, Any]:
    """Return the names of `_runtime` that the end of an effect changes in the count of waits for an instant.

    The end of such a wait is no end of an effect, and changes nothing. So a run that wakes, looks and waits
    again is counted. A run without such waits does not have the name.
    """
    value = runtime.get(STREAK)
    streak = value if type(value) is int else 0  # a file of a history may have anything
    if (record.effect or {}).get("type") != EffectType.WAIT_UNTIL:
        return {STREAK: 0} if streak else {}
    return {STREAK: streak + 1} if record.status == StepStatus.WAITING else {}


def _shorten(value: Any) -> Any:
    if value is None:
        return None
    text = canonical_json(value)
    if len(text) <= TRACE_BYTES:
        levels = text.count("{") + text.count("[")  # or more: texts may contain brackets
        if levels <= TRACE_DEPTH or not _is_deeper(value, TRACE_DEPTH):
            return value
    summary: dict[str, Any] = {TRUNCATION: f"{len(text)} characters", "preview": text[:256]}
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        summary["type"] = value["type"]
    return summary


def _is_deeper(value: Any, limit: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return limit <= 0 or any(_is_deeper(item, limit - 1) for item in items)


def _with_token_count(variables: dict[str, Any], record: StepRecord) -> dict[str, Any]:
    """Return the vars with the tokens of the last model call, if the call reported them."""
    if (record.effect or {}).get("type") != EffectType.LLM_CALL or not isinstance(
        record.result, dict
    ):
        return variables
    usage = record.result.get("usage")
    tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
    if not isinstance(tokens, int):
        return variables
    return with_path(variables, [LIMITS, "estimated_tokens_used"], tokens)


class ShownRun(RunState):
    """A copy of a run. Its vars are copied when they are first read, since most handlers read none.

    Attributes:
        effect_seq: The number of the effect that its handler is called for; see `OpenStep.first_seq`.
    """

    __slots__ = ("_source_vars", "effect_seq")
    _source_vars: dict[str, Any]
    effect_seq: int

    @classmethod
    def of(cls, state: RunState, variables: dict[str, Any], effect_seq: int) -> ShownRun:
        """Return a copy of `state` with these vars, which nothing changes any more."""
        copy = cls(**state.cloned_values())
        copy._source_vars, copy.effect_seq = variables, effect_seq
        del copy.vars  # so that the first read of `vars` calls `__getattr__`
        return copy

    def __getattr__(self, name: str) -> Any:
        """Copy the vars; every other name is missing."""
        if name != "vars":
            raise AttributeError(f"a RunState has no {name!r}", name=name, obj=self)
        self.vars = plain_copy(self._source_vars)
        return self.vars


def seen_by_handler(state: RunState, open_step: OpenStep) -> RunState:
    """Return a copy of the run with the vars that the node left when it asked for the effect."""
    return ShownRun.of(state, apply_delta(state.vars, open_step.changed), open_step.first_seq)


STATUS_EVENT: Final = "abstract.status"
"""The event in the last record of a run, by which web pages see that the run ended.

AbstractFramework names it so.
"""
ANSWERS: Final = "answers"
"""Name in `_runtime`. Its value has answers that came before their wait, by wait key."""
CONTROL: Final = "control"
"""Name in `_runtime`. Its value says if the run is paused, and the reason."""
INBOX: Final = "inbox"
"""Name in `_runtime`. Its value has messages of `steer`, the oldest first."""
MOST_MESSAGES: Final = 200


@dataclass(frozen=True, slots=True)
class Transition:
    """A decision.

    Attributes:
        state: The state after the decision.
        records: The records of the decision, in order.
        opened: The effect that the driver has to execute now, or at its `due` if it has one. If it is None and
            the state is RUNNING, the driver has to call the node.
    """

    state: RunState
    records: tuple[StepRecord, ...] = ()
    opened: OpenStep | None = None


def node_record(  # noqa: PLR0913 - the values of a record
    state: RunState,
    status: StepStatus,
    at: str,
    *,
    effect: dict[str, Any] | None = None,
    result: Any = None,
    error: str | None = None,
    delta: dict[str, Any] | None = None,
    key: str | None = None,
    checked: bool = False,
) -> StepRecord:
    """Return a record about the current node of a run, with `key` as its idempotency key.

    `checked`: see `StepRecord`.
    """
    return StepRecord(
        run_id=state.run_id,
        step_id=derive_id(place_of(state.run_id, state.vars), seq_of(state.vars), 0),
        node_id=state.current_node,
        status=status,
        effect=effect,
        result=result,
        error=error,
        started_at=at,
        ended_at=at,
        actor_id=state.actor_id,
        session_id=state.session_id,
        idempotency_key=key,
        delta=delta,
        checked=checked,
    )


def transition_of(
    state: RunState, record: StepRecord, open_step: OpenStep | None = None
) -> Transition:
    """Return the decision of one record, with the state after it; see `apply_record`."""
    return Transition(apply_record(state, record, open_step), (record,))


def completed(
    state: RunState,
    output: Any,
    var_changes: dict[str, Any],
    *,
    at: str,
    via: dict[str, Any] | None = None,
) -> Transition:
    """Decide that a run ends with this output. `via` says where the output is from, if not from a node.

    All are checked JSON data.
    """
    delta = var_changes | {"seq": seq_of(state.vars), "status": RunStatus.COMPLETED.value}
    result = {"completed": True, "output": output} | (via or {})
    record = node_record(state, StepStatus.COMPLETED, at, result=result, delta=delta, checked=True)
    return add_end_event(transition_of(state, record), at=at)


def failed(state: RunState, error: str, *, at: str) -> Transition:
    """Decide that a run fails."""
    record = node_record(
        state,
        StepStatus.FAILED,
        at,
        error=clean_text(error),
        delta={"seq": seq_of(state.vars), "status": RunStatus.FAILED.value},
    )
    return add_end_event(transition_of(state, record), at=at)


def cancelled(state: RunState, reason: str | None, by: str, *, at: str) -> Transition:
    """Decide on a request to cancel a run. A run that has ended stays as it is."""
    if state.status.is_terminal:
        return Transition(state)
    record = node_record(
        state,
        StepStatus.CANCELLED,
        at,
        result={"cancelled_by": by, "reason": reason},
        error=clean_text(reason or "cancelled"),
        delta={"seq": seq_of(state.vars), "status": RunStatus.CANCELLED.value},
    )
    return add_end_event(transition_of(state, record), at=at)


def note_value(state: RunState, kind: str, path: list[str], value: Any, *, at: str) -> Transition:
    """Change one value of a run's vars for an external request, and write a record of this kind.

    The record has no delta. The change is durable with the next checkpoint. An effect that has started stays
    open.

    Raises:
        NotSerializableError: `value` is not JSON data.
        GraphError: The path leads through a value that is not an object.
    """
    clean_value = durable_copy(value, ".".join(path), deepest=MAX_DEPTH - len(path))
    effect = {"type": kind, "payload": {"value": clean_value}, "result_key": None}
    key = derive_id(state.run_id, seq_of(state.vars), kind, at)
    record = node_record(state, StepStatus.COMPLETED, at, effect=effect, key=key)
    new_state = replace(state, vars=with_path(state.vars, path, clean_value), updated_at=at)
    return Transition(new_state, (record,))


def add_end_event(transition: Transition, *, at: str) -> Transition:
    """Return the end of a run with the record of its status event. The end of a branch has no such record."""
    state = transition.state
    if BRANCH in namespace(state.vars, RUNTIME):
        return transition
    payload = {
        "name": STATUS_EVENT,
        "scope": "session",
        "payload": {"run_id": state.run_id, "status": state.status.value},
    }
    effect = {"type": EffectType.EMIT_EVENT.value, "payload": payload, "result_key": None}
    record = node_record(
        state,
        StepStatus.COMPLETED,
        at,
        effect=effect,
        result={"delivered": 0},
        key=derive_id(state.run_id, seq_of(state.vars), "end"),
        checked=True,
    )
    return Transition(state, (*transition.records, record), transition.opened)


def is_paused(state: RunState) -> bool:
    """Return True if the run is paused."""
    return bool(namespace(namespace(state.vars, RUNTIME), CONTROL).get("paused"))


def with_message(state: RunState, message: Any) -> list[dict[str, Any]]:
    """Return the inbox of a run with a message added. The message's number follows that of the last one."""
    messages = namespace(state.vars, RUNTIME).get(INBOX)
    # A node may write the inbox: what is no message there is left out.
    inbox = [
        message
        for message in (messages if isinstance(messages, list) else ())
        if isinstance(message, dict) and type(message.get("seq")) is int
    ]
    seq = inbox[-1]["seq"] + 1 if inbox else 1
    content = message if isinstance(message, dict) else {"role": "user", "content": message}
    return [*inbox, {"seq": seq, "message": content}][-MOST_MESSAGES:]
