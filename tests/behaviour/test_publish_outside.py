"""Posts and the broker: external clients publish to topics, and observers get all posts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import TopicId, letters_of, topic_shard
from tests.behaviour.outside import all_done, brought, eventually, outsider, received
from tests.behaviour.test_follow import follower, publish, topic_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

pytestmark = pytest.mark.nats


async def ends(bed: Bed, topic: Any, got: list[Any]) -> None:
    """Publish a last post and return when it arrived: all earlier posts have arrived then."""
    async with outsider(bed) as crm:
        await crm.post(topic, {"end": True})
    await bed.until(lambda: {"end": True} in got)
    await brought(bed)


@pytest.mark.item(26, 32, 94, 243)
async def test_what_an_external_client_publishes_reaches_every_follower_once(bed: Bed) -> None:
    """In order. The sender is the topic, and the metadata has the service's name."""
    topic = topic_of(bed, "eu.west é/1")
    followers = [await follower(bed, topic) for _ in range(3)]
    async with outsider(bed) as crm:
        for n in range(3):
            await crm.post(topic, {"n": n})
    await ends(bed, topic, followers[0][1])
    await bed.until(lambda: all(len(got) == 4 for _, got in followers))

    for agent, got in followers:
        await all_done(bed, agent)
        assert got[:3] == [{"n": 0}, {"n": 1}, {"n": 2}]
        message = (await received(bed, agent))[0]
        assert (message.sender, message.target) == (f"topic:{topic}", agent)
        assert message.metadata["publisher"] == "ext:crm"


@pytest.mark.item(27)
async def test_a_repeated_post_of_an_external_client_is_delivered_once(bed: Bed) -> None:
    """By publisher and id, also after a crash; the same id of another publisher is another post."""
    topic = topic_of(bed)
    agent, got = await follower(bed, topic)
    async with outsider(bed) as crm:
        await crm.post(topic, {"n": 1}, id="p-1")
        await crm.post(topic, {"n": 1}, id="p-1")
        await bed.restart()
        await crm.post(topic, {"n": 1}, id="p-1")
        await crm.with_name("shop").post(topic, {"n": 1}, id="p-1")
    await ends(bed, topic, got)
    await all_done(bed, agent)

    payloads = [m.payload for m in await received(bed, agent)]
    assert payloads == [{"n": 1}, {"n": 1}, {"end": True}]


async def test_one_id_may_name_a_message_and_posts_to_several_topics(bed: Bed) -> None:
    """Ids are compared for each agent and each topic separately."""
    first, second = topic_of(bed), topic_of(bed)
    agent, got = await follower(bed, first)
    await bed.runtime.follow(agent, second.type)
    async with outsider(bed) as crm:
        await crm.send(agent, {"to": "agent"}, id="same")
        await crm.post(first, {"to": "first"}, id="same")
        await crm.post(second, {"to": "second"}, id="same")
    await bed.until(lambda: len(got) == 3)

    assert {str(payload["to"]) for payload in got} == {"agent", "first", "second"}


async def test_a_post_that_is_no_message_is_one_dead_letter_and_the_topic_goes_on(bed: Bed) -> None:
    """It is listed under the topic's name with the error; redriving it is refused."""
    topic = topic_of(bed)
    _, got = await follower(bed, topic)
    async with outsider(bed) as crm:
        await crm.post(topic, ["no", "object"], id="p-1")
        await crm.post(topic, {"n": 1}, id="p-1")
    await ends(bed, topic, got)

    [letter] = await bed.runtime.store.lists.dead_letters(agent=letters_of(topic))
    assert (letter.reason, letter.message.sender) == ("undecodable", "ext:crm")
    assert "not a JSON object" in letter.last_error
    assert got == [{"n": 1}, {"end": True}]


async def test_an_external_post_without_followers_is_dropped(bed: Bed) -> None:
    """It is read and dropped: a later follower does not get it."""
    topic = topic_of(bed)
    same = next(
        t for t in map(topic_like(topic), range(1000)) if topic_shard(t) == topic_shard(topic)
    )
    _, others = await follower(bed, same)
    async with outsider(bed) as crm:
        await crm.post(topic, {"unheard": True})
    await ends(bed, same, others)  # of the same shard: read after the other one
    _, got = await follower(bed, topic)
    await ends(bed, topic, got)

    assert got == [{"end": True}]


def topic_like(topic: TopicId) -> Callable[[int], TopicId]:
    """Return topics of the same type."""
    return lambda n: TopicId(topic.type, f"s{n}")


@pytest.mark.item(243)
async def test_observers_get_all_posts_at_the_broker(bed: Bed) -> None:
    """Posts of runs, of Python and of external clients, within seconds, under the topic's subject."""
    topic = topic_of(bed)
    _, got = await follower(bed, topic)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.emit(topic, {"from": "run"})

    await bed.play(act)
    await publish(bed, topic, {"from": "python"})
    await bed.until(lambda: len(got) == 2)
    async with outsider(bed) as crm:
        await crm.post(topic, {"from": "outside"})
        subject, stream = crm.subjects.topic(topic), crm.subjects.stream("TOPIC")

        async def are_there() -> bool:
            return await crm.count(stream, subject) >= 3

        await eventually(are_there)
        assert await crm.count(stream, subject) == 3
    mail = bed.runtime._host.mail
    assert mail is not None

    async def is_forgotten() -> bool:
        return await mail._outbox.page(bed.runtime._host.worker.held.leases) == []

    await eventually(is_forgotten)
