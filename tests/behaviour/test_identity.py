"""The identity of the executing agent, for code without a context object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors._inmemory.sessions import (
    current_agent_id,
    current_agent_label,
    current_parent_agent_id,
    current_thread_id,
)
from actors._kernel.agent.message import Message
from actors._kernel.agent.tools import Tool
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import EntryKind as K

if TYPE_CHECKING:
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

VARIABLES = (current_thread_id, current_agent_id, current_agent_label, current_parent_agent_id)


def here() -> list[Any]:
    """Return the variables' values at this call."""
    return [variable.get() for variable in VARIABLES]


async def nested() -> list[Any]:
    """Return the same, one call deeper."""
    return here()


@pytest.mark.item(335, 336, 337, 338)
async def test_all_code_of_a_run_sees_its_agent(bed: Bed) -> None:
    """In steps, tools, branches and threads, live and on a replay by another host."""
    identities: list[list[Any]] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        del inbox
        identities.append(await nested())
        stepped = await ctx.step("look", nested)
        threaded = await ctx.step("thread", here, thread=bed.backend != "memory")
        tool = await ctx.tool("look")
        branches = await ctx.gather(nested(), ctx.step("branch", nested))
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("go")
        identities.append(here())
        return [stepped, threaded, tool.structured, *branches, *(await ctx.gather(nested()))]

    agent = await bed.serve(act, tools=[Tool("look", "", nested)])
    run_id = await bed.submit(agent, session_id="talk")
    await bed.marked(run_id)
    await bed.restart()
    await bed.runtime.signal(run_id, "go")

    results = await bed.result(run_id)
    assert all(
        identity == ["talk", str(agent), str(agent), None] for identity in [*results, *identities]
    )
    assert [variable.get("nothing") for variable in VARIABLES] == ["nothing"] * 4


@pytest.mark.item(338)
async def test_a_child_knows_the_agent_that_spawned_it(bed: Bed) -> None:
    """With and without a first message; a run of its own session, and after `continue_as_new`."""

    async def child(ctx: RunContext, inbox: list[Message]) -> Any:
        before = here()
        await ctx.sleep_until_signal("go")
        if [message.payload for message in inbox] != ["again"]:
            await ctx.continue_as_new("again")
        return [before, here()]

    helpers = [await bed.serve(child) for _ in range(2)]

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        del inbox
        runs = [await ctx.spawn(helpers[0], "a message"), await ctx.spawn(helpers[1])]
        for run in runs:
            await ctx.join(run)
        return [str(run.run_id) for run in runs]

    agent = await bed.serve(act)
    parent = await bed.submit(agent)
    spawned = [await bed.seen(parent, K.CHILD_SPAWNED, times=n) for n in (1, 2)]
    for entry, helper in zip(spawned, helpers, strict=True):
        run_id = RunId(str(entry.payload["child"]))
        for _ in range(2):
            await bed.runtime.signal(run_id, "go")
        name = str(helper)
        assert await bed.result(run_id) == [[run_id, name, name, str(agent)]] * 2


@pytest.mark.item(339)
async def test_conversations_at_once_keep_apart(bed: Bed) -> None:
    """Also if serving code has set the variables of its own task."""

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        first = here()[:2]
        await ctx.step("mark", bed.world.do, inbox[0].payload)
        await ctx.sleep(0.01)
        return [first, here()[:2]]

    agents = [await bed.serve(act) for _ in range(2)]
    for variable in VARIABLES:
        variable.set("serving")
    runs = [
        await bed.submit(agent, n, session_id=f"talk-{n}") for n in range(3) for agent in agents
    ]
    outputs = [await bed.result(run_id) for run_id in runs]

    expected = [[f"talk-{n}", str(agent)] for n in range(3) for agent in agents]
    assert outputs == [[session, session] for session in expected]


@pytest.mark.item(335)
async def test_the_session_of_a_message_lasts_over_continue_as_new(bed: Bed) -> None:
    """The run's thread and its turns stay in the conversation that its first message named."""

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        n: Any = inbox[0].payload
        await ctx.history.append(f"turn {n}")
        if n < 3:
            await ctx.continue_as_new(n + 1)
        return current_thread_id.get()

    agent = await bed.serve(act)

    message = Message("m", agent, 1, metadata={"session": "named"})
    thread = await bed.result(await bed.submit(agent, message))
    turns = await bed.runtime.history.get_messages(agent, session_id="named")
    assert thread == "named"
    assert [message.text for message in turns] == ["turn 1", "turn 2", "turn 3"]
