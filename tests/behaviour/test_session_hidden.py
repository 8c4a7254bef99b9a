"""Values that are hidden in events of sessions, as in traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.tools import Tool, ToolCall
from actors._kernel.hidden import HIDDEN, HiddenNames
from actors._kernel.runtime.ids import AgentId
from actors.agents import ReActAgent
from actors.testing import FunctionModel, ModelReply
from tests.behaviour.talks import all_of, past_of, payload_of, sessions_on

if TYPE_CHECKING:
    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from actors.sessions import SessionEvent
    from tests.behaviour.bed import Bed

CANARY = "canary"


class Boss:
    """Delegates to a child."""

    def __init__(self, kid: AgentId) -> None:
        self.id, self._kid = AgentId(kid.type, "boss"), kid

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Return the child's result."""
        del inbox
        return (await ctx.join(await ctx.spawn(self._kid, "go"))).output


async def kid(ctx: RunContext, inbox: list[Message]) -> Any:
    """Return a secret."""
    del inbox
    return (await ctx.tool("login", user="me", password=CANARY)).structured


async def login(user: str, password: str) -> dict[str, Any]:
    """Log a user in."""
    return {"user": user, "Access-Token": [password], "ok": True}


def answer(messages: Any, options: Any = None) -> ModelReply:
    """Call the tool, then answer."""
    del options
    if messages[-1].role == "tool":
        return ModelReply(text="in")
    arguments = {"user": "me", "password": CANARY}
    return ModelReply(calls=[ToolCall(id="c1", name="login", arguments=arguments)])


def text_of(events: list[SessionEvent]) -> str:
    """Return all events that readers get."""
    return "\n".join(event.model_dump_json() for event in events)


@pytest.mark.item(343, 483)
async def test_values_under_certain_names_are_in_no_event(bed: Bed) -> None:
    """Events of a run, of the session and of a child; arguments, results and outputs.

    Nodes and logs have them.
    """
    tool = Tool("login", "Logs in.", login)
    worker = await bed.serve(kid, tools=[tool])
    main = ReActAgent("main", model=FunctionModel(answer), tools=[tool])
    modes: dict[str, Agent] = {"normal": main, "boss": Boss(worker)}
    async with sessions_on(bed, modes, app=bed.name().type) as talks:
        run = await talks.start("log me in", session_id="s")
        live = await all_of(run)
        by_type = {event.type: payload_of(event) for event in live}
        assert by_type["tool_started"]["arguments"] == {"user": "me", "password": HIDDEN}
        structured = {"user": "me", "Access-Token": HIDDEN, "ok": True}
        assert by_type["tool_finished"]["result"]["structured"] == structured
        boss = await talks.start("you do it", session_id="s", mode="boss")
        above = await all_of(boss)
        [child] = await boss.children()
        below = [event async for event in boss.child_events(child)]
        inspected = (await boss.inspect_child(child)).events
        everything = [*live, *above, *below, *inspected, *await past_of(talks, "s")]
        assert CANARY not in text_of(everything)
        assert all(HIDDEN in text_of(some) for some in (live, above, below, inspected))
        assert CANARY in str([node.message for node in await talks.path("s")])

        bed.runtime.hidden_names = HiddenNames("us er, USER")
        text = text_of(await past_of(talks, "s"))
        assert '"user":"me"' not in text
        assert CANARY in text
