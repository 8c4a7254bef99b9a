"""Tools: what an agent may do to the world, how one is invoked, and who may say no.

The arguments of a tool's function have a JSON schema, and become values of the function's types.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from math import inf
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NotRequired,
    Protocol,
    Required,
    Self,
    TypeAlias,
    runtime_checkable,
)

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from typing_extensions import TypedDict

from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.basics import check_s
from actors._kernel.json import JsonValue, as_json_data, canonical_json, fresh
from actors._kernel.json_data import clean
from actors._kernel.runtime.effects import EffectMode
from actors.errors import ContractError

_Fields: TypeAlias = dict[str, Any]
_typed_dict: Any = TypedDict
"""`TypedDict` as a function whose keys are known only at run time."""
_REMEDY: Final = "give the tool parameters=, the JSON schema of its arguments"
_VALUES: Final = frozenset(("const", "default", "enum", "examples"))
"""Keys of a schema that hold data, not schemas."""


class ToolArguments:
    """The keyword arguments of a function, read from its signature and its type hints.

    An argument without a hint takes any JSON value. One with a default need not be given. The hints are
    those that pydantic knows; `Annotated[str, Field(description=…)]` describes an argument for the model.

    Args:
        function: The tool's.
        tool: Its name, for errors.

    Attributes:
        schema: JSON schema of type object.

    Raises:
        ContractError: A hint cannot be read or has no JSON schema, or an argument cannot be given by name.
    """

    __slots__ = ("_adapter", "schema")

    def __init__(self, function: Callable[..., Any], tool: str) -> None:
        fields, is_open = _fields_of(function, tool)
        arguments = _typed_dict("arguments", fields)
        arguments.__pydantic_config__ = {"extra": "allow" if is_open else "forbid"}
        try:
            self._adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(arguments)
            self.schema = _without_titles(self._adapter.json_schema())
        except PydanticUserError as exc:
            problem = str(exc).partition("\n")[0].partition(". ")[0]
            raise ContractError(
                f"tool {tool!r} has no JSON schema: {problem}. Or {_REMEDY}"
            ) from exc

    def fitted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as values of their types.

        Raises:
            ValueError: They do not fit; the text names each that does not, for the model.
        """
        try:
            return self._adapter.validate_python(dict(arguments))
        except ValidationError as exc:
            problems = [
                f"{'.'.join(map(str, error['loc'])) or 'arguments'}: {error['msg']}"
                for error in exc.errors(include_url=False, include_input=False)
            ]
            raise ValueError(f"the arguments do not fit: {'; '.join(problems)}") from None


def check_function(function: Any, tool: str, *, thread: bool) -> bool:
    """Check that a function can be a tool's, and return True if it is a coroutine function.

    A plain function is called in a thread, because it may block.

    Raises:
        ContractError: It cannot be called, it is a generator, or it is a coroutine function and `thread` is
            set.
    """
    if not callable(function):
        msg = f"tool {tool!r}: {type(function).__name__} is no function"
        raise ContractError(f"{msg}: give one with `def` or `async def`")
    inner: Any = function
    while isinstance(inner, partial):
        inner = inner.func
    callee = inner if inspect.isroutine(inner) else type(inner).__call__
    if inspect.isgeneratorfunction(callee) or inspect.isasyncgenfunction(callee):
        msg = f"tool {tool!r} yields, and a tool has one result: return a list or a text"
        raise ContractError(msg)
    is_async = inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(callee)
    if is_async and thread:
        msg = f"tool {tool!r}: thread=True is for plain functions, and this one is `async`: leave it out"
        raise ContractError(msg)
    return is_async


def _fields_of(function: Callable[..., Any], tool: str) -> tuple[_Fields, bool]:
    """Return the type of each argument, and whether the function takes any others, too."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except (NameError, SyntaxError, AttributeError) as exc:
        msg = f"a type hint of tool {tool!r} cannot be read: {exc}. Correct the hint, or {_REMEDY}"
        raise ContractError(msg) from exc
    except (TypeError, ValueError) as exc:
        raise ContractError(f"tool {tool!r} has no signature: {_REMEDY}") from exc
    fields: _Fields = {}
    is_open = False
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            is_open = True
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            msg = f"tool {tool!r} takes {name!r} by its place: arguments are given by name"
            raise ContractError(msg)
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            hint = Any if parameter.annotation is parameter.empty else parameter.annotation
            fields[name] = (
                Required[hint] if parameter.default is parameter.empty else NotRequired[hint]
            )
    return fields, is_open


def _without_titles(schema: Any) -> Any:
    """Return a schema without the names that pydantic makes up for fields: models pay for them."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in _VALUES else _without_titles(value)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }


ToolFunction: TypeAlias = Callable[..., Awaitable[Any]] | Callable[..., Any]
"""Called with the call's arguments by keyword; returns any value, or an `InvocationResult`.

A plain function is called in a thread.
"""
_Clean: TypeAlias = Annotated[str, AfterValidator(clean)]

_NO_PARAMETERS: Final[dict[str, Any]] = {"type": "object", "properties": {}}


class Risk(StrEnum):
    """The harm that a wrong call can do. HIGH and CRITICAL tools need approval."""

    SAFE = "safe"
    HIGH = "high"
    CRITICAL = "critical"


class ToolSpec(BaseModel):
    """A tool as a model sees it. `parameters` is a JSON schema of type object."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: dict(_NO_PARAMETERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalPolicy:
    """The choice of tools that wait for a person. An agent's optional attribute `approval_policy`.

    Without one, HIGH and CRITICAL tools do. A policy that changes while runs are open changes their
    code: give the agent another `version` then.

    Attributes:
        risks: Tools of these risks wait.
        always: Names of tools that wait whatever their risk.
        never: Names of tools that do not wait whatever their risk.
        timeout_s: Seconds after which a call without a decision is denied, or None if it waits.
    """

    risks: frozenset[Risk] = frozenset((Risk.HIGH, Risk.CRITICAL))
    always: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    timeout_s: float | None = None

    def asks_for(self, tool: Tool) -> bool:
        """Return True if a person has to agree to each call of the tool."""
        if tool.name in self.always:
            return True
        return tool.risk in self.risks and tool.name not in self.never


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of an agent.

    Attributes:
        name: The tool's name for the model and `ctx.tool`; unique within an agent.
        description: For the model.
        run: The function; called with the arguments by keyword. A plain function is called in a thread of
            its own, so it may block. Out of time or cancelled, the thread goes on and what it returns is
            dropped.
        parameters: JSON schema of the arguments. By default it is made of the function's signature and
            type hints, see `ToolArguments`; a call's arguments are then checked against the hints, and the
            function gets values of their types. With a schema of the author's it gets what the model gave.
        risk: The harm that a wrong call can do. `ApprovalPolicy` tells which calls wait for a person.
        idempotent: True if calling it twice is as good as once. Otherwise, after a crash in the middle
            of a call it is never called again; the call is in doubt.
        timeout_s: Seconds one call may take; None for no limit.
        thread: States that `run` is a plain function; a coroutine function is then refused.

    Raises:
        ContractError: `run` is no function or yields, no schema can be made of its signature, or `timeout_s`
            is no time.
    """

    name: str
    description: str
    run: ToolFunction
    parameters: dict[str, Any] = field(default_factory=dict)
    risk: Risk = Risk.SAFE
    idempotent: bool = False
    timeout_s: float | None = None
    thread: bool = False
    _arguments: ToolArguments | None = field(default=None, init=False, repr=False, compare=False)
    _is_async: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        is_async = check_function(self.run, self.name, thread=self.thread)
        object.__setattr__(self, "_is_async", is_async)
        if not self.parameters:
            arguments = ToolArguments(self.run, self.name)
            object.__setattr__(self, "_arguments", arguments)
            object.__setattr__(self, "parameters", arguments.schema)
        if self.timeout_s is not None and self.timeout_s != inf:
            check_s(f"timeout_s of tool {self.name!r}", self.timeout_s)

    @property
    def is_async(self) -> bool:
        """True if `run` is a coroutine function, and is called in the event loop."""
        return self._is_async

    @property
    def mode(self) -> EffectMode:
        """The handling of a call that a crash leaves without a recorded result."""
        return EffectMode.IDEMPOTENT if self.idempotent else EffectMode.AT_MOST_ONCE

    def fitted(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return a call's arguments as the function takes them.

        Raises:
            ValueError: They do not fit the type hints; the text is for the model.
        """
        return arguments if self._arguments is None else self._arguments.fitted(arguments)

    def spec(self) -> ToolSpec:
        """Return the tool as a model sees it; the description says whether it may be repeated."""
        note = "Safe to repeat." if self.idempotent else "Not safe to repeat."
        return ToolSpec(
            name=self.name,
            description=f"{self.description} {note}".strip(),
            parameters=self.parameters,
        )


def check_tools(tools: Sequence[Tool], agent: object) -> None:
    """Check that each tool of an agent has a name of its own.

    Raises:
        ContractError: Two have the same: the first one would be called for both.
    """
    names: set[str] = set()
    for tool in tools:
        if tool.name in names:
            raise ContractError(f"agent {agent} has two tools named {tool.name!r}: rename one")
        names.add(tool.name)


def client_tools_in(payload: JsonValue) -> tuple[ToolSpec, ...]:
    """Return the tools that came with a message, the first of each name: its client executes them.

    They are in ``tools`` of the payload's ``client``. What is none is left out: anybody writes payloads.
    """
    client = payload.get("client") if isinstance(payload, dict) else None
    tools = client.get("tools") if isinstance(client, dict) else None
    specs: dict[str, ToolSpec] = {}
    for tool in tools if isinstance(tools, list) else ():
        try:
            spec = ToolSpec.model_validate(fresh(tool))
        except ValidationError:
            continue
        specs.setdefault(spec.name, spec)
    return tuple(specs.values())


class ToolCall(BaseModel):
    """A call of a tool, as a model or an agent asks for it.

    Attributes:
        id: Connects the call and its result in the conversation.
        name: The tool's.
        arguments: By name.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    id: str
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of_block(cls, block: ContentBlock) -> Self:
        """Return the call that a content block of type ``tool_call`` holds."""
        data = block.model_extra or {}
        return cls(id=data["id"], name=data["name"], arguments=data.get("arguments") or {})

    def block(self) -> ContentBlock:
        """Return the call as a content block of type ``tool_call``."""
        return ContentBlock.model_validate({"type": "tool_call", **self.model_dump()})


class ToolResult(BaseModel):
    """The answer to one `ToolCall`, as a conversation holds it: in a message of role ``tool``.

    Images and other media that a tool gave are blocks of their own, after the result in that message.

    Attributes:
        id: The call's.
        name: The tool's.
        text: For the model.
        is_error: The tool failed, does not exist, or was not called.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    id: str
    name: str
    text: str = ""
    is_error: bool = False

    def block(self) -> ContentBlock:
        """Return the result as a content block of type ``tool_result``."""
        return ContentBlock.model_validate({"type": "tool_result", **self.model_dump()})

    def message(self) -> ChatMessage:
        """Return the result as the conversation's next message."""
        return ChatMessage(role="tool", content=[self.block()])


class InvocationResult(BaseModel):
    """The outcome of a call. It is recorded, so values become JSON data; see `as_json_data`.

    Attributes:
        status: ``ok``; ``error`` when the tool failed or does not exist; ``denied`` when a person
            said no. Neither of the last two raises: the model reads them.
        text: For the model.
        structured: The tool's value.
        artifact_ref: Reference of the stored value, if the value is large.
        error_type: Qualified class name of what the tool raised.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    status: Literal["ok", "error", "denied"]
    text: _Clean = ""
    structured: Annotated[Any, AfterValidator(as_json_data)] = None
    artifact_ref: _Clean | None = None
    error_type: _Clean | None = None

    @classmethod
    def of(cls, value: Any) -> InvocationResult:
        """Return what a tool returned, of whatever type, as the result of its call."""
        if isinstance(value, InvocationResult):
            return value
        result = cls(status="ok", structured=value)
        is_text = isinstance(result.structured, str)
        return result.model_copy(update={"text": result.structured}) if is_text else result

    def result(self, call: ToolCall) -> ToolResult:
        """Return what the model reads: the text, else the tool's value as JSON."""
        text = self.text
        if not text and not isinstance(self.structured, str | None):
            text = canonical_json(self.structured)
        return ToolResult(id=call.id, name=call.name, text=text, is_error=self.status != "ok")


class ToolApprovalRequest(BaseModel):
    """A call that a person has to allow first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    call: ToolCall
    risk: Risk
    run_id: str
    agent: str
    reason: str = ""


class ApprovalDecision(BaseModel):
    """A person's decision about a tool call, its reason, and the person."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    approved: bool
    reason: str = ""
    by: str = ""


@runtime_checkable
class ApprovalHandler(Protocol):
    """The receiver of approval requests: it decides before a risky tool runs."""

    async def request(self, request: ToolApprovalRequest) -> ApprovalDecision:
        """Return the decision; may take as long as a human takes. A denial is not an error."""


@runtime_checkable
class ToolInvoker(Protocol):
    """The executor of tool calls."""

    async def invoke(
        self,
        call: ToolCall,
        *,
        tools: Sequence[Tool],
        idempotency_key: str,
        approval: ApprovalHandler | None = None,
    ) -> InvocationResult:
        """Run the tool of that name and return what became of it.

        A tool that is not in `tools`, arguments that do not fit and an exception of the tool are
        ``error`` results. `idempotency_key` is the effect's id: the same on every repetition.
        """
