"""The host's ready queue."""

from __future__ import annotations

import pytest

from actors._runtime.worker.admission import ReadyQueue


@pytest.mark.item(121)
def test_lower_numbers_go_first_and_equals_by_arrival() -> None:
    """Priority 1 before 5 before 9; first come first served inside one."""
    queue: ReadyQueue[str] = ReadyQueue()
    for name, priority in (("c", 9), ("a", 1), ("b1", 5), ("b2", 5)):
        queue.offer(name, priority=priority, tenant="t")

    assert queue.take(4) == ["a", "b1", "b2", "c"]


def test_tenants_take_turns() -> None:
    """A tenant with a thousand runs delays another's single one by one run."""
    queue: ReadyQueue[str] = ReadyQueue()
    for n in range(1000):
        queue.offer(f"big{n}", priority=5, tenant="big")
    queue.offer("small", priority=5, tenant="small")

    assert queue.take(3) == ["big0", "small", "big1"]
    assert len(queue) == 998


@pytest.mark.item(218)
def test_a_tenant_of_weight_three_has_three_at_its_turn() -> None:
    """The other one still has its turn after three."""
    queue: ReadyQueue[str] = ReadyQueue()
    queue.weights = {"big": 3}
    for n in range(9):
        queue.offer(f"big{n}", priority=5, tenant="big")
        queue.offer(f"small{n}", priority=5, tenant="small")

    tenants = "".join(name[0] for name in queue.take(12))
    assert tenants == "bbbsbbbsbbbs"


def test_a_tenant_cannot_get_before_another_by_its_numbers() -> None:
    """Its hundred items of priority 0 delay the other's single one of priority 9 by one of them."""
    queue: ReadyQueue[str] = ReadyQueue()
    for n in range(100):
        queue.offer(f"urgent{n}", priority=0, tenant="big")
    queue.offer("small", priority=9, tenant="small")

    assert queue.waiting()[:3] == ["urgent0", "small", "urgent1"]
    assert queue.take(3) == ["urgent0", "small", "urgent1"]


def test_inside_a_tenant_lower_numbers_go_first_at_each_of_its_turns() -> None:
    """Whatever the numbers of the tenant between them are."""
    queue: ReadyQueue[str] = ReadyQueue()
    for name, priority in (("a9", 9), ("b5", 5), ("a1", 1), ("b4", 4), ("a5", 5)):
        queue.offer(name, priority=priority, tenant=name[0])

    assert queue.waiting(tenant="a") == ["a1", "a5", "a9"]
    assert queue.take(5) == ["a1", "b4", "a5", "b5", "a9"]


def test_one_that_could_not_use_its_turn_is_the_next_of_its_lane() -> None:
    """Before its own tenant's others of its number, and before other tenants."""
    queue: ReadyQueue[str] = ReadyQueue()
    queue.offer("a1", priority=5, tenant="a")
    queue.offer("b1", priority=5, tenant="b")
    queue.offer("b0", priority=5, tenant="b", first=True)
    queue.offer("b-urgent", priority=1, tenant="b")

    assert queue.take(4) == ["b-urgent", "a1", "b0", "b1"]
