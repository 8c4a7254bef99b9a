"""Delivery by the broker to hosts and agents, and messages that no host can handle."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import PARTITIONS, AgentId, undeclared_shard
from actors.errors import RegistrationError, TerminalError
from tests.behaviour.agents import Acting
from tests.behaviour.bed import FAST
from tests.behaviour.outside import all_done, eventually, nothing_leaves, noting, outsider, received

if TYPE_CHECKING:
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


@pytest.mark.nats
@pytest.mark.item(32, 118, 195)
async def test_agents_of_two_hosts_exchange_messages(bed: Bed) -> None:
    """A message starts a run on the other host, and an answer wakes the run that waits for it."""
    echo = Acting(bed.name(), _echo)

    async def ask(ctx: RunContext, inbox: list[Message]) -> list[object]:
        del inbox
        answers: list[object] = []
        for n in range(10):
            await ctx.send(echo.id, {"n": n, "to": str(ctx.agent_id)})
            answer = await ctx.receive()
            answers.append(answer.payload if answer else None)
        return answers

    agent = await bed.serve(ask)
    async with bed.rival() as rival:
        await rival.register(echo)
        assert rival._host.worker.lease_of(echo.id) is not None
        assert await bed.result(await bed.submit(agent)) == [*range(10)]


async def _echo(ctx: RunContext, inbox: list[Message]) -> None:
    for message in inbox:
        assert isinstance(message.payload, dict)
        await ctx.send(AgentId.parse(str(message.payload["to"])), message.payload["n"])


@pytest.mark.nats
@pytest.mark.item(32, 195)
async def test_whole_types_and_single_agents_get_messages_alike(bed: Bed) -> None:
    """From external clients and from each other, with one consumer for each agent or partition."""
    got: list[tuple[str, object]] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        for message in inbox:
            got.append((ctx.agent_id.key, message.payload))
            if isinstance(message.payload, dict):
                await ctx.send(other, ctx.agent_id.key)

    type_ = bed.name().type
    other = await bed.serve(act)
    await bed.runtime.register_type(type_, lambda agent_id: Acting(agent_id, act))
    keys = [f"k{n}" for n in range(40)]
    async with outsider(bed) as crm:
        for key in keys:
            await crm.send(AgentId(type_, key), {"key": key})
        await crm.send(other, {"key": other.key})
        await bed.until(lambda: len(got) == 82)

        async def has_all_consumers() -> bool:
            names = await crm.ask(f"CONSUMER.NAMES.{crm.subjects.stream('MAIL')}", {})
            own = [name for name in names["consumers"] if f"-{bed._prefix[:8]}-" in name]
            return len(own) == PARTITIONS + 1 + PARTITIONS  # the consumers of topics

        await eventually(has_all_consumers)
    assert sorted(p for key, p in got if key == other.key if isinstance(p, str)) == sorted(
        [*keys, "1"]
    )
    assert sorted(key for key, p in got if isinstance(p, dict)) == sorted([*keys, "1"])


@pytest.mark.item(195)
async def test_a_type_is_registered_one_way_or_the_other(bed: Bed) -> None:
    """By this host, and by another one while the first way is in use."""
    single, whole = bed.name(), bed.name()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx, inbox

    await bed.runtime.register(Acting(single, act))
    await bed.runtime.register_type(whole.type, lambda agent_id: Acting(agent_id, act))
    with pytest.raises(RegistrationError, match=single.type):
        await bed.runtime.register_type(single.type, lambda agent_id: Acting(agent_id, act))
    with pytest.raises(RegistrationError, match=whole.type):
        await bed.runtime.register(Acting(whole, act))
    async with bed.rival() as rival:
        with pytest.raises(RegistrationError, match=single.type):
            await rival.register_type(single.type, lambda agent_id: Acting(agent_id, act))
    async with bed.rival() as rival:
        with pytest.raises(RegistrationError, match=whole.type):
            await rival.register(Acting(whole, act))


@pytest.mark.nats
@pytest.mark.item(32, 195, 200)
async def test_messages_for_an_unserved_type_wait(bed: Bed) -> None:
    """From agents and external clients, in order, until a host registers the type."""
    got: list[object] = []
    target = bed.name()

    async def tell(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        for n in range(3):
            await ctx.send(target, n)

    async with outsider(bed) as crm:
        await crm.send_all(target, [{"n": n} for n in range(3)])
        run_id = await bed.submit(await bed.serve(tell))
        await bed.result(run_id)
        await crm.newest(crm.subjects.stream("MAIL"), crm.subjects.stored(target))
        await bed.restart()
        await bed.runtime.register(Acting(target, noting(got)))
        await bed.until(lambda: len(got) == 6)
        await crm.send(target, {"n": 3})
        await bed.until(lambda: len(got) == 7)
    assert [payload for payload in got if isinstance(payload, int)] == [*range(3)]
    assert [payload for payload in got if isinstance(payload, dict)] == [{"n": n} for n in range(4)]


@pytest.mark.nats
@pytest.mark.item(32, 200)
async def test_messages_for_an_unserved_type_become_rows(bed: Bed) -> None:
    """A host writes them to rows before the stream is purged; a host that registers the type gets them all."""
    got: list[object] = []
    target = bed.name()
    await bed.serve(noting([]))  # a host that serves nothing reads nothing
    mail, store = bed.runtime._host.mail, bed.runtime.store
    assert mail is not None
    async with outsider(bed) as crm:
        await crm.send_all(target, [{"n": n} for n in range(3)])
        await crm.newest(crm.subjects.stream("MAIL"), crm.subjects.stored(target))
        assert await mail._mail.account_for([target]) == 1

        async def is_read() -> bool:
            await bed.runtime._host.claim()
            return await store.lists.pending_count(target) == 3

        await eventually(is_read)
        held_shards = {lease.shard for lease in bed.runtime._host.worker.held.leases}
        assert undeclared_shard(target.type) in held_shards
        await crm.send(target, {"n": 3})
        await bed.runtime.register(Acting(target, noting(got)))
        await crm.send(target, {"n": 4})
        await bed.until(lambda: len(got) == 5)
    assert got == [{"n": n} for n in range(5)]
    await all_done(bed, target)
    assert len(await received(bed, target)) == 5


@pytest.mark.nats
@pytest.mark.item(119, 202, 488)
async def test_a_dead_letter_is_published_once(bed: Bed) -> None:
    """It is published once, with its reason, and is not delivered again until it is redriven."""
    got: list[object] = []
    healthy = asyncio.Event()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx
        got.append(inbox[0].payload)
        if not healthy.is_set() and inbox[0].payload != "fine":
            raise ValueError("no")

    agent = await bed.serve(act)
    store = bed.runtime.store
    run_id = await bed.submit(agent, Message.of(agent, {"n": 1}, id="bad"))
    await bed.ended(run_id)
    assert len(got) == 1 + FAST.max_retries
    [letter] = await store.lists.dead_letters(agent=agent)
    assert (letter.reason, letter.attempts) == ("max_retries", 1 + FAST.max_retries)
    async with outsider(bed) as crm:
        stream, subject = crm.subjects.stream("DEAD"), crm.subjects.dead(agent)
        published = await crm.newest(stream, subject)
        assert published["data"]
        await eventually(lambda: nothing_leaves(bed))
        await bed.restart()
        await bed.result(await bed.submit(agent, "fine"))
        assert len(got) == 2 + FAST.max_retries
        assert await crm.count(stream, subject) == 1
    healthy.set()
    store = bed.runtime.store
    again = await store.operators.redrive([letter.id])
    bed.runtime._host.worker.intake.routed(tuple(again))
    await bed.until(lambda: len(got) == 3 + FAST.max_retries)
    assert await store.lists.dead_letters(agent=agent) == []
    assert got[-1] == {"n": 1}


@pytest.mark.nats
@pytest.mark.item(119, 202)
async def test_a_failed_message_of_an_external_client_is_a_dead_letter(bed: Bed) -> None:
    """It is removed from the inbox, the next message is handled, and its id stays known."""
    got: list[object] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx
        got.extend(m.payload for m in inbox)
        if {"n": "bad"} in got[-1:]:
            raise TerminalError("never")

    agent = await bed.serve(act)
    async with outsider(bed) as crm:
        await crm.send(agent, {"n": "bad"}, id="bad")
        published = await crm.newest(crm.subjects.stream("DEAD"), crm.subjects.dead(agent))
        assert published["seq"] > 0
        await all_done(bed, agent)
        await crm.send(agent, {"n": "bad"}, id="bad")
        await crm.send(agent, {"n": "good"})
        await bed.until(lambda: len(got) > 1)
    assert got == [{"n": "bad"}, {"n": "good"}]
    [letter] = await bed.runtime.store.lists.dead_letters(agent=agent)
    assert (letter.message.id, letter.message.payload) == ("bad", {"n": "bad"})
