"""The host's ready queue."""

from __future__ import annotations

import pytest

from actors.runtime.ready_queue import ReadyQueue


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
