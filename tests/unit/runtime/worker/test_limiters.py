"""What a host has of a limit, and when it asks for more or gives back: pure, on a clock of numbers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.stores.limits import Grant, LimitScope
from actors._runtime.worker.admission import (
    LINGER_S,
    LONGEST_WAIT_S,
    POLL_S,
    REFRESH_S,
    SHARE_S,
    SHORTEST_WAIT_S,
    Slots,
    TokenBucket,
    WaitQueue,
)

SCOPE = LimitScope.parse("type:desk")


@dataclass(eq=False)
class Item:
    """An agent that wants to execute."""

    name: str
    priority: int = 5
    run_id: RunId | None = None

    @property
    def agent_id(self) -> AgentId:
        """Its tenant is the first letter of its name."""
        return AgentId("desk", self.name, self.name[0])

    @agent_id.setter
    def agent_id(self, value: AgentId) -> None:
        raise AttributeError(value)


def grant(count: int, share: int | None = None, **more: bool | float) -> Grant:
    """An answer of the store."""
    facts = {"contended": False, **more}
    return Grant(scope=SCOPE, held=count, share=count if share is None else share, **facts)  # type: ignore[arg-type]


def slots(held_slots: int = 0, *, used: int = 0, waiting: int = 0, now: float = 0.0) -> Slots[Item]:
    """Slots as they are after the store has granted so many to those who asked for them."""
    limiter: Slots[Item] = Slots(WaitQueue({}))
    for n in range(waiting):
        limiter.queue.put(Item(f"t{n}"))
    for _ in range(used):
        limiter.acquire()
    limiter.claim(now)
    limiter.apply(grant(held_slots), now)
    return limiter


def test_no_run_passes_while_another_waits_or_no_slot_is_free() -> None:
    """Whoever comes later waits behind those who do; who was notified may pass."""
    queue: WaitQueue[Item] = WaitQueue({})
    early, late = Item("early"), Item("late")
    assert queue.admits(late, free=1)
    assert not queue.admits(late, free=0)
    queue.put(early)
    assert not queue.admits(late, free=5)

    assert queue.notify(free=1) == [early]
    assert queue.admits(early, free=1)
    assert not queue.admits(early, free=0)


def test_no_more_are_notified_than_there_are_slots_for() -> None:
    """Those who were notified and have not come yet have their room."""
    queue: WaitQueue[Item] = WaitQueue({})
    first, second, third = (Item(f"t{n}") for n in range(3))
    for item in (first, second, third):
        queue.put(item)

    assert queue.notify(free=2) == [first, second]
    assert queue.notify(free=2) == []
    assert len(queue) == 3
    queue.remove(first)
    assert queue.notify(free=2) == [third]
    assert len(queue) == 2


def test_who_was_called_in_vain_is_the_next_again() -> None:
    """Somebody more urgent came before; its position in its lane is kept."""
    queue: WaitQueue[Item] = WaitQueue({})
    first, second = Item("t1"), Item("t2")
    queue.put(first)
    queue.put(second)
    queue.notify(free=1)

    queue.put(first)

    assert queue.notify(free=2) == [first, second]


def test_a_limit_that_is_gone_lets_all_go_in_order() -> None:
    """Also those who were notified are forgotten: they are in the ready queue already."""
    queue: WaitQueue[Item] = WaitQueue({"b": 2})
    items = [Item(name) for name in ("a1", "a2", "b1", "b2")]
    for item in items:
        queue.put(item)
    [notified] = queue.notify(free=1)

    assert [item.name for item in queue.take_all()] == ["b1", "b2", "a2"]
    assert notified.name == "a1"
    assert len(queue) == 0


def test_slots_that_are_used_and_held_are_confirmed_now_and_then() -> None:
    """A lost nudge is heard of after five seconds; where others want slots, much sooner."""
    limiter = slots(2, used=2)
    assert limiter.due_at(1.0) == REFRESH_S

    limiter.refresh(is_changed=False)
    assert limiter.due_at(0.0) == SHARE_S


def test_one_who_waits_is_asked_for_at_once_and_then_now_and_then() -> None:
    """As long as no more wait than were asked for."""
    limiter = slots(1, used=1, waiting=2)
    assert limiter.due_at(0.1) == POLL_S

    limiter.queue.put(Item("another"))
    assert limiter.due_at(0.2) == 0.2
    assert limiter.claim(0.2) == (1, 4)
    assert limiter.due_at(0.3) == 0.2 + POLL_S


def test_a_slot_that_no_run_needs_lingers() -> None:
    """It is kept for a moment, and given back then; another run may have it meanwhile."""
    limiter = slots(2, used=2)
    limiter.release(1.0)

    assert limiter.free == 1
    assert limiter.due_at(1.0) == 1.0 + LINGER_S
    assert limiter.claim(1.1) == (2, 2), "asked for another reason, it keeps it"
    assert limiter.claim(1.0 + LINGER_S) == (1, 1)
    assert limiter.free == 0


def test_a_slot_that_others_want_does_not_linger() -> None:
    """It is given back at once."""
    limiter = slots(2, used=2)
    limiter.claim(1.0)
    limiter.apply(grant(2, contended=True), 1.0)
    limiter.release(1.0)

    assert limiter.due_at(1.0) == 1.0
    assert limiter.claim(1.0) == (1, 1)


def test_what_is_given_back_is_not_used_before_the_answer() -> None:
    """The store may have given it away already."""
    limiter = slots(3, used=1, waiting=0)
    limiter.claim(LINGER_S)
    assert limiter.free == 0

    limiter.apply(grant(1), LINGER_S)
    assert (limiter.free, limiter.held) == (0, 1)


def test_above_the_share_no_slot_is_used_twice() -> None:
    """What executes goes on; who leaves makes no room until the share is reached."""
    limiter = slots(3, used=3, waiting=1)
    limiter.apply(grant(3, share=1, contended=True), 0.0)
    assert limiter.free == 0

    limiter.release(1.0)
    limiter.release(1.0)
    assert limiter.free == 0
    assert limiter.due_at(1.0) == 1.0, "two are held that are not used"
    limiter.release(1.0)
    assert limiter.free == 1


def test_more_that_execute_than_are_held_are_told_at_once() -> None:
    """As when a limit is new: they are running, whatever it says."""
    limiter: Slots[Item] = slots()
    limiter.acquire()

    assert limiter.due_at(3.0) == 3.0
    assert limiter.claim(3.0) == (1, 1)
    assert limiter.free == 0


def test_who_waits_no_more_is_taken_back_from_what_was_asked() -> None:
    """Others may then hope again; not for every one at once."""
    limiter = slots(0, waiting=2)
    assert limiter.due_at(0.0) == POLL_S
    for item in limiter.queue.waiting.waiting():
        limiter.queue.remove(item)

    assert limiter.due_at(0.0) == LINGER_S
    limiter.claim(LINGER_S)
    assert limiter.due_at(1.0) is None


def test_a_changed_limit_is_asked_for_at_once() -> None:
    """So is one of which somebody said that slots are free, if anybody waits here."""
    for is_changed in (True, False):
        limiter = slots(0, waiting=1)
        limiter.refresh(is_changed=is_changed)
        assert limiter.due_at(0.1) == 0.1

    idle = slots(0)
    idle.refresh(is_changed=False)
    assert idle.due_at(0.1) is None


def test_after_a_lost_answer_all_that_was_asked_counts_as_held() -> None:
    """It is not used, and is given back or confirmed at once."""
    limiter: Slots[Item] = Slots(WaitQueue({}))
    for n in range(3):
        limiter.queue.put(Item(f"t{n}"))
    limiter.claim(0.0)

    limiter.mark_unanswered()

    assert (limiter.held, limiter.free) == (3, 0)
    assert limiter.due_at(0.1) == 0.1


def bucket(waiting: int) -> TokenBucket[Item]:
    """Starts for so many who wait."""
    limiter: TokenBucket[Item] = TokenBucket(WaitQueue({}))
    for n in range(waiting):
        limiter.queue.put(Item(f"t{n}"))
    return limiter


def test_starts_are_asked_for_as_many_as_wait() -> None:
    """Nothing is due when nobody waits, nor when all who wait have theirs."""
    assert bucket(0).due_at(1.0) is None
    limiter = bucket(3)
    assert limiter.due_at(1.0) == 1.0
    assert limiter.claim(1.0) == 3

    limiter.apply(grant(0, starts=3), 1.0)
    assert limiter.free == 3
    assert limiter.due_at(1.0) is None
    assert limiter.held == 0


@pytest.mark.parametrize(
    ("said_s", "waits_s"), [(0.0, SHORTEST_WAIT_S), (0.3, 0.3), (60.0, LONGEST_WAIT_S)]
)
def test_who_got_no_start_asks_again_when_the_store_said(said_s: float, waits_s: float) -> None:
    """Within bounds; a claim before that asks for none."""
    limiter = bucket(2)
    limiter.claim(1.0)
    limiter.apply(grant(0, starts=1, next_start_s=said_s), 1.0)

    assert limiter.due_at(1.0) == pytest.approx(1.0 + waits_s)
    assert limiter.claim(1.0 + waits_s / 2) == 0
    assert limiter.claim(1.0 + waits_s) == 1


def test_a_changed_rate_is_asked_for_at_once() -> None:
    """News of slots is no news of starts."""
    limiter = bucket(1)
    limiter.apply(grant(0, starts=0, next_start_s=0.5), 1.0)
    limiter.refresh(is_changed=False)
    assert limiter.due_at(1.0) == 1.5
    limiter.refresh(is_changed=True)
    assert limiter.due_at(1.0) == 1.0


def test_a_start_that_nobody_takes_is_given_back_once() -> None:
    """One that was used is over: its end gives nothing back."""
    limiter = bucket(1)
    limiter.apply(grant(0, starts=2), 1.0)
    limiter.queue.take_all()
    limiter.acquire()
    limiter.release(1.0)

    assert limiter.due_at(1.0) == 1.0
    assert limiter.claim(1.0) == -1
    assert (limiter.free, limiter.due_at(1.0)) == (0, None)
