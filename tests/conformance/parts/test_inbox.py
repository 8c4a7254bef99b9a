"""The contract of every `Inbox`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId
from tests.conformance.bed import DESK, message

if TYPE_CHECKING:
    from actors._kernel.runtime.sources import Inbox
    from tests.conformance.source import Source

CLERK = AgentId("clerk", "7")


async def ids(inbox: Inbox, agent: AgentId = DESK) -> list[str]:
    """Return the ids of the waiting messages, in order."""
    return [msg.id for msg in await inbox.drain(agent)]


@pytest.mark.item(117, 148, 194, 199)
async def test_a_message_is_delivered_once(source: Source) -> None:
    """Its id is refused afterwards, also once it was processed. From another sender it is new."""
    inbox = source.inbox()

    first = await inbox.deliver(DESK, message("a", id="1"))
    again = await inbox.deliver(DESK, message("b", id="1"))
    other = await inbox.deliver(DESK, message("c", id="2", sender="ext:shop"))
    await inbox.ack(DESK, "1")
    handled = await inbox.deliver(DESK, message("d", id="1"))

    assert (first, again, other, handled) == (True, False, True, False)
    assert [msg.payload for msg in await inbox.drain(DESK)] == ["c"]


@pytest.mark.item(118, 196)
async def test_draining_returns_messages_in_order_and_removes_none(source: Source) -> None:
    """Up to the limit. The next attempt gets the same messages again."""
    inbox = source.inbox()
    for n in range(5):
        await inbox.deliver(DESK, message(n, id=str(n)))
    await inbox.deliver(CLERK, message(id="other", to=CLERK))

    first = [msg.payload for msg in await inbox.drain(DESK, max=3)]
    second = [msg.payload for msg in await inbox.drain(DESK, max=3)]

    assert first == second == [0, 1, 2]
    assert await ids(inbox) == ["0", "1", "2", "3", "4"]


@pytest.mark.item(118, 201)
async def test_the_order_of_each_sender_is_kept(source: Source) -> None:
    """Ten senders at once, and a failure of the first message in between."""
    inbox = source.inbox()

    async def send(sender: str) -> None:
        for n in range(10):
            await inbox.deliver(DESK, message(n, id=f"{sender}{n}", sender=sender))

    await asyncio.gather(*(send(f"client:c{c}") for c in range(10)))
    await inbox.nack(DESK, "client:c30", error="no")

    drained = await inbox.drain(DESK, max=200)
    for c in range(10):
        assert [m.payload for m in drained if m.sender == f"client:c{c}"] == list(range(10))


@pytest.mark.item(197)
async def test_a_handled_message_is_gone(source: Source) -> None:
    """Only that message; processing an unknown one is no error."""
    inbox = source.inbox()
    for n in range(3):
        await inbox.deliver(DESK, message(id=str(n)))

    await inbox.ack(DESK, "1")
    await inbox.ack(DESK, "1")
    await inbox.ack(DESK, "unknown")

    assert await ids(inbox) == ["0", "2"]
    assert await inbox.pending_count(DESK) == 2


@pytest.mark.item(119, 198, 202)
async def test_a_message_that_fails_too_often_is_a_dead_letter(source: Source) -> None:
    """After `max_retries` failures. Until then it is drained again, afterwards never."""
    inbox = source.inbox(max_retries=3)
    await inbox.deliver(DESK, message({"q": 1}, id="bad"))
    await inbox.deliver(DESK, message(id="good"))

    drained = []
    for n in range(3):
        drained.append(await ids(inbox))
        await inbox.nack(DESK, "bad", error=f"failure {n}")

    (letter,) = await inbox.dead_letters(DESK)
    assert drained == [["bad", "good"]] * 3
    assert await ids(inbox) == ["good"]
    assert await inbox.deliver(DESK, message(id="bad")) is False
    assert (letter.message.id, letter.message.payload) == ("bad", {"q": 1})
    assert (letter.reason, letter.attempts, letter.last_error) == ("max_retries", 3, "failure 2")
    assert await inbox.dead_letters(CLERK) == []


@pytest.mark.item(202)
async def test_a_failed_message_can_still_be_handled(source: Source) -> None:
    """A success after failures removes the message."""
    inbox = source.inbox()
    await inbox.deliver(DESK, message(id="1"))
    await inbox.nack(DESK, "1", error="no")

    await inbox.ack(DESK, "1")

    assert await ids(inbox) == []
    assert await inbox.pending_count(DESK) == 0
    assert await inbox.dead_letters(DESK) == []


@pytest.mark.item(488)
async def test_a_dead_letter_waits_again_after_a_redrive(source: Source) -> None:
    """Its counter is reset. It is no dead letter any more and cannot be redriven twice."""
    inbox = source.inbox(max_retries=1)
    await inbox.deliver(DESK, message("again", id="1"))
    await inbox.nack(DESK, "1")

    redriven = await inbox.redrive(DESK, "1")
    twice = await inbox.redrive(DESK, "1")

    assert (redriven, twice) == (True, False)
    assert await inbox.dead_letters(DESK) == []
    assert [msg.payload for msg in await inbox.drain(DESK)] == ["again"]


@pytest.mark.item(120, 195, 203)
async def test_the_hook_is_notified_of_each_new_message_once(source: Source) -> None:
    """Not of known ones, not with `notify=False`, and not after the hook was removed."""
    inbox, agents = source.inbox(), list[AgentId]()
    inbox.set_deliver_hook(agents.append)

    await inbox.deliver(DESK, message(id="1"))
    await inbox.deliver(DESK, message(id="1"))
    await inbox.deliver(DESK, message(id="2"), notify=False)
    await inbox.deliver(CLERK, message(id="3", to=CLERK))
    inbox.set_deliver_hook(None)
    await inbox.deliver(DESK, message(id="4"))

    assert agents == [DESK, CLERK]
    assert await inbox.pending_count(DESK) == 3
