"""A Runtime on a ComposedStore uses the parts that it was given."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.message import Message, MessageKey
from actors._kernel.runtime.commit import Committed, OutOfOrder
from actors._kernel.runtime.effects import EffectResult
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime.loop.clock import SystemClock, SystemEntropy
from actors._runtime.parts import (
    ComposedStore,
    InMemoryEventLog,
    InMemoryInbox,
    InMemoryJournal,
    InMemoryScheduler,
    InMemorySignalBus,
)
from actors._runtime.runtime import Runtime
from actors.errors import OutOfOrderError
from tests.conformance.bed import DESK, Turns, message, started
from tests.conformance.clock import ManualClock
from tests.conformance.conftest import composed_bed
from tests.conformance.talk import CLERK

if TYPE_CHECKING:
    from actors._kernel.runtime.log_entry import RunLogEntry


class Greeter:
    """Does one step, waits for a signal, and tells what it got."""

    def __init__(self) -> None:
        self.id: AgentId = DESK
        self.calls = 0

    async def run(self, ctx: Any, inbox: list[Message]) -> Any:
        """See `Agent.run`."""
        first = await ctx.step("greet", self.greet)
        signal = await ctx.sleep_until_signal("go")
        return [first, signal, inbox[0].payload]

    async def greet(self) -> str:
        """The step."""
        self.calls += 1
        return "hello"


@pytest.mark.item(127, 153)
async def test_a_childs_first_message_is_in_the_inbox_that_was_given() -> None:
    """From the turn that spawns it until its end; the scheduler given knows the child, too."""
    clock = ManualClock()
    inbox = InMemoryInbox(clock=clock)
    scheduler = InMemoryScheduler(clock=clock, entropy=SystemEntropy())
    store = ComposedStore(clock=clock, inbox=inbox, scheduler=scheduler)
    async with composed_bed() as bed:
        bed.store = store
        await bed.claim()
        run = await bed.begin()

        child = await run.spawn("c", CLERK, boot="go")
        (boot,) = await inbox.drain(CLERK)
        status = await scheduler.get_status(child.run_id)
        mail = await store.backlog.pending_mail(agent=CLERK)
        await child.start()
        await child.complete()

    assert (boot.payload, boot.sender) == ("go", f"spawn:{DESK}")
    assert status is RunStatus.PENDING
    assert mail == []
    assert await inbox.pending_count(CLERK) == 0
    assert await scheduler.get_status(child.run_id) is RunStatus.COMPLETED


async def test_what_others_put_into_the_inbox_keeps_its_place() -> None:
    """A message that nobody told of goes before the next one of its sender that this host writes."""
    clock = ManualClock()
    inbox = InMemoryInbox(clock=clock)
    store = ComposedStore(clock=clock, inbox=inbox)
    await inbox.deliver(CLERK, message("first", to=CLERK, id="1"), notify=False)
    [second] = await store.arrivals.deliver([message("second", to=CLERK, id="2")])

    mail = await store.backlog.pending_mail(agent=CLERK)

    assert [item.message.payload for item in mail] == ["first", "second"]
    assert mail[1].arrival == second.arrival


async def test_a_refused_append_leaves_nothing_in_the_log_that_was_given() -> None:
    """The rows are asked first: a run whose turn has not come has no entry anywhere."""
    clock = ManualClock()
    log = InMemoryEventLog(clock=clock)
    async with composed_bed() as bed:
        bed.store = store = ComposedStore(clock=clock, event_log=log)
        await bed.claim()
        await store.arrivals.deliver([message("first", id="1", sender="ext:shop")])
        second = Turns(bed, (await bed.submit("second", id="2", sender="ext:shop")).run_id)

        with pytest.raises(OutOfOrderError):
            await store.commits.append(second.lease, [started()], expected_seq=-1)

    assert await log.last_seq(second.run_id) == -1


async def test_what_others_have_taken_from_the_inbox_holds_nothing_back() -> None:
    """The next message of its sender is taken, though a row of the older one is left."""
    clock = ManualClock()
    inbox = InMemoryInbox(clock=clock)
    async with composed_bed() as bed:
        bed.store = store = ComposedStore(clock=clock, inbox=inbox)
        await bed.claim()
        await store.arrivals.deliver([message(n, id=f"{n}") for n in range(3)])
        key = MessageKey(DESK, "client:tests", "1")
        run, new = bed.turns_of_mail(key)
        turn = run.turn(started(), create=new, bind=(key,))

        early = await run.send(turn)
        await inbox.ack(DESK, "0")
        later = await run.send(turn)

    assert early == OutOfOrder((key,))
    assert isinstance(later, Committed)


@pytest.mark.item(9, 10, 11, 12, 13, 188)
async def test_each_injected_part_is_the_one_that_is_used() -> None:
    """Log, results, messages, statuses and signals of a run are in the parts handed in."""
    clock = SystemClock()
    log, inbox, journal = (
        InMemoryEventLog(clock=clock),
        InMemoryInbox(clock=clock),
        InMemoryJournal(),
    )
    scheduler = InMemoryScheduler(clock=clock, entropy=SystemEntropy())
    woken: list[str] = []
    bus = InMemorySignalBus(clock=clock, wake=woken.append)
    store = ComposedStore(
        clock=clock,
        event_log=log,
        inbox=inbox,
        journal=journal,
        scheduler=scheduler,
        signal_bus=bus,
    )
    agent = Greeter()

    async with Runtime(store=store, suspend_after=0) as runtime, asyncio.timeout(10):
        await runtime.register(agent)
        run_id = await runtime.submit(DESK, Message.of(DESK, "hi"))
        async for entry in log.tail(run_id):
            if entry.kind == EntryKind.RUN_SUSPENDED:
                break
        waiting = await inbox.pending_count(DESK)
        status = await scheduler.get_status(run_id)
        await runtime.signal(run_id, "go", {"n": 1})
        output = await runtime.result(run_id)

    entries: list[RunLogEntry] = [e async for e in log.read(run_id)]
    (step,) = [e for e in entries if e.kind == EntryKind.EFFECT_RESULT and e.position]
    assert output == ["hello", {"n": 1}, "hi"]
    assert agent.calls == 1
    assert entries[-1].kind == EntryKind.RUN_COMPLETED
    assert await journal.lookup(str(step.payload["id"])) == EffectResult(
        str(step.payload["id"]), "ok", "hello"
    )
    assert (waiting, await inbox.pending_count(DESK)) == (1, 0)
    assert status in (RunStatus.SUSPENDED, RunStatus.RUNNING)
    assert await scheduler.get_status(run_id) is RunStatus.COMPLETED
    assert woken == [run_id]
