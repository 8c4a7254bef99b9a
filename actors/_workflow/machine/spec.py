"""A graph: named nodes, one of which is the entry node, and what its runs share.

A policy of effects decides the number of attempts, the pauses between them, and the idempotency key. A wait for
an event and an emission have the event's name in common.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from actors._kernel.workflow.durable import durable_copy, json_digest
from actors._kernel.workflow.effects import Effect, EffectType, StepPlan
from actors._kernel.workflow.errors import GraphError
from actors._kernel.workflow.run_state import RunState

Node: TypeAlias = Callable[[RunState, Any], StepPlan]
"""A function that gets a copy of the run, whose `vars` it may change, and the driver's context.

It returns a plan.
"""

Reducer: TypeAlias = Callable[[Any, list[Any]], Any]
"""A function that gets the value before the branches, or None, and the values after the branches.

The values are those of the branches that changed it, in the order of the branches. The function returns the
value after the join.
"""


@dataclass(frozen=True, slots=True)
class WorkflowSpec:
    """A graph.

    Attributes:
        workflow_id: The graph's name.
        entry_node: The node that a run begins with.
        nodes: The nodes by name.
        reducers: The reducers, by the paths of the vars that several branches may change (dots nest). Other
            vars may be changed by at most one branch of a fork.
        version: The version of the graph's code, for runs that are agents' runs. A run keeps the version that
            it began with. If it is None, runs continue with the code that the host has.

    Raises:
        GraphError: The graph has no name, or `entry_node` is not a node.
        NotSerializableError: The name of a node is no text that can be stored.
    """

    workflow_id: str
    entry_node: str
    nodes: Mapping[str, Node] = field(default_factory=dict)
    reducers: Mapping[str, Reducer] = field(default_factory=dict)
    version: str | None = None

    def __post_init__(self) -> None:
        if not self.workflow_id or not isinstance(self.workflow_id, str):
            raise GraphError("a graph", "it has no workflow_id. Give it a name")
        if self.entry_node not in self.nodes:
            problem = (
                f"its entry {self.entry_node!r} is none of its nodes. Add it, or name another one"
            )
            raise GraphError(f"graph {self.workflow_id!r}", problem)
        durable_copy([*self.nodes], f"nodes of graph {self.workflow_id!r}")

    def get_node(self, node_id: str) -> Node:
        """Return a node.

        Raises:
            KeyError: The graph has no node of this name.
        """
        if node_id not in self.nodes:
            raise KeyError(f"graph {self.workflow_id!r} has no node {node_id!r}")
        return self.nodes[node_id]

    @property
    def title(self) -> str:
        """Name and version, for a person to read."""
        of = "" if self.version is None else f" of version {self.version!r}"
        return f"flow {self.workflow_id!r}{of}"

    @property
    def hash(self) -> str:
        """The first 32 hexadecimal digits of a SHA-256 of names, entry node, and code of nodes and reducers.

        It is the same in every process with the same source text.
        """
        nodes = {name: _code_of(node) for name, node in self.nodes.items()}
        parts = [self.workflow_id, self.entry_node, nodes]
        if self.reducers:
            parts.append({name: _code_of(reducer) for name, reducer in self.reducers.items()})
        return json_digest(parts)[:32]

    def described(self) -> dict[str, Any]:
        """Return the description of the graph for a history, as JSON data."""
        return {
            "workflow_id": self.workflow_id,
            "entry_node": self.entry_node,
            "nodes": sorted(self.nodes),
            "hash": self.hash,
        }


def _code_of(node: Node | Reducer) -> str:
    source = getattr(node, "source", None)
    if isinstance(source, str):  # a node that is data, such as a node of a flow document
        return source
    try:
        return inspect.getsource(node)
    except (OSError, TypeError):
        code = getattr(node, "__code__", None)
        return repr(node if code is None else (code.co_code, code.co_consts, code.co_names))


@runtime_checkable
class EffectPolicy(Protocol):
    """The rules of an effect's attempts."""

    def max_attempts(self, effect: Effect) -> int:
        """Return the maximum number of attempts of the effect, at least 1."""

    def backoff_seconds(self, *, effect: Effect, attempt: int) -> float:
        """Return the pause after a failed attempt, in seconds. Attempts are counted from 1."""


class DefaultEffectPolicy:
    """A policy with one attempt of each effect, unless set otherwise. Pauses double up to a limit.

    Args:
        default_max_attempts: Attempts of effects that `effect_max_attempts` does not name.
        default_backoff_base: The pause after the first attempt, in seconds.
        default_backoff_max: The longest pause, in seconds.
        effect_max_attempts: Attempts by the name of the effect's type, for example ``llm_call``.
    """

    def __init__(
        self,
        default_max_attempts: int = 1,
        default_backoff_base: float = 1.0,
        default_backoff_max: float = 60.0,
        effect_max_attempts: Mapping[str, int] | None = None,
    ) -> None:
        self._attempts = max(1, default_max_attempts)
        self._base, self._longest = default_backoff_base, default_backoff_max
        self._by_type = {str(name): n for name, n in (effect_max_attempts or {}).items()}

    def max_attempts(self, effect: Effect) -> int:
        """Return the number that the effect's payload has as ``retry.max_attempts``, else that of its type."""
        retry = effect.payload.get("retry")
        attempts = retry.get("max_attempts") if isinstance(retry, dict) else None
        if isinstance(attempts, int) and attempts > 0:
            return attempts
        return max(1, self._by_type.get(effect.type.value, self._attempts))

    def backoff_seconds(self, *, effect: Effect, attempt: int) -> float:
        """Return the pause after an attempt, in seconds: the base, doubled each time, up to the maximum."""
        del effect
        # Without the limit, 2.0 ** 1024 would raise OverflowError.
        doublings = min(max(attempt - 1, 0), 60)
        return float(min(self._longest, self._base * 2.0**doublings))


class RetryPolicy(DefaultEffectPolicy):
    """A policy with three attempts of a model call, two of a batch of tools, and one of every other effect."""

    def __init__(
        self,
        *,
        llm_max_attempts: int = 3,
        tool_max_attempts: int = 2,
        backoff_base: float = 1.0,
        backoff_max: float = 60.0,
    ) -> None:
        super().__init__(
            default_backoff_base=backoff_base,
            default_backoff_max=backoff_max,
            effect_max_attempts={
                EffectType.LLM_CALL: llm_max_attempts,
                EffectType.TOOL_CALLS: tool_max_attempts,
            },
        )


class NoRetryPolicy(DefaultEffectPolicy):
    """A policy with one attempt of each effect, unless the effect's payload sets more."""

    def __init__(self) -> None:
        super().__init__(default_max_attempts=1)


def compute_idempotency_key(*, run_id: str, node_id: str, effect: Effect, seq: int = 0) -> str:
    """Return the idempotency key of an effect of one step: 32 hexadecimal digits.

    All attempts of the effect have the same key, also after a crash. If the node asks again, the key is another
    one, since `seq`, the number of the step, has changed.
    """
    parts = [run_id, node_id, effect.type.value, effect.payload, effect.result_key, seq]
    return json_digest(parts)[:32]


SCOPES = ("session", "workflow", "run", "global")
_BEGINNING = "evt:"


def event_key(name: str, *, scope: str, scope_id: str) -> str:
    """Return the wait key of an event of this name in this scope.

    Raises:
        GraphError: The name is empty, or the scope does not exist.
    """
    if not name:
        raise GraphError("an event", "it has no name. Give its payload a `name`")
    if scope not in SCOPES:
        raise GraphError(f"event {name!r}", f"scope {scope!r} is none of {', '.join(SCOPES)}")
    return f"{_BEGINNING}{scope}:{scope_id}:{name}"


def is_event_key(wait_key: str) -> bool:
    """Return True if the key is that of an event, which any number of waits may have."""
    return wait_key.startswith(_BEGINNING)


def key_of_payload(run: RunState, payload: dict[str, Any]) -> str:
    """Return the key of the event that an effect of `run` waits for or emits.

    The scope is the run's session, or the run's own id if it has no session. The payload may set another scope
    with `scope`, `session_id`, `workflow_id` or `run_id`.

    Raises:
        GraphError: See `event_key`.
    """
    scope = str(payload.get("scope") or "session")
    own_ids = {
        "session": run.session_id or run.run_id,
        "workflow": run.workflow_id,
        "run": run.run_id,
        "global": "global",
    }
    scope_id = str(payload.get(f"{scope}_id") or own_ids.get(scope, ""))
    return event_key(str(payload.get("name") or ""), scope=scope, scope_id=scope_id)


def event_from(payload: dict[str, Any], id_: str, run_id: str) -> dict[str, Any]:
    """Return the data that an answered wait for an event gets."""
    return {
        "event_id": id_,
        "name": payload.get("name"),
        "scope": payload.get("scope") or "session",
        "payload": payload.get("payload"),
        "run_id": run_id,
    }
