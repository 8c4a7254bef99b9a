"""Whose turn it is: the pure decision."""

from __future__ import annotations

import pytest

from actors.kernel.agent.message import Message
from actors.kernel.runtime.commit import Arrived
from actors.kernel.runtime.ids import AgentId, RunId, ShardId
from actors.runtime.mailbox import Holding, Mailbox, StartMail, StartRun

DESK = AgentId("desk", "1")


def arrived(n: int, run: str | None = None) -> Arrived:
    """Return a message at place `n` of the queue, of a queued run if one is named."""
    message = Message.of(DESK, n, id=f"m{n}").sent_by("ext:x")
    return Arrived(message, "ext:x", DESK, n, RunId(run) if run else None)


def mailbox(*items: Arrived) -> Mailbox:
    """Return a mailbox with these messages."""
    box = Mailbox(DESK, ShardId("s"))
    for item in items:
        box.add(item)
    return box


@pytest.mark.item(35)
@pytest.mark.item(46)
def test_a_run_is_given_at_most_a_hundred_messages_and_the_rest_wait() -> None:
    """250 messages become runs of 100, 100 and 50, in order, without a further delivery."""
    box = mailbox(*(arrived(n) for n in range(250)))
    sizes = []
    while (turn := box.next_turn()) is not None:
        assert isinstance(turn, StartMail)
        sizes.append([item.arrival for item in turn.mail])

    assert [len(size) for size in sizes] == [100, 100, 50]
    assert [n for size in sizes for n in size] == list(range(250))


def test_a_queued_run_and_mail_go_by_arrival() -> None:
    """Whatever came first goes first; a queued run takes its own message only."""
    box = mailbox(arrived(2), arrived(1, "r"), arrived(3))

    first, second = box.next_turn(), box.next_turn()

    assert isinstance(first, StartRun)
    assert first.run_id == "r"
    assert isinstance(second, StartMail)
    assert [item.arrival for item in second.mail] == [2, 3]


@pytest.mark.item(24)
def test_a_message_told_twice_is_queued_once() -> None:
    """A nudge and a scan may both tell of one row; also after a run has taken it."""
    box = mailbox(arrived(1))
    again = box.add(arrived(1))
    box.next_turn()
    after = box.add(arrived(1))

    assert (again, after) == (False, False)


def test_an_agent_that_is_held_starts_nothing() -> None:
    """From its first entry to its terminal one a run holds its agent."""
    box = mailbox(arrived(1))
    box.holding = Holding.SUSPENDED

    assert box.next_turn() is None
