"""Lazy followers: a post starts no run, and is delivered with the next message that does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.behaviour.outside import all_done, brought, noting, pending
from tests.behaviour.test_follow import follower, publish, topic_of
from tests.harness.faulty_store import Faults

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

pytestmark = pytest.mark.item(136)


async def test_a_lazy_follower_is_not_woken_and_gets_all_with_the_next_start(bed: Bed) -> None:
    """Posts wait, in order, before the message that starts the run; also over a restart."""
    topic = topic_of(bed)
    agent, got = await follower(bed, topic, mode="lazy")
    _, woken = await follower(bed, topic)
    for n in range(3):
        await publish(bed, topic, n)
        await bed.until(lambda: len(woken) > n)  # noqa: B023 - called before n is another
    await brought(bed)
    assert got == []
    assert await bed.runtime.store.lists.runs(agent=agent) == []

    await bed.restart()
    await bed.runtime.send(agent, "wake up")
    await bed.until(lambda: "wake up" in got)
    await all_done(bed, agent)

    assert got == [0, 1, 2, "wake up"]


async def test_a_run_receives_the_posts_of_a_lazy_follow(bed: Bed) -> None:
    """`receive` returns posts that came while the run executed something else."""
    topic = topic_of(bed)
    got: list[Any] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.follow(topic, mode="lazy")
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("go")
        for timeout in (10, 0.01):
            message = await ctx.receive(timeout=timeout)
            got.append(message and message.payload)

    run_id = await bed.submit(await bed.serve(act))
    await bed.marked(run_id)
    await publish(bed, topic, "left for you")
    agent = (await bed.row(run_id)).agent_id
    await pending(bed, agent, 2)  # its own first message, and the post
    await bed.runtime.signal(run_id, "go")
    await bed.result(run_id)

    assert got[-2:] == ["left for you", None]


async def test_an_eager_follow_after_a_lazy_one_keeps_the_order(bed: Bed) -> None:
    """An agent that follows eagerly now gets the waiting posts first, then the post that wakes it."""
    topic = topic_of(bed)
    agent, got = await follower(bed, topic, mode="lazy")
    for n in range(3):
        await publish(bed, topic, n)
    await bed.runtime.follow(agent, topic.type, mode="eager")
    await publish(bed, topic, 3)
    await bed.until(lambda: 3 in got)
    await all_done(bed, agent)

    assert got == [0, 1, 2, 3]


async def test_a_lazy_post_after_the_start_waits_for_the_next_one(bed: Bed) -> None:
    """It starts no other run when the present one ends."""
    topic = topic_of(bed)
    runs: list[list[Any]] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        runs.append([m.payload for m in inbox])
        if len(runs) == 1:
            await ctx.step("mark", bed.world.do, "mark")
            await ctx.step("wait", bed.world.wait, "go")

    agent = await bed.serve(act)
    await bed.runtime.follow(agent, topic.type, mode="lazy")
    await bed.runtime.send(agent, "first")
    await bed.until(lambda: runs)
    await publish(bed, topic, "later")
    await pending(bed, agent, 2)
    bed.world.gates["go"].set()
    await pending(bed, agent, 1)
    other: list[Any] = []
    sentinel = await bed.serve(noting(other))
    await bed.runtime.send(sentinel, "x")
    await all_done(bed, sentinel)
    assert runs == [["first"]]
    await bed.runtime.send(agent, "second")
    await all_done(bed, agent)

    assert runs == [["first"], ["later", "second"]]


async def test_a_lazy_follower_causes_no_reads_for_others(bed: Bed) -> None:
    """The host reads from the notified post on, whatever waits in the store for lazy followers."""
    faults = Faults(method="pending_mail")
    bed.go_wrong(faults)
    await bed.restart()
    topic = topic_of(bed)
    lazy, late = await follower(bed, topic, mode="lazy")
    agent, got = await follower(bed, topic)
    await publish(bed, topic, 0)
    await bed.until(lambda: got)
    await all_done(bed, agent)
    await brought(bed)
    await bed.until(lambda: not bed.runtime._host.worker.held.unread)
    before = len(faults.calls)

    for n in range(1, 4):
        await publish(bed, topic, n)
        await bed.until(lambda: len(got) > n)  # noqa: B023 - called before n is another
        await all_done(bed, agent)
    reads = len(faults.calls) - before
    await bed.runtime.send(lazy, "now")
    await bed.until(lambda: "now" in late)

    assert reads == 0
    assert len(faults.calls) > before
    assert (got, late) == ([0, 1, 2, 3], [0, 1, 2, 3, "now"])
