"""Messages through the broker: in order of each sender, once each, and no agent waits for another.

Tests marked `nats` are about properties that only a broker has; the others hold on every backend.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import PARTITIONS, AgentId, partition_hash
from actors._kernel.runtime.log_entry import EntryKind
from actors.errors import RetryAfter
from tests.behaviour.agents import Acting
from tests.behaviour.outside import all_done, nothing_leaves, noting, outsider, pending, received

if TYPE_CHECKING:
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

K = EntryKind
MANY_LIMIT_S: Final = 80.0
"""For ten thousand messages on a busy machine."""


def _each(bed: Bed) -> int:
    if bed.backend == "nats" and not bed.drops:
        return 1000
    return 200


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.item(118, 201)
async def test_ten_agents_send_to_one_in_order(bed: Bed) -> None:
    """They send at once. The receiver fails, is retried, and moves to another host meanwhile."""
    senders, each = 10, _each(bed)
    handled_payloads: set[object] = set()

    async def hear(ctx: RunContext, inbox: list[Message]) -> None:
        if bed.world.count["failures"] < 1 and len(handled_payloads) > each:
            bed.world.count["failures"] += 1
            raise RetryAfter(0.01)
        handled_payloads.update(str(m.payload) for m in inbox)

    target = await bed.serve(hear)

    async def tell(ctx: RunContext, inbox: list[Message]) -> None:
        for n in range(each):
            await ctx.send(target, f"{inbox[0].payload}:{n}")
            if n % 50 == 0:
                await ctx.step("pause", asyncio.sleep, 0)

    for sender in range(senders):
        await bed.submit(await bed.serve(tell), sender)
    await bed.until(
        lambda: len(handled_payloads) > 2 * each and bed.world.count["failures"],
        limit_s=MANY_LIMIT_S,
    )
    await bed.restart()
    await bed.until(lambda: len(handled_payloads) == senders * each, limit_s=MANY_LIMIT_S)
    await all_done(bed, target)
    payloads = [str(m.payload) for m in await received(bed, target)]
    for sender in range(senders):
        mine = [p for p in payloads if p.startswith(f"{sender}:")]
        assert mine == [f"{sender}:{n}" for n in range(each)]
    assert len(payloads) == senders * each


@pytest.mark.nats
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.item(118, 200, 201)
async def test_ten_external_clients_send_to_one_in_order(bed: Bed) -> None:
    """They send at once, while the host crashes and another one takes over."""
    publishers, each = 10, 200
    total = publishers * each
    got: list[object] = []
    agent = await bed.serve(noting(got))
    async with outsider(bed) as crm:
        async with asyncio.TaskGroup() as group:
            for n in range(publishers):
                mine = [{"n": f"{n}:{i}"} for i in range(each)]
                group.create_task(crm.with_name(f"p{n}").send_all(agent, mine))
            await bed.until(lambda: len(got) > each, limit_s=MANY_LIMIT_S)
            await bed.restart()
        await bed.until(
            lambda: len({str(payload) for payload in got}) == total, limit_s=MANY_LIMIT_S
        )
        await all_done(bed, agent)
    messages = await received(bed, agent)
    assert len(messages) == total
    for n in range(publishers):
        payloads = [m.payload for m in messages if m.sender == f"ext:p{n}"]
        assert payloads == [{"n": f"{n}:{i}"} for i in range(each)]


@pytest.mark.nats
async def test_messages_of_agents_travel_by_the_broker(bed: Bed) -> None:
    """Each message is stored once in the stream MAIL, and removed from the sender's outbox."""
    got: list[object] = []
    target = await bed.serve(noting(got))

    async def tell(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        for n in range(5):
            await ctx.send(target, n)

    await bed.play(tell)
    await bed.until(lambda: len(got) == 5)
    assert got == [*range(5)]
    async with outsider(bed) as crm:
        stored = crm.subjects.stored(target)
        assert await crm.count(crm.subjects.stream("MAIL"), stored) == 5
    assert await nothing_leaves(bed)


@pytest.mark.nats
@pytest.mark.item(117, 194, 199, 200)
async def test_a_known_id_is_dropped_whenever_it_comes(bed: Bed) -> None:
    """While it waits, after it was handled, and on the next host.

    The same id of another publisher is accepted.
    """
    got: list[object] = []
    agent = await bed.serve(noting(got))
    async with outsider(bed) as crm:
        for _ in range(2):
            await crm.send(agent, {"n": 1}, id="same")
        await bed.until(lambda: got)
        await crm.send(agent, {"n": 1}, id="same")
        await crm.with_name("erp").send(agent, {"n": 2}, id="same")
        await bed.until(lambda: len(got) == 2)
        await all_done(bed, agent)
        await bed.restart()
        await crm.send(agent, {"n": 1}, id="same")
        await crm.send(agent, {"n": 3})
        await bed.until(lambda: {"n": 3} in got)
        assert await crm.count(crm.subjects.stream("MAIL"), crm.subjects.stored(agent)) == 6
    assert got == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.nats
@pytest.mark.item(24, 32)
async def test_submitting_and_publishing_at_once_to_a_dormant_agent(bed: Bed) -> None:
    """Every message is in one run, once; a submitted one is alone in its run."""
    each = 30
    got: list[object] = []
    agent = await bed.serve(noting(got))
    async with outsider(bed) as crm:
        for n in range(each):
            async with asyncio.TaskGroup() as group:
                group.create_task(crm.send(agent, {"n": f"published {n}"}))
                submitted = group.create_task(bed.submit(agent, {"n": f"submitted {n}"}))
            run_id = submitted.result()
            await bed.result(run_id)
            [message] = await bed.log(run_id, K.MSG_RECEIVED)
            assert f"submitted {n}" in str(message.payload)
            await bed.until(lambda: len(got) == 2 * n + 2)  # noqa: B023
    assert len({str(payload) for payload in got}) == 2 * each
    await all_done(bed, agent)
    payloads = [str(m.payload) for m in await received(bed, agent)]
    assert len(set(payloads)) == len(payloads) == 2 * each


@pytest.mark.nats
@pytest.mark.item(196, 198)
async def test_a_failed_attempt_gets_the_same_inbox_again(bed: Bed) -> None:
    """It gets the messages that came by the broker, and the error is in its log; nothing is read twice.

    A run that has executed something for all of them is not split.
    """
    inboxes: list[list[object]] = []
    gate = asyncio.Event()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        if inbox[0].payload == "first":
            await ctx.step("gate", gate.wait)
            return
        inboxes.append([m.payload for m in inbox])
        await ctx.step("look", bed.world.do, "look")
        if len(inboxes) == 1:
            raise RetryAfter(0.01, "not today")

    agent = await bed.serve(act)
    await bed.submit(agent, "first")
    async with outsider(bed) as crm:
        await crm.send_all(agent, [{"n": n} for n in range(5)])
        await pending(bed, agent, 6)
    gate.set()
    await bed.until(lambda: len(inboxes) == 2)
    await all_done(bed, agent)
    assert inboxes == [[{"n": n} for n in range(5)]] * 2
    run = max(await bed.runtime.store.lists.runs(agent=agent), key=lambda row: row.arrival)
    [failed] = await bed.log(run.run_id, K.RUN_ATTEMPT_FAILED)
    assert "not today" in str(failed.payload["error"])


def _neighbours(type_: str) -> tuple[AgentId, AgentId]:
    """Return two agents of one partition."""
    slow = AgentId(type_, "slow")
    keys = (AgentId(type_, f"k{n}") for n in range(1000))
    partition = partition_hash(slow) % PARTITIONS
    return slow, next(a for a in keys if partition_hash(a) % PARTITIONS == partition)


@pytest.mark.nats
@pytest.mark.item(195)
async def test_a_slow_agent_delays_no_other_agent(bed: Bed) -> None:
    """Thousands of its messages wait in rows; another agent behind the same consumer is served at once."""
    count = 2000
    got: list[object] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        if ctx.agent_id.key == "slow" and not bed.world.gates["slow"].is_set():
            await ctx.step("slow", bed.world.wait, "slow")
        got.extend(m.payload for m in inbox)

    slow, quick = _neighbours(bed.name().type)
    await bed.runtime.register_type(slow.type, lambda agent_id: Acting(agent_id, act))
    bed.runtime._host.worker.mail_capacity.each = 50
    async with outsider(bed) as crm:
        await crm.send_all(slow, [{"slow": n} for n in range(count)])
        await crm.send(quick, {"quick": 1})
        await bed.until(lambda: {"quick": 1} in got)
        assert got == [{"quick": 1}]
        assert bed.runtime._host.worker.mail_capacity.used <= 50
        assert await bed.runtime.store.lists.pending_count(slow) == count
        bed.world.gates["slow"].set()
        await bed.until(lambda: len(got) == count + 1)
    assert got[1:] == [{"slow": n} for n in range(count)]


@pytest.mark.nats
@pytest.mark.item(195)
async def test_signals_and_cancels_do_not_wait_behind_queued_messages(bed: Bed) -> None:
    """While 1,000 messages wait, a waiting run gets its signal, and a busy one is cancelled."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        if inbox[0].payload == "wait":
            await ctx.step("mark", bed.world.do, "mark")
            return await ctx.sleep_until_signal("go")
        if inbox[0].payload == "hang":
            return await ctx.step("hang", bed.world.hang, "hang")
        got.extend(m.payload for m in inbox)
        return None

    got: list[object] = []
    agent = await bed.serve(act)
    waiting, busy = [await bed.submit(agent, what) for what in ("wait", "hang")]
    await bed.marked(waiting)
    async with outsider(bed) as crm:
        await crm.send_all(agent, [{"n": n} for n in range(1000)])
        for _ in range(2):
            await crm.signal(agent, waiting, "go", {"from": "outside"}, id="s1")
        assert await bed.result(waiting) == {"from": "outside"}
        await bed.world.entered.wait()
        await bed.runtime.cancel(busy, reason="enough")
        assert (await bed.ended(busy)).cancel_requested == "enough"
    await bed.until(lambda: len(got) == 1000)
    assert got == [{"n": n} for n in range(1000)]
