"""The flow document, version 1: a graph as data, with its durations and reducers.

A duration is a number of seconds, or a text such as ``90s``, ``15m``, ``2h30m`` or ``3d``. A reducer merges the
values that several branches changed at a join; documents name it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
)

from actors._kernel.workflow.effects import EffectType
from actors._workflow.machine.spec import Reducer

LONGEST_S: Final = 100 * 365 * 86400.0
_UNITS: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|d|h|m|s)")
_TEXT: Final = r"^(\d+(\.\d+)?(ms|d|h|m|s))+$"


def seconds_in(duration: Any) -> float:
    """Return a duration in seconds.

    Raises:
        ValueError: The value is not a duration, or not between 0 and 100 years.
    """
    if isinstance(duration, str) and re.fullmatch(_TEXT, duration):
        seconds = sum(float(count) * _UNITS[unit] for count, unit in _PART.findall(duration))
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        seconds = float(duration)
    else:
        raise ValueError(f"{duration!r} is no duration; write seconds, or 90s, 15m, 2h30m or 3d")
    if not 0 <= seconds <= LONGEST_S:
        raise ValueError(f"{duration!r} is not between 0 and 100 years")
    return seconds


Duration = Annotated[
    float,
    BeforeValidator(seconds_in),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": _TEXT}]}
    ),
]


ReducerName: TypeAlias = Literal["add", "append", "merge", "max", "min", "last"]


# The hash of a graph includes the source text of these reducers. A change within one of them, even of a name,
# would make the restore of a snapshot of an older release need `force`.


def add(before: Any, values: list[Any]) -> Any:
    """Return the number plus the changes of all branches."""
    start = before or 0
    return start + sum(value - start for value in values)


def append(before: Any, values: list[Any]) -> list[Any]:
    """Return the list plus the items that each branch appended."""
    start = list(before or [])
    return start + [one for value in values for one in value[len(start) :]]


def merge(before: Any, values: list[Any]) -> dict[str, Any]:
    """Return an object with the names of all branches. Of equal names the value of the last branch is taken."""
    return dict(before or {}) | {name: value for one in values for name, value in one.items()}


def largest(before: Any, values: list[Any]) -> Any:
    """Return the largest value."""
    return max(values if before is None else [before, *values])


def smallest(before: Any, values: list[Any]) -> Any:
    """Return the smallest value."""
    return min(values if before is None else [before, *values])


def last(before: Any, values: list[Any]) -> Any:
    """Return the value of the last branch."""
    del before
    return values[-1]


REDUCERS: Final[Mapping[ReducerName, Reducer]] = {
    "add": add,
    "append": append,
    "merge": merge,
    "max": largest,
    "min": smallest,
    "last": last,
}


MOST_NODES: Final = 10_000
TIMEOUT_MARK: Final = "~"
"""Suffix of the names of nodes that the compiler adds. Such a node tests if a wait ended by its deadline."""

EffectName: TypeAlias = Literal[
    "ask_user",
    "answer_user",
    "wait_event",
    "wait_until",
    "emit_event",
    "vars_query",
    "llm_call",
    "tool_calls",
    "memory_note",
    "memory_query",
    "memory_tag",
    "memory_compact",
    "memory_rehydrate",
    "memory_kg_assert",
    "memory_kg_query",
    "memory_kg_resolve",
]
"""The names of effects. Sub-graphs have a node kind of their own."""
assert {*EffectType} - {*EffectName.__args__} == {EffectType.START_SUBWORKFLOW}  # type: ignore[attr-defined]

_NODE: Final = r"^[^~\x00-\x1f\x7f]+$"
_PLACE: Final = r"^[^.\x00_][^.\x00]*(\.[^.\x00]+)*$"
_FLOW: Final = r"^[^:@/\s\x00-\x1f]+$"
_VERSION: Final = r"^[0-9A-Za-z][0-9A-Za-z.+_-]*$"
MEANINGS: Final = {
    _NODE: "a name without ~ and control characters",
    _PLACE: "a place in the vars, such as order.total; names that begin with _ are the runtime's",
    _FLOW: "a name without colon, @, slash and spaces",
    _VERSION: "a version, such as 1.2",
}
"""By pattern: the description of valid texts, for findings."""

NodeName: TypeAlias = Annotated[str, Field(min_length=1, max_length=200, pattern=_NODE)]
VarPath: TypeAlias = Annotated[str, Field(pattern=_PLACE, max_length=500)]
"""A path in the vars; dots nest. Names that begin with an underscore are the runtime's."""


class _DocumentPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class _NodeData(_DocumentPart):
    kind: ClassVar[str]
    title: str | None = None
    """A title for people to read. It changes nothing."""


class EffectNode(_NodeData):
    """A request to the host: a question, a wait, a model call or tool calls."""

    kind: ClassVar[str] = "effect"
    effect: EffectName
    with_: dict[str, Any] = Field(default_factory=dict, alias="with")
    into: VarPath | None = None
    next: NodeName
    retry: Annotated[int, Field(ge=1, le=100)] | None = None
    """Number of attempts, or None if the host's policy decides."""
    deadline: Duration | None = None
    on_timeout: NodeName | None = None
    mode: Literal["idempotent", "at_most_once"] = "idempotent"


class FlowNode(_NodeData):
    """A run of another flow. With ``async`` the run does not wait for it and gets its id."""

    kind: ClassVar[str] = "flow"
    flow: Annotated[str, Field(min_length=1, max_length=200)]
    with_: dict[str, Any] = Field(default_factory=dict, alias="with")
    into: VarPath | None = None
    next: NodeName
    async_: bool = Field(default=False, alias="async")


class Case(_DocumentPart):
    """A case of a switch: a condition, and the node that follows if it is true."""

    when: str
    next: NodeName


class SwitchNode(_NodeData):
    """A node that continues at the first case whose expression is true, or at `else` if no expression is."""

    kind: ClassVar[str] = "switch"
    switch: Annotated[list[Case], Field(min_length=1)]
    else_: NodeName = Field(alias="else")


class SetNode(_NodeData):
    """New values of vars. Each value is computed from the vars as they were before the node."""

    kind: ClassVar[str] = "set"
    set_: dict[VarPath, Any] = Field(alias="set", min_length=1)
    next: NodeName


class CodeLimits(_DocumentPart):
    """Limits of a code node."""

    seconds: Annotated[float, Field(gt=0, le=10)] = 1.0
    memory_mib: Annotated[int, Field(ge=1, le=512)] = 32


class CodeNode(_NodeData):
    """Python code for the sandbox. The value of its last expression is the result."""

    kind: ClassVar[str] = "code"
    code: Annotated[str, Field(min_length=1, max_length=100_000)]
    with_: dict[str, Any] = Field(default_factory=dict, alias="with")
    into: VarPath
    next: NodeName
    limits: CodeLimits = CodeLimits()


class ForkNode(_NodeData):
    """Branches that the document names."""

    kind: ClassVar[str] = "parallel"
    parallel: Annotated[dict[str, NodeName], Field(min_length=1, max_length=1000)]
    join: NodeName


class EachNode(_NodeData):
    """A branch for each text in a list, or for each number below a number.

    The code reads its name as `branch`.
    """

    kind: ClassVar[str] = "each"
    each: str | list[str] | Annotated[int, Field(ge=1, le=1000)]
    do: NodeName
    join: NodeName


class LoopNode(_NodeData):
    """A loop.

    `do` leads back to it for each item, or as often as a number says. Then the loop continues at `next`.
    """

    kind: ClassVar[str] = "loop"
    loop: str | list[Any] | Annotated[int, Field(ge=0)]
    as_: VarPath | None = Field(default=None, alias="as")
    """The place in the vars of the item, or of the count, which begins at 0."""
    do: NodeName
    next: NodeName


class EndNode(_NodeData):
    """The end of the run or of a branch, with its output."""

    kind: ClassVar[str] = "end"
    end: Any


KINDS: Final = ("effect", "flow", "switch", "set", "code", "parallel", "each", "loop", "end")


def _kind_of(node: Any) -> str | None:
    if isinstance(node, _NodeData):
        return node.kind
    kinds = [kind for kind in KINDS if isinstance(node, dict) and kind in node]
    return kinds[0] if len(kinds) == 1 else None


AnyNode: TypeAlias = Annotated[
    Annotated[EffectNode, Tag("effect")]
    | Annotated[FlowNode, Tag("flow")]
    | Annotated[SwitchNode, Tag("switch")]
    | Annotated[SetNode, Tag("set")]
    | Annotated[CodeNode, Tag("code")]
    | Annotated[ForkNode, Tag("parallel")]
    | Annotated[EachNode, Tag("each")]
    | Annotated[LoopNode, Tag("loop")]
    | Annotated[EndNode, Tag("end")],
    Discriminator(_kind_of),
]


class FlowDocument(_DocumentPart):
    """A graph as data.

    Attributes:
        flow: The version of this format.
        id: The name of the graph.
        version: The graph's version. Runs are started with ``id@version`` as the name, or with ``id`` if it is
            None.
        title: A title for people to read.
        start: The first node.
        nodes: The nodes by name.
        reducers: By place in the vars: the reducer that merges values of several branches.
    """

    flow: Literal[1]
    id: Annotated[str, Field(min_length=1, max_length=100, pattern=_FLOW)]
    version: Annotated[str, Field(max_length=40, pattern=_VERSION)] | None = None
    title: str | None = None
    start: NodeName
    nodes: Annotated[dict[NodeName, AnyNode], Field(min_length=1, max_length=MOST_NODES)]
    reducers: dict[VarPath, ReducerName] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the graph with its version."""
        return self.id if self.version is None else f"{self.id}@{self.version}"

    def to_dict(self) -> dict[str, Any]:
        """Return the document as JSON data, from which it can be read again."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True) | {"flow": 1}
