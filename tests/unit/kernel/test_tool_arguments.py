"""Schemas and values of a tool's arguments, by the hints of its function."""

from __future__ import annotations

import threading
from functools import partial
from typing import Annotated, Any, Literal, cast

import pytest
from pydantic import BaseModel, Field

from actors import AgentId, Tool, ToolCall
from actors._runtime.registry import Registry
from actors._runtime.verbs.model_calls import DirectToolInvoker
from actors.agents import ReActAgent
from actors.errors import ContractError, RegistrationError
from actors.testing import ScriptedModel


class Guest(BaseModel):
    """Somebody who comes."""

    title: str
    age: int = 0


async def book(  # type: ignore[no-untyped-def]
    city: Annotated[str, Field(description="Where to")],
    nights: int,
    *,
    board: Literal["half", "full"] = "half",
    guest: Guest | None = None,
    note=None,  # noqa: ANN001 - an author who gives no hint
) -> list[Any]:
    """Return what came."""
    return [city, nights, board, guest and guest.title, note]


async def anything(**more: Any) -> dict[str, Any]:
    """Return what came."""
    return more


def test_the_model_is_told_of_the_arguments_by_the_hints() -> None:
    """Names, types, what must be given, and what the author says of one."""
    schema = Tool("book", "Books.", book).spec().parameters

    assert schema["required"] == ["city", "nights"]
    assert schema["additionalProperties"] is False
    properties = schema["properties"]
    assert properties["city"] == {"type": "string", "description": "Where to"}
    assert properties["board"] == {"type": "string", "enum": ["half", "full"]}
    assert properties["note"] == {}
    assert schema["$defs"]["Guest"]["properties"]["title"] == {"type": "string"}
    assert Tool("any", "", anything).parameters["additionalProperties"] is True


def test_a_schema_of_the_authors_is_taken_as_it_is() -> None:
    """And the arguments as the model gave them."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = Tool("book", "", book, parameters=schema)

    assert tool.parameters == schema
    assert tool.fitted({"nights": "2"}) == {"nights": "2"}


async def test_the_function_gets_values_of_its_types() -> None:
    """What fits is converted; a model of pydantic comes as one."""
    call = ToolCall(
        id="1",
        name="book",
        arguments={"city": "Bern", "nights": "2", "guest": {"title": "Dr.", "age": 50}},
    )

    result = await _invoked(Tool("book", "", book), call)

    assert result.structured == ["Bern", 2, "half", "Dr.", None]


async def test_arguments_that_do_not_fit_are_an_error_for_the_model() -> None:
    """Each is named, and the function is not called."""
    call = ToolCall(id="1", name="book", arguments={"nights": "many", "hotel": 1})

    result = await _invoked(Tool("book", "", book), call)

    assert result.status == "error"
    for words in ("city: Field required", "nights: Input should be a valid integer", "hotel: "):
        assert words in result.text


async def _invoked(tool: Tool, call: ToolCall) -> Any:
    return await DirectToolInvoker().invoke(call, tools=[tool], idempotency_key="k")


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        ("Nope", "a type hint of tool 'odd' cannot be read: name 'Nope' is not defined"),
        (object.__init__, "tool 'odd' has no JSON schema"),
    ],
)
def test_a_hint_that_says_nothing_is_refused_with_the_remedy(hint: Any, words: str) -> None:
    """When the tool is made, not when a model calls it."""

    async def odd(x: Any) -> None: ...

    odd.__annotations__["x"] = hint
    with pytest.raises(ContractError, match="parameters=") as caught:
        Tool("odd", "", odd)
    assert words in str(caught.value)


def test_an_argument_by_its_place_is_refused() -> None:
    """Models name arguments."""

    async def odd(x: int, /) -> None: ...

    with pytest.raises(ContractError, match="takes 'x' by its place"):
        Tool("odd", "", odd)


class _Callable:
    def __call__(self, n: int) -> int:
        return n + threading.get_ident()


class _Async:
    async def __call__(self, n: int) -> int:
        return n + threading.get_ident()


async def _slowly(n: int) -> int:
    return n + threading.get_ident()


def _quickly(n: int) -> int:
    return n + threading.get_ident()


@pytest.mark.parametrize(
    ("run", "is_async"),
    [
        (_quickly, False),
        (lambda n: n + threading.get_ident(), False),
        (partial(_quickly), False),
        (_Callable(), False),
        (_slowly, True),
        (partial(_slowly), True),
        (partial(partial(_Async())), True),
        (_Async().__call__, True),
        (lambda n: _slowly(n=n), True),
    ],
)
async def test_a_plain_function_is_called_in_a_thread(run: Any, is_async: bool) -> None:
    """And a coroutine function in the event loop, whatever it is wrapped in."""
    tool = Tool("count", "", run, parameters={"type": "object"})

    result = await _invoked(tool, ToolCall(id="1", name="count", arguments={"n": 1}))

    assert (result.structured == 1 + threading.get_ident()) is is_async


def test_what_cannot_be_a_tool_is_refused_when_it_is_declared() -> None:
    """Called by a model it would act, or seem to, and then fail."""

    def pieces() -> Any:
        yield "a"

    async def more() -> Any:
        yield "a"

    for run in (pieces, more, partial(pieces)):
        with pytest.raises(ContractError, match="yields, and a tool has one result: return a list"):
            Tool("odd", "", run)
    with pytest.raises(ContractError, match="str is no function"):
        Tool("odd", "", cast("Any", "pay"))
    with pytest.raises(ContractError, match="thread=True is for plain functions"):
        Tool("odd", "", _slowly, thread=True)


def test_two_tools_of_one_name_are_refused() -> None:
    """By the agent that is made of them, else when one of the author's own is registered."""
    tools = [Tool("ok", "", anything), Tool("ok", "", book)]
    with pytest.raises(ContractError, match="agent helper/main has two tools named 'ok'"):
        ReActAgent("helper", model=ScriptedModel("fine"), tools=tools)

    class Own:
        def __init__(self) -> None:
            self.id, self.tools = AgentId("own", "1"), tools

        async def run(self, ctx: Any, inbox: list[Any]) -> None: ...

    with pytest.raises(RegistrationError, match="two tools named 'ok': rename one"):
        Registry().add(Own())
