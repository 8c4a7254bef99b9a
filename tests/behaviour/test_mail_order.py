"""The order of one sender's messages if their hints come late, twice or never."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime.journal.amendments import Setback, Setbacks
from tests.harness.faulty_store import Faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors._kernel.runtime.hints import Nudge
    from actors._kernel.runtime.ids import AgentId, RunId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

SENDER = "ext:shop"


def mail(agent: AgentId, payload: object, sender: str = SENDER) -> Message:
    """Return a message of a sender name that several processes use."""
    return Message.of(agent, payload).sent_by(sender)


async def unheard(bed: Bed, agent: AgentId, payload: object, sender: str = SENDER) -> None:
    """Write a row without a hint to the host."""
    await bed.runtime.inbox.deliver(agent, mail(agent, payload, sender), notify=False)


async def handled(bed: Bed, agent: AgentId, count: int) -> list[object]:
    """Return the messages that the agent handled once there are this many; all its runs have completed then."""
    await bed.until(lambda: len(bed.world.order) >= count)
    for row in await bed.runtime.store.lists.runs(agent=agent):
        assert (await bed.ended(row.run_id)).status is RunStatus.COMPLETED
    return list(bed.world.order)


async def seeing(bed: Bed) -> AgentId:
    """Serve an agent that records each message of its inbox in a step."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        for message in inbox:
            await ctx.step("see", see, message.payload)

    def see(payload: str) -> None:
        bed.world.order.append(payload)

    return await bed.serve(act)


async def test_a_row_without_a_hint_is_not_overtaken(bed: Bed) -> None:
    """The commit that binds a message is refused while an older one of its sender waits."""
    agent = await seeing(bed)
    await unheard(bed, agent, "first")
    await unheard(bed, agent, "other", "ext:else")
    await bed.runtime.send(agent, "second", sender=SENDER)

    order = await handled(bed, agent, 3)

    assert [s for s in order if s != "other"] == ["first", "second"]


async def test_a_run_receives_no_message_before_an_older_one_of_its_sender(bed: Bed) -> None:
    """Also an older one without a hint. Messages of other senders are not delayed."""

    async def act(ctx: RunContext, inbox: list[Message]) -> list[object]:
        del inbox
        await ctx.step("mark", bed.world.do, "mark")
        got = [await ctx.receive() for _ in range(3)]
        return [message and message.payload for message in got]

    run_id = await bed.submit(agent := await bed.serve(act))
    await bed.marked(run_id)
    await unheard(bed, agent, "first")
    await bed.runtime.send(agent, "second", sender=SENDER)
    await bed.runtime.send(agent, "third", sender=SENDER)

    assert await bed.result(run_id) == ["first", "second", "third"]
    assert await bed.runtime.store.lists.pending_count(agent) == 0


async def test_a_refused_message_disturbs_no_effect(bed: Bed) -> None:
    """A concurrent at-most-once effect completes, is recorded, and is not in doubt."""
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def pay() -> str:
        bed.world.count["paid"] += 1
        begun.set()
        await goes_on.wait()
        return "paid"

    async def act(ctx: RunContext, inbox: list[Message]) -> list[object]:
        del inbox

        async def receives() -> list[object]:
            got = [await ctx.receive() for _ in range(2)]
            goes_on.set()
            return [message and message.payload for message in got]

        return await ctx.gather(receives(), ctx.step("pay", pay, effect="at_most_once"))

    run_id = await bed.submit(agent := await bed.serve(act))
    await begun.wait()
    await unheard(bed, agent, "first")
    await bed.runtime.send(agent, "second", sender=SENDER)

    assert await bed.result(run_id) == [["first", "second"], "paid"]
    assert bed.world.count["paid"] == 1
    entries = await bed.log(run_id)
    received = [e for e in entries if e.kind == EntryKind.MSG_RECEIVED and e.position[:2] != "in"]
    assert [e.position for e in received] == sorted(e.position for e in received)
    assert EntryKind.RUN_PARKED not in [e.kind for e in entries]


class Lossy:
    """A hint hook that loses, delays or doubles hints."""

    def __init__(self, hook: Callable[[Nudge], None], rnd: random.Random) -> None:
        self._hook, self._rnd = hook, rnd
        self.lost = self.late = self.twice = 0

    def __call__(self, nudge: Nudge) -> None:
        """Pass a hint on, lose it or repeat it, at random."""
        manner = self._rnd.choice(("now", "lost", "late", "twice"))
        if manner == "lost":
            self.lost += 1
            return
        if manner == "late":
            self.late += 1
            loop = asyncio.get_running_loop()
            loop.call_later(self._rnd.random() / 50, self._hook, nudge)
            return
        self._hook(nudge)
        if manner == "twice":
            self.twice += 1
            self._hook(nudge)


@pytest.mark.parametrize("receives", [False, True], ids=["starts", "receives"])
async def test_two_processes_that_send_under_one_name_keep_its_order(
    bed: Bed, receives: bool
) -> None:
    """Hints may be lost: each message is accepted before the next one is sent."""
    rounds, seed = 60 if bed.backend == "memory" else 25, random.randrange(1 << 30)
    rnd = random.Random(seed)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        for message in inbox:
            await ctx.step("see", see, message.payload)
        while receives and (more := await ctx.receive(timeout=0.02)) is not None:
            await ctx.step("see", see, more.payload)

    def see(payload: str) -> None:
        bed.world.order.append(payload)

    agent = await bed.serve(act)
    hook = Lossy(bed.runtime._host.notifications.publish, rnd)
    bed.runtime.store.set_nudge_hook(hook)
    async with bed.client() as other:
        for n in range(rounds):
            writers = [bed.runtime, other]
            rnd.shuffle(writers)
            for k, writer in enumerate(writers):
                await writer.send(agent, f"{n}:{k}", sender=SENDER)
            if rnd.random() < 0.5:
                await asyncio.sleep(rnd.random() / 100)
        await bed.runtime.send(agent, "end", sender=SENDER)

        order = await handled(bed, agent, 2 * rounds + 1)

    assert order == [f"{n}:{k}" for n in range(rounds) for k in range(2)] + ["end"], seed
    assert hook.lost


async def test_a_message_to_a_free_agent_is_one_delivery_and_one_commit(bed: Bed) -> None:
    """One delivery and one commit for a message to a free agent; one more commit for each receive."""
    faults = Faults()
    bed.go_wrong(faults)
    await bed.restart(suspend_after=5.0)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        await ctx.step("see", bed.world.do, inbox[0].payload)
        while inbox[0].payload != "warm" and (message := await ctx.receive()) is not None:
            await ctx.step("see", bed.world.do, message.payload)
            if message.payload == "end":
                return

    agent = await bed.serve(act)
    await bed.result(await bed.submit(agent, "warm"))  # its messages have been read once
    store_calls = []
    for payload in ("first", "second", "third"):
        faults.calls.clear()
        await bed.runtime.send(agent, payload)
        await bed.until(partial(bed.world.count.__getitem__, payload))
        store_calls.append([call for call in faults.calls if call in ("deliver", "commit")])
    await bed.runtime.send(agent, "end")

    assert store_calls == [["deliver", "commit"]] * 3


@pytest.mark.parametrize(
    ("older", "younger"), [("submit", "submit"), ("submit", "send"), ("send", "submit")]
)
async def test_no_run_starts_before_an_older_one_of_its_sender(
    bed: Bed, older: str, younger: str
) -> None:
    """Also an older message or run without a hint. Runs of other submitters are not delayed."""
    agent = await seeing(bed)
    bed.runtime.store.set_nudge_hook(lambda _: None)
    async with bed.client("local") as other:
        for writer, verb, payload in ((other, older, "first"), (bed.runtime, younger, "second")):
            name = {"sender": "submit:local"} if verb == "send" else {}
            await getattr(writer, verb)(agent, payload, **name)
        await other.send(agent, "other")

        order = await handled(bed, agent, 2)

    assert [s for s in order if s != "other"] == ["first", "second"]


async def test_messages_and_submits_of_one_sender_keep_their_order(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages between two submitted runs are a run of their own; no run starts with refused messages."""
    setbacks: list[Setback] = []

    def note(_: Setbacks, _run: RunId, setback: Setback) -> float:
        setbacks.append(setback)
        return 1.0

    monkeypatch.setattr(Setbacks, "note", note)
    inboxes: list[list[object]] = []
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        inboxes.append([message.payload for message in inbox])
        if inbox[0].payload == "busy":
            begun.set()
            await ctx.step("hold", goes_on.wait)

    agent = await bed.serve(act)
    first = await bed.submit(agent, "busy")
    await begun.wait()
    runs = []
    for payload in ("mail 1", "run 2", "mail 3", "mail 4", "run 5", "mail 6"):
        if payload.startswith("run"):
            runs.append(await bed.submit(agent, payload))
        else:
            await bed.runtime.send(agent, payload, sender="submit:local")
    goes_on.set()
    for run_id in (first, *runs):
        await bed.ended(run_id)
    await bed.until(lambda: len(inboxes) == 6)

    assert inboxes == [["busy"], ["mail 1"], ["run 2"], ["mail 3", "mail 4"], ["run 5"], ["mail 6"]]
    assert not setbacks
