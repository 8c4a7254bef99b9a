"""The sessions of an application: what `MODULE:APP` may name for `callboard chat` and `callboard host`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors import AgentId, Runtime
from actors.agents import ReActAgent
from actors.sessions import SessionAgent
from actors.testing import ScriptedModel
from compose._host.loader import ServeError, serve_all, serve_app

if TYPE_CHECKING:
    from collections.abc import Callable

MAIN = ReActAgent("helper", model=ScriptedModel(otherwise="yes"))
BOSS = ReActAgent("boss", model=ScriptedModel(otherwise="no"))
DESK = SessionAgent(AgentId("desk", "main"), {"normal": MAIN, "orchestrator": BOSS}, version="2")


class Greeter(ReActAgent):
    """An agent class without arguments."""

    def __init__(self) -> None:
        super().__init__("greeter", model=ScriptedModel(otherwise="hello"))


def make_helper(agent_id: AgentId) -> ReActAgent:
    """What a mapping {type: factory} has."""
    return ReActAgent(agent_id, model=MAIN.model)


async def registers(runtime: Runtime) -> None:
    """A function that registers its sessions."""
    await runtime.register_type("desk", DESK.of_id)
    await runtime.register_type("helper", make_helper)


async def returns(runtime: Runtime) -> object:
    """A function that registers a specialist, and returns the modes."""
    await runtime.register_type("helper", make_helper)
    return {"normal": MAIN, "orchestrator": BOSS}


def does_neither(runtime: Runtime) -> None:
    """A function without sessions."""
    del runtime


async def registers_two(runtime: Runtime) -> None:
    """A function with two types of sessions."""
    await runtime.register_type("desk", DESK.of_id)
    await runtime.register_type("shop", DESK.of_id)


@pytest.mark.parametrize(
    ("target", "app", "modes", "known_modes", "serves"),
    [
        (MAIN, "session", {"normal": MAIN}, ("normal",), ()),
        (DESK, "desk", dict(DESK.modes), ("normal", "orchestrator"), ()),
        ({"a": MAIN, "b": BOSS}, "session", {"a": MAIN, "b": BOSS}, ("a", "b"), ()),
        ([MAIN, BOSS], "session", {"normal": MAIN}, ("normal",), ("boss/main", "helper/main")),
        ([DESK, BOSS], "desk", {}, ("normal", "orchestrator"), ("desk", "boss/main")),
        ({"desk": DESK.of_id}, "desk", {}, ("normal", "orchestrator"), ("desk",)),
        (registers, "desk", {}, ("normal", "orchestrator"), ("desk", "helper")),
        (
            returns,
            "session",
            {"normal": MAIN, "orchestrator": BOSS},
            ("normal", "orchestrator"),
            ("helper",),
        ),
    ],
)
async def test_an_application_has_sessions(  # noqa: PLR0917 - a row of the table
    target: object,
    app: str,
    modes: dict[str, Any],
    known_modes: tuple[str, ...],
    serves: tuple[str, ...],
) -> None:
    """An agent, modes, a SessionAgent, the first of several, or what a function returns or registers."""
    runtime = Runtime()
    served = await serve_app(runtime, "shop:app", target)

    assert (served.app, dict(served.modes), served.known_modes) == (app, modes, known_modes)
    assert runtime.serves == serves


async def test_classes_and_factories_are_called() -> None:
    """A class of agents without arguments, and the first factory of a mapping."""
    of_class = await serve_app(Runtime(), "shop:Greeter", Greeter)
    of_factory = await serve_app(Runtime(), "shop:TYPES", {"helper": make_helper})

    assert isinstance(of_class.modes["normal"], Greeter)
    assert of_factory.modes["normal"].id == AgentId("helper", "main")


async def test_another_type_may_be_chosen() -> None:
    """Of two that a function registers one has to be."""
    assert (await serve_app(Runtime(), "shop:app", MAIN, app="talk")).app == "talk"
    assert (await serve_app(Runtime(), "shop:app", registers_two, app="shop")).app == "shop"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        (does_neither, "it has no sessions. Register the type of a SessionAgent"),
        (registers_two, "it has registered several types of sessions: desk, shop. Choose one with"),
        (7, "it is a int. It has to be an agent, a list of agents"),
        ([], "it is empty"),
        ({}, "it is empty"),
        (["x"], "str is not an agent"),
    ],
)
async def test_what_has_no_sessions_is_refused(target: object, problem: str) -> None:
    """In a sentence with the way out."""
    with pytest.raises(ServeError, match=f"cannot serve 'shop:app': {problem}"):
        await serve_app(Runtime(), "shop:app", target)


@pytest.mark.parametrize("wrapped", [lambda desk: desk, lambda desk: [desk, BOSS]])
async def test_a_host_serves_the_type_of_a_session_agent(wrapped: Callable[[object], Any]) -> None:
    """Each key of it is a session; alone or in a list."""
    async with Runtime() as runtime:
        await serve_all(runtime, {"shop:DESK": wrapped(DESK)})
        run = await runtime.submit(AgentId("desk", "s1"), "hello?")

        assert await runtime.result(run) == "yes"
        assert "desk" in runtime.serves


def test_a_session_agent_is_that_of_another_session_too() -> None:
    """With the same modes, version and retry."""
    other = DESK.of_id(AgentId("desk", "s2"))

    assert (other.id.key, other.modes, other.version) == ("s2", DESK.modes, "2")
