"""Whose turn it is: the pure decision."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId, RunId, ShardId
from actors._kernel.runtime.rows import Arrived
from actors._runtime.worker.mailbox import (
    Adoption,
    Holding,
    Mailbox,
    MailboxCapacity,
    StartMail,
    StartRun,
)

DESK = AgentId("desk", "1")


def arrived(n: int, run: str | None = None, *, sender: str = "ext:x") -> Arrived:
    """Return a message at place `n` of the queue, of a queued run if one is named."""
    message = Message.of(DESK, n, id=f"m{n}").sent_by(sender)
    return Arrived(message, sender, DESK, n, RunId(run) if run else None)


def mailbox(*items: Arrived, each: int = 1000, total: int = 1000) -> Mailbox:
    """Return a mailbox with these messages and this capacity."""
    box = Mailbox(DESK, ShardId("s"), MailboxCapacity(each=each, total=total))
    for item in items:
        box.add(item)
    return box


@pytest.mark.item(35)
@pytest.mark.item(46)
def test_a_run_is_given_at_most_a_hundred_messages_and_the_rest_wait() -> None:
    """250 messages become runs of 100, 100 and 50, in order, without a further delivery."""
    box = mailbox(*(arrived(n) for n in range(250)))
    sizes = []
    while (turn := box.take_next()) is not None:
        assert isinstance(turn, StartMail)
        sizes.append([item.arrival for item in turn.mail])

    assert [len(size) for size in sizes] == [100, 100, 50]
    assert [n for size in sizes for n in size] == list(range(250))


def test_a_run_is_given_no_more_than_its_agent_takes() -> None:
    """The oldest ones; a queued run of another sender keeps its place among them."""
    box = mailbox(arrived(0), arrived(1), arrived(2), arrived(3, "r", sender="ext:me"), arrived(4))
    turns = []
    while (turn := box.take_next(2)) is not None:
        turns.append([m.arrival for m in turn.mail] if isinstance(turn, StartMail) else turn.run_id)

    assert turns == [[0, 1], [2, 4], "r"]


def test_a_message_does_not_overtake_a_queued_run_of_its_sender() -> None:
    """The store refuses a run that has such mail, each time: the agent would never go on."""
    box = mailbox(
        arrived(0),
        arrived(1, sender="ext:me"),
        arrived(2, "r"),
        arrived(3),
        arrived(4, sender="ext:me"),
    )
    turns = []
    while (turn := box.take_next()) is not None:
        turns.append([m.arrival for m in turn.mail] if isinstance(turn, StartMail) else turn.run_id)

    assert turns == [[0, 1, 4], "r", [3]]


def test_a_message_that_goes_alone_shares_no_run() -> None:
    """What is before it goes first, without it; what is behind it waits."""
    alone = [replace(arrived(n), alone=True) for n in (2, 3)]
    box = mailbox(arrived(0), arrived(1), *alone, arrived(4), arrived(5))
    turns = []
    while (turn := box.take_next()) is not None:
        assert isinstance(turn, StartMail)
        turns.append([item.arrival for item in turn.mail])

    assert turns == [[0, 1], [2], [3], [4, 5]]


def test_a_queued_run_and_messages_go_by_arrival() -> None:
    """Whatever came first goes first; a queued run takes its own message only."""
    box = mailbox(arrived(2), arrived(1, "r"), arrived(3))

    first, second = box.take_next(), box.take_next()

    assert isinstance(first, StartRun)
    assert first.run_id == "r"
    assert isinstance(second, StartMail)
    assert [item.arrival for item in second.mail] == [2, 3]


@pytest.mark.item(24)
def test_a_message_told_twice_is_queued_once() -> None:
    """A nudge and a scan may both tell of one row; also after a run has taken it."""
    box = mailbox(arrived(1))
    again = box.add(arrived(1))
    box.take_next()
    after = box.add(arrived(1))

    assert (again, after) == (False, False)


@pytest.mark.item(107)
def test_a_run_that_holds_its_agent_has_no_place_in_its_queue() -> None:
    """A hint of its place may come before the run is known to hold, or after; then it sleeps as rows."""
    box = mailbox(arrived(0, "r"), arrived(1, "next"))
    box.run_id = RunId("r")
    box.evict(Holding.SUSPENDED, wake_at=None, wants_mail=False)
    assert not box.add(arrived(0, "r"))
    box.forget(RunId("next"))
    assert box.may_sleep(datetime.now(UTC))


def test_a_run_offered_while_it_is_loaded_is_kept() -> None:
    """Its row may be missed, as the store has forgotten it, and this be the hint of the new one."""
    box = mailbox(arrived(0, "r"))
    assert isinstance(box.take_next(), StartRun)
    box.run_id, box.holding = RunId("r"), Holding.EXECUTING
    arrival = arrived(7, "r")
    assert box.add(arrival)
    box.free()
    assert box.take_next() == StartRun(RunId("r"), arrival)


def test_a_run_offered_in_vain_is_dropped_when_it_suspends() -> None:
    """Its host keeps nothing of it."""
    box = mailbox()
    box.run_id, box.holding = RunId("r"), Holding.EXECUTING
    assert box.add(arrived(0, "r"))
    box.evict(Holding.SUSPENDED, wake_at=None, wants_mail=False)
    assert box.may_sleep(datetime.now(UTC))


def test_a_run_that_a_hint_named_keeps_its_place_until_it_is_confirmed() -> None:
    """Another run may hold the agent, as the row says."""
    box = mailbox()
    box.presume(RunId("r"), priority=5)
    assert box.add(arrived(0, "r"))
    box.confirm()
    assert not box.has_work


def test_an_agent_that_is_held_starts_nothing() -> None:
    """From its first entry to its terminal one a run holds its agent."""
    box = mailbox(arrived(1))
    box.holding = Holding.SUSPENDED

    assert box.take_next() is None


def read(box: Mailbox, pending: list[Arrived]) -> None:
    """MailboxLoader a mailbox as often as it asks, from these rows."""
    while box.is_low:
        limit = box.ask()
        page = sorted(pending, key=lambda item: item.arrival)[:limit]
        box.load_page(page, is_all=len(page) < limit)


def in_order(items: list[Arrived], sender: str) -> list[int]:
    """The arrivals of one sender."""
    return [item.arrival for item in items if item.sender == sender]


def arrivals(box: Mailbox) -> list[int]:
    """What is in memory, in order."""
    return [arrival for arrival, _ in box.queue or ()]


def test_beyond_its_capacity_a_mailbox_keeps_nothing_new() -> None:
    """Also not when there is a free slot again: what came before has to be read first."""
    box = mailbox(*(arrived(n) for n in range(4)), each=3)
    box.take_mail()
    is_new = box.add(arrived(4))

    assert is_new
    assert arrivals(box) == [1, 2]
    assert (box.spilled, box.capacity.used) == (True, 2)


def test_a_worker_holds_so_many_messages_in_all_mailboxes() -> None:
    """A second mailbox finds no free slot, yet gets what one turn needs when it asks the store."""
    capacity = MailboxCapacity(each=10, total=10)
    first, second = (Mailbox(AgentId("desk", key), ShardId("s"), capacity) for key in "12")
    for n in range(10):
        first.add(arrived(n))
    second.add(arrived(10))
    assert arrivals(second) == []
    read(second, [arrived(10), arrived(11)])

    assert arrivals(second) == [10, 11]
    assert not second.spilled
    assert capacity.used == 12


def test_boot_messages_are_always_kept() -> None:
    """They are not mail: a queued run is started with all of them."""
    box = mailbox(arrived(1), each=1)
    box.add(arrived(2))
    box.add(arrived(3, "r"))

    assert arrivals(box) == [1, 3]


def test_older_messages_in_the_store_go_before_a_queued_run() -> None:
    """The mailbox is low, so it is read before the turn is decided."""
    box = mailbox(each=2)
    box.note_mail()
    box.add(arrived(7, "r"))
    assert box.is_low
    read(box, [arrived(3)])

    assert isinstance(box.take_next(), StartMail)
    assert isinstance(box.take_next(), StartRun)


def test_what_the_run_in_memory_has_taken_is_not_read_again() -> None:
    """Its rows look pending until the run's next commit; afterwards nothing is remembered of them."""
    box = mailbox(*(arrived(n) for n in range(3)), each=3)
    box.note_mail()
    while box.has_mail:
        box.take_mail()
    read(box, [arrived(n) for n in range(5)])
    assert arrivals(box) == [3, 4]
    box.note_mail()
    box.take_mail()
    read(box, [arrived(3), arrived(4)])

    assert arrivals(box) == [4]
    assert box.taken_arrivals == {3}


def test_what_comes_while_the_store_is_asked_is_read_afterwards() -> None:
    """The mailbox stays spilled although the answer held all there was."""
    box = mailbox(each=5)
    box.note_mail()
    limit = box.ask()
    box.add(arrived(9))
    box.load_page([], is_all=limit > 0)

    assert box.spilled
    assert not box.is_empty


def test_a_mailbox_that_may_have_messages_is_not_empty() -> None:
    """Nor is one of an agent that is not served: it remembers that there is something."""
    spilled, not_served = mailbox(), mailbox()
    spilled.note_mail()
    not_served.adoption = Adoption.NOT_SERVED
    is_new = not_served.add(arrived(1, "r"))

    assert not spilled.is_empty
    assert not not_served.is_empty
    assert not is_new
    assert not_served.queue is None


@pytest.mark.parametrize("seed", range(50))
def test_every_message_is_taken_once_and_in_its_senders_order(seed: int) -> None:
    """Whatever is offered late, twice or not at all, and however the rows become visible."""
    rng = random.Random(seed)
    box = mailbox(each=rng.choice([1, 3, 150]), total=rng.choice([2, 1000]))
    rows: list[Arrived] = []
    # A number may become visible after a bigger one of another sender.
    unsent = {f"ext:{k}": [*range(k, 300, 7)] for k in range(7)}
    taken_mail: list[Arrived] = []
    late: list[Arrived] = []

    def take() -> None:
        read(box, rows)
        turn = box.take_next()
        for item in turn.mail if isinstance(turn, StartMail) else ():
            rows.remove(item)
            taken_mail.append(item)
        box.free()

    def offer(item: Arrived) -> None:
        if item in rows:
            box.add(item)
        else:
            box.note_mail()

    steps = [name for name, numbers in unsent.items() for _ in numbers]
    rng.shuffle(steps)
    for sender in steps:
        rows.append(arrived(unsent[sender].pop(0), sender=sender))
        late.append(rows[-1])
        while late and rng.random() < 0.7:
            offer(late.pop(0))
        if rng.random() < 0.1:
            box.spill()
        if rng.random() < 0.3:
            take()
    for item in late:
        offer(item)
    while rows or box.has_work:
        take()

    assert sorted(item.arrival for item in taken_mail) == [*range(300)]
    assert [in_order(taken_mail, name) for name in unsent] == [
        [*range(k, 300, 7)] for k in range(7)
    ]
    assert box.capacity.used == 0


def test_lazy_messages_are_no_work_and_come_before_what_is() -> None:
    """Nothing starts for it; a message that comes waits in the store until it was read."""
    box = mailbox()
    box.lazy = True
    assert (box.has_work, box.is_empty) == (False, True)

    assert box.add(arrived(3))
    assert (box.has_work, box.is_low, arrivals(box)) == (True, True, [])
    read(box, [arrived(1), arrived(2), arrived(3)])

    assert (arrivals(box), box.is_low) == ([1, 2, 3], False)


def test_lazy_messages_that_come_while_the_store_is_read_are_read_next_time() -> None:
    """The page may not have it."""
    box = mailbox()
    box.add(arrived(1))
    box.lazy = True
    box.ask()
    box.lazy = True
    box.load_page([arrived(1)], is_all=True)

    assert box.is_low
    assert not box.spilled
