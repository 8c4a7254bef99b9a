"""Plain messages: each starts the agent's next run, or is received by a run that waits for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RunStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import RunContext, Runtime
    from tests.behaviour.bed import Bed


class Collector:
    """Collects the payloads of each inbox, and signals when there are as many as expected."""

    def __init__(self) -> None:
        self.batches: list[list[object]] = []
        self._changed = asyncio.Event()

    @property
    def all(self) -> list[object]:
        """Return every payload, in order."""
        return [payload for batch in self.batches for payload in batch]

    def take(self, inbox: list[Message]) -> None:
        """Record one inbox."""
        self.batches.append([m.payload for m in inbox])
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when `holds()` is true."""
        async with asyncio.timeout(20):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


@pytest.mark.item(33, 152, 183, 194, 195)
async def test_a_message_starts_a_run_like_a_submitted_one(bed: Bed) -> None:
    """With the defaults of submit; the message is in the run's inbox and log."""
    got = Collector()
    runs: list[str] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        got.take(inbox)
        runs.append(ctx.run_id)
        return "handled"

    agent = await bed.serve(act)
    assert await bed.runtime.send(agent, Message.of(agent, "hi", id="m1"))
    await got.until(lambda: bool(runs))
    row = await bed.ended(runs[0])  # type: ignore[arg-type]
    assert (row.status, row.result, row.priority) == (RunStatus.COMPLETED, "handled", 5)
    assert row.retry_policy is None  # the sender gave none
    [received] = await bed.log(row.run_id, EntryKind.MSG_RECEIVED)
    message = received.payload["message"]
    assert isinstance(message, dict)
    assert (message["id"], message["sender"]) == ("m1", "client:local")


@pytest.mark.item(54, 117, 194, 197, 199, 200)
async def test_a_known_message_id_is_refused(bed: Bed) -> None:
    """While it waits, after it was handled, and on the next host."""
    got = Collector()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx
        got.take(inbox)

    agent = await bed.serve(act)
    message = Message.of(agent, 1, id="same")
    assert await bed.runtime.send(agent, message)
    assert not await bed.runtime.send(agent, message)
    assert await bed.runtime.send(agent, message, sender="client:somebody-else")
    await got.until(lambda: len(got.all) == 2)
    await bed.result(await bed.submit(agent, "last"))
    assert await bed.runtime.store.lists.pending_count(agent) == 0
    assert not await bed.runtime.send(agent, message)
    await bed.restart()
    assert not await bed.runtime.send(agent, message)
    assert got.all == [1, 1, "last"]


@pytest.mark.item(33, 35, 46, 196)
async def test_of_250_waiting_messages_a_run_gets_100(bed: Bed) -> None:
    """The others start the next runs in order, without another delivery."""
    got = Collector()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx
        got.take(inbox)

    agent = await bed.serve(act)
    await bed.crash()
    bed.agents, served = {}, bed.agents
    await bed.start()
    for n in range(250):
        await bed.runtime.send(agent, n)
    bed.agents = served
    await bed.runtime.register(served[agent])
    await got.until(lambda: len(got.all) >= 250)
    assert [len(batch) for batch in got.batches] == [100, 100, 50]
    assert got.all == list(range(250))


@pytest.mark.item(35, 216)
async def test_a_message_right_after_the_inbox_was_drained_is_not_lost(bed: Bed) -> None:
    """A message that comes at any moment of the run starts the next run."""
    got = Collector()
    agents: list[AgentId] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        got.take(inbox)
        if len(got.all) < 20:
            await bed.runtime.send(agents[0], len(got.all))
            if len(got.all) % 2:
                await ctx.step("do", bed.world.do, "do")

    agents.append(await bed.serve(act))
    await bed.runtime.send(agents[0], 0)
    await got.until(lambda: len(got.all) >= 20)
    assert got.all == list(range(20))


@pytest.mark.item(118, 201)
async def test_the_order_of_each_sender_is_kept(bed: Bed) -> None:
    """Messages sent concurrently, stored over a crash, with failing runs in between."""
    senders, each = 5, 30 if bed.backend == "memory" else 10
    got = Collector()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        await ctx.step("see", bed.world.do, "see")
        if bed.world.count["failures"] < 2:
            await ctx.step("fail", bed.world.fail, "failures")
        got.take(inbox)

    agent = await bed.serve(act)
    await bed.crash()
    bed.agents, served = {}, bed.agents
    await bed.start()

    async def sends(sender: int) -> None:
        for n in range(each):
            message = Message.of(agent, f"{sender}:{n}")
            await bed.runtime.send(agent, message, sender=f"client:s{sender}")

    async with asyncio.TaskGroup() as group:
        for sender in range(senders):
            group.create_task(sends(sender))
    if bed.backend != "memory":
        bed.world.count["failures"] = 2  # runs of messages are retried after seconds
    bed.agents = served
    await bed.restart()
    await got.until(lambda: len(got.all) >= senders * each)
    for sender in range(senders):
        mine = [p for p in got.all if str(p).startswith(f"{sender}:")]
        assert mine == [f"{sender}:{n}" for n in range(each)]


@pytest.mark.item(34, 118, 159, 168)
async def test_receive_takes_messages_one_by_one_in_order(bed: Bed) -> None:
    """Messages that wait already and later ones. The waiting run is woken; none is created."""

    async def act(ctx: RunContext, inbox: list[Message]) -> list[object]:
        del inbox
        await ctx.step("mark", bed.world.do, "mark")
        got: list[object] = []
        while (message := await ctx.receive()) is not None and message.payload != "end":
            got.append(message.payload)
        return got

    agent = await bed.serve(act)
    run_id = await bed.submit(agent)
    await bed.marked(run_id)
    for n in range(5):
        await bed.runtime.send(agent, n)
    await bed.seen(run_id, EntryKind.MSG_RECEIVED, times=4)
    await bed.runtime.send(agent, "end")
    assert await bed.result(run_id) == [0, 1, 2, 3, 4]
    runs = await bed.runtime.store.lists.runs(agent=agent)
    assert [run.run_id for run in runs] == [run_id]
    assert await bed.runtime.store.lists.pending_count(agent) == 0


@pytest.mark.item(34)
async def test_receive_with_a_timeout(bed: Bed) -> None:
    """None if nothing came in time, the message if it did; the same on replay."""

    async def body(ctx: RunContext) -> list[object]:
        await ctx.step("begin", bed.world.do, "begin")
        first = await ctx.receive(timeout=0.05)
        await bed.runtime.send(ctx.agent_id, Message.of(ctx.agent_id, "hi", id="once"))
        second = await ctx.receive(timeout=30)
        assert second is not None
        return [first, second.payload, second.id, second.sender]

    values = await bed.live_and_replayed(body)
    assert all(value == [None, "hi", "once", "client:local"] for value in values)


@pytest.mark.item(33, 34, 195)
async def test_a_message_of_another_process_wakes_the_agent(bed: Bed) -> None:
    """A client's message reaches the waiting run, and starts one if none waits."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        if inbox[0].payload == "wait":
            await ctx.step("mark", bed.world.do, "mark")
            message = await ctx.receive()
            return message.payload if message else None
        await ctx.step("alone", bed.world.do, "alone")
        alone.set()
        return None

    alone = asyncio.Event()
    agent = await bed.serve(act)
    run_id = await bed.submit(agent, "wait")
    await bed.marked(run_id)
    async with bed.client() as other:
        await other.send(agent, "from outside")
        assert await bed.result(run_id) == "from outside"
        await other.send(agent, "again")
        async with asyncio.timeout(20):
            await alone.wait()


@pytest.mark.item(93, 118, 201)
async def test_sends_of_a_run_arrive_once_and_in_order(bed: Bed) -> None:
    """Messages of a run arrive once each although it is replayed, in the order of the sends."""
    got = Collector()

    async def hear(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx
        got.take(inbox)

    target = await bed.serve(hear)

    async def body(ctx: RunContext) -> None:
        for n in range(3):
            await ctx.send(target, n)

    await bed.live_and_replayed(body)
    await got.until(lambda: 2 in got.all)  # the order of different senders is not defined
    await bed.until(
        lambda: not bed.runtime._host.worker.dispatcher.load
    )  # runs are listed in the order of their rows
    await bed.result(await bed.submit(target, "last"))
    received = []
    rows = await bed.runtime.store.lists.runs(agent=target)
    for run in sorted(rows, key=lambda row: row.arrival):  # created in one instant, sometimes
        received += await bed.log(run.run_id, EntryKind.MSG_RECEIVED)
    payloads = [Message.from_json(entry.payload["message"]).payload for entry in received]  # type: ignore[arg-type]
    assert payloads == [0, 1, 2, "last"]


@pytest.mark.item(45, 152)
async def test_send_to_itself_starts_the_next_run(bed: Bed) -> None:
    """The message waits until the sending run has ended."""
    got = Collector()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        got.take(inbox)
        if inbox[0].payload == "first":
            await ctx.send(ctx.agent_id, "second")
            await ctx.step("go on", got.all.append, None)

    agent = await bed.serve(act)
    await bed.submit(agent, "first")
    await got.until(lambda: len(got.batches) >= 2)
    assert got.all == ["first", "second"]


def _watched(bed: Bed, each: int) -> list[int]:
    """Bound the mailboxes of the current host; return a function by which the test records their size."""
    bed.runtime._host.worker.mail_capacity.each = each
    return []


async def _deliver(bed: Bed, agent: AgentId, payloads: Sequence[object]) -> None:
    """Send in hundreds, in order, as one sender."""
    for start in range(0, len(payloads), 100):
        some = [Message.of(agent, p).sent_by("client:x") for p in payloads[start : start + 100]]
        bed.runtime._host.worker.intake.routed(
            tuple(await bed.runtime.store.arrivals.deliver(some))
        )


async def test_beyond_a_bound_waiting_messages_stay_in_the_store(bed: Bed) -> None:
    """Thousands for one slow agent are handled once each and in order, with 50 of them in memory."""
    count = 5000 if bed.backend == "memory" else 1500
    got, used_capacity = Collector(), _watched(bed, 50)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        got.take(inbox)
        used_capacity.append(bed.runtime._host.worker.mail_capacity.used)
        await ctx.step("slow", asyncio.sleep, 0)
        used_capacity.append(bed.runtime._host.worker.mail_capacity.used)

    agent = await bed.serve(act)
    await _deliver(bed, agent, range(count))
    await got.until(lambda: len(got.all) >= count)
    assert got.all == [*range(count)]
    assert max(len(batch) for batch in got.batches) <= 100
    assert max(used_capacity) <= 50
    await bed.until(lambda: not len(bed.runtime._host.worker._mailboxes))
    assert bed.runtime._host.worker.mail_capacity.used == 0


async def test_receive_gets_messages_that_stayed_in_the_store(bed: Bed) -> None:
    """A waiting run reads on, also over a restart; the messages that it leaves start the next run."""
    count, rest = (600, 40) if bed.backend == "memory" else (150, 20)
    rest_collector, used_capacity = Collector(), _watched(bed, 10)

    async def act(ctx: RunContext, inbox: list[Message]) -> list[object]:
        if inbox[0].payload != "begin":
            rest_collector.take(inbox)
            return []
        got: list[object] = []
        while len(got) < count:
            message = await ctx.receive()
            got.append(message.payload if message else None)
            used_capacity.append(bed.runtime._host.worker.mail_capacity.used)
        return got

    agent = await bed.serve(act)
    run_id = await bed.submit(agent, "begin")
    await _deliver(bed, agent, range(50))
    # The next host reads the rest before its capacity is reduced: the rest has to fit.
    await bed.seen(run_id, EntryKind.MSG_RECEIVED, times=45)
    await bed.restart()
    bed.runtime._host.worker.mail_capacity.each = 10
    await _deliver(bed, agent, range(50, count + rest))
    assert await bed.result(run_id) == [*range(count)]
    await rest_collector.until(lambda: len(rest_collector.all) >= rest)
    assert rest_collector.all == [*range(count, count + rest)]
    assert max(used_capacity) <= 10


@pytest.mark.item(118, 201)
async def test_order_and_number_hold_for_many_senders_beyond_the_bound(bed: Bed) -> None:
    """Ten concurrent senders, here and in another process, to an agent with a small mailbox."""
    senders, each = 10, 60 if bed.backend == "memory" else 20
    got = Collector()
    _watched(bed, 15)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        got.take(inbox)
        await ctx.step("slow", asyncio.sleep, 0.001)

    agent = await bed.serve(act)

    async def sends(runtime: Runtime, sender: int) -> None:
        for n in range(each):
            await runtime.send(agent, f"{sender}:{n}", sender=f"client:s{sender}")

    async with bed.client() as other, asyncio.TaskGroup() as group:
        for sender in range(senders):
            group.create_task(sends(other if sender % 2 else bed.runtime, sender))
    await got.until(lambda: len(got.all) >= senders * each)
    for sender in range(senders):
        mine = [p for p in got.all if str(p).startswith(f"{sender}:")]
        assert mine == [f"{sender}:{n}" for n in range(each)]
    assert len(got.all) == senders * each


async def test_agents_beyond_the_capacity_get_their_messages(bed: Bed) -> None:
    """Runs that wait for something else fill the worker's memory; each agent still gets its messages."""
    bed.runtime._host.worker.mail_capacity.total = 20
    got = Collector()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        if inbox[0].payload == "wait":
            await ctx.sleep_until_signal("never")
        got.take(inbox)

    full = [await bed.serve(act) for _ in range(2)]
    for agent in full:
        await bed.submit(agent, "wait")
        await _deliver(bed, agent, range(30))
    assert bed.runtime._host.worker.mail_capacity.used <= 20
    agent = await bed.serve(act)
    await _deliver(bed, agent, range(250))
    await got.until(lambda: len(got.all) >= 250)
    assert got.all == [*range(250)]


@pytest.mark.item(41)
async def test_messages_of_an_agent_that_is_not_served_are_not_held_in_memory(bed: Bed) -> None:
    """The messages stay rows, with the runs, and are delivered by arrival once the agent is registered."""
    got = Collector()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx
        got.take(inbox)

    agent = await bed.serve(act)
    await bed.crash()
    bed.agents, served = {}, bed.agents
    await bed.start()
    await bed.serve(act)  # the host has shards, and an agent of another type
    await _deliver(bed, agent, range(150))
    await bed.submit(agent, "run")
    await _deliver(bed, agent, range(150, 160))
    assert bed.runtime._host.worker.mail_capacity.used == 0
    assert not bed.runtime._host.worker._state.fresh
    bed.agents |= served
    await bed.runtime.register(served[agent])
    await bed.runtime.send(agent, "last")
    await got.until(lambda: "last" in got.all and "run" in got.all)
    mail = [payload for payload in got.all if payload != "run"]
    assert mail == [*range(160), "last"]
    assert len(got.batches[0]) == 100
