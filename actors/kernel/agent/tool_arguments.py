"""The arguments of a tool's function: their JSON schema, and values of their types."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NotRequired, Required, TypeAlias

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from typing_extensions import TypedDict

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
            said = str(exc).partition("\n")[0].partition(". ")[0]
            raise ContractError(f"tool {tool!r} has no JSON schema: {said}. Or {_REMEDY}") from exc

    def fitted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as values of their types.

        Raises:
            ValueError: They do not fit; the text names each that does not, for the model.
        """
        try:
            return self._adapter.validate_python(dict(arguments))
        except ValidationError as exc:
            problems = [
                f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}"
                for one in exc.errors(include_url=False, include_input=False)
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
    called = inner if inspect.isroutine(inner) else type(inner).__call__
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        msg = f"tool {tool!r} yields, and a tool has one result: return a list or a text"
        raise ContractError(msg)
    is_async = inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(called)
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
    for name, one in signature.parameters.items():
        if one.kind is one.VAR_KEYWORD:
            is_open = True
        elif one.kind is one.POSITIONAL_ONLY:
            msg = f"tool {tool!r} takes {name!r} by its place: arguments are given by name"
            raise ContractError(msg)
        elif one.kind is not one.VAR_POSITIONAL:
            hint = Any if one.annotation is one.empty else one.annotation
            fields[name] = Required[hint] if one.default is one.empty else NotRequired[hint]
    return fields, is_open


def _without_titles(schema: Any) -> Any:
    """Return a schema without the names that pydantic makes up for fields: models pay for them."""
    if isinstance(schema, list):
        return [_without_titles(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in _VALUES else _without_titles(value)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }
