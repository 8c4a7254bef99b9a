"""Registration of agents, and work for agents that the host does not serve."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime.worker import dispatcher as dispatch
from actors.errors import RegistrationError
from tests.behaviour.agents import Acting

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


async def _echo(ctx: RunContext, inbox: list[Message]) -> object:
    await ctx.step("see", lambda: None)
    return [m.payload for m in inbox]


@pytest.mark.item(3, 19)
async def test_any_object_with_an_id_and_run_is_an_agent(bed: Bed) -> None:
    """No base class and no decorator; an object without `run` is refused by name."""

    class Plain:
        """An agent with only the contract's members."""

        def __init__(self, id: AgentId) -> None:  # noqa: A002
            self.id = id

        async def run(self, ctx: Any, inbox: list[Message]) -> object:
            """See `Agent.run`."""
            del ctx, inbox
            return "plain"

    agent = Plain(bed.name())
    await bed.runtime.register(agent)
    assert await bed.result(await bed.submit(agent.id)) == "plain"
    with pytest.raises(RegistrationError, match="is not an agent"):
        await bed.runtime.register(object())  # type: ignore[arg-type]


@pytest.mark.item(19)
async def test_registering_an_id_again_replaces_the_agent(bed: Bed) -> None:
    """For executions that start afterwards."""
    agent = await bed.serve(_echo)
    assert await bed.result(await bed.submit(agent, 1)) == [1]

    async def other(ctx: RunContext, inbox: list[Message]) -> str:
        del ctx, inbox
        return "replaced"

    await bed.runtime.register(Acting(agent, other))
    assert await bed.result(await bed.submit(agent, 2)) == "replaced"


@pytest.mark.item(19)
async def test_a_type_serves_every_key(bed: Bed) -> None:
    """The factory makes an agent when its first message comes; each key has one run at a time."""
    agent_ids: list[AgentId] = []

    def factory(agent_id: AgentId) -> Acting:
        agent_ids.append(agent_id)
        return Acting(agent_id, _echo)

    type_ = bed.name().type
    await bed.runtime.register_type(type_, factory)
    agents = [AgentId(type_, key) for key in ("1", "two words", "ünï/cödé ☃", "x" * 256)]
    for agent in agents:
        assert await bed.result(await bed.submit(agent, agent.key)) == [agent.key]
    assert {*agent_ids} == {*agents}


@pytest.mark.item(212)
async def test_tenants_are_part_of_an_agents_identity(bed: Bed) -> None:
    """Two agents that differ only in the tenant share neither messages nor state."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        count = int(str(await ctx.state.get("count", 0))) + 1
        await ctx.state.set("count", count)
        return [ctx.tenant_id, inbox[0].payload, count]

    type_ = bed.name().type
    agents = [AgentId(type_, "1", tenant) for tenant in ("acme", "umbrella")]
    for agent in agents:
        await bed.runtime.register(Acting(agent, act))
    for agent in agents:
        run_id = await bed.submit(agent, "hi", tenant=agent.tenant)
        assert await bed.result(run_id) == [agent.tenant, "hi", 1]
        assert (await bed.row(run_id)).agent_id == agent


@pytest.mark.item(19)
async def test_a_type_is_registered_one_way_or_the_other(bed: Bed) -> None:
    """On this host, and after another host used the type before."""
    single, whole = bed.name(), bed.name()
    await bed.runtime.register(Acting(single, _echo))
    await bed.runtime.register_type(whole.type, lambda agent_id: Acting(agent_id, _echo))
    with pytest.raises(RegistrationError, match="not both"):
        await bed.runtime.register_type(single.type, lambda agent_id: Acting(agent_id, _echo))
    with pytest.raises(RegistrationError, match="register_type already"):
        await bed.runtime.register(Acting(whole, _echo))
    await bed.result(await bed.submit(single))
    await bed.result(await bed.submit(whole))
    await bed.submit(single, "stays open")
    with pytest.raises(RegistrationError):
        async with bed.rival() as other:
            await other.register_type(single.type, lambda agent_id: Acting(agent_id, _echo))


@pytest.mark.item(41)
async def test_work_of_an_unserved_type_waits(bed: Bed) -> None:
    """Messages and runs stay as rows, also over a restart, and run as soon as the type is registered."""
    agent = bed.name()
    run_id = await bed.submit(agent, "submitted")
    assert await bed.runtime.send(agent, "sent")
    await bed.restart()
    assert (await bed.row(run_id)).status is RunStatus.PENDING
    assert await bed.runtime.store.lists.pending_count(agent) == 2
    begun = asyncio.get_running_loop().time()
    await bed.runtime.register(Acting(agent, _echo))
    assert await bed.result(run_id) == ["submitted"]
    assert asyncio.get_running_loop().time() - begun < 1 + bed.slack_s
    assert await bed.result(await bed.submit(agent, "last")) == ["last"]
    assert await bed.runtime.store.lists.pending_count(agent) == 0
    assert len(await bed.runtime.store.lists.runs(agent=agent)) == 3


@pytest.mark.item(41)
async def test_a_suspended_run_of_a_type_that_is_served_later_goes_on(bed: Bed) -> None:
    """A signal that comes meanwhile is kept."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        await ctx.step("mark", bed.world.do, "mark")
        return await ctx.sleep_until_signal("go")

    agent = await bed.serve(act)
    run_id = await bed.submit(agent)
    await bed.marked(run_id)
    await bed.crash()
    served, bed.agents = bed.agents, {}
    await bed.start()
    await bed.runtime.signal(run_id, "go", "kept")
    assert not (await bed.row(run_id)).status.is_terminal
    await bed.runtime.register(served[agent])
    assert await bed.result(run_id) == "kept"


@pytest.mark.item(19, 63)
async def test_a_factory_that_raises_is_called_again(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run is not lost and does not delay other agents."""
    monkeypatch.setattr(dispatch, "TRY_AGAIN_S", 0.05)
    broken = [True]

    def factory(agent_id: AgentId) -> Acting:
        if broken.pop() if broken else False:
            raise ConnectionError("the configuration service is down")
        return Acting(agent_id, act)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        await ctx.step("handle", bed.world.do, "handled")
        return [m.payload for m in inbox]

    type_ = bed.name().type
    await bed.runtime.register_type(type_, factory)
    assert await bed.result(await bed.submit(AgentId(type_, "1"), 1)) == [1]
    broken.append(True)
    assert await bed.runtime.send(AgentId(type_, "2"), "mail")
    await bed.until(lambda: bed.world.count["handled"] == 2)
