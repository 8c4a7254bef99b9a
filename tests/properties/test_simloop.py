"""The simulation itself: virtual time, seeded order, no access to the outside."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from tests.harness.simloop import DeadlockError, OutsideWorldError, SimClock, SimEntropy, simulate

if TYPE_CHECKING:
    from tests.harness.simloop import SimLoop


async def racing(loop: SimLoop) -> list[int]:
    """Twelve tasks that append themselves after three turns each."""
    order: list[int] = []

    async def one(n: int) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        order.append(n)

    async with asyncio.TaskGroup() as group:
        for n in range(12):
            group.create_task(one(n))
    assert loop.time() == 0.0
    return order


def test_one_seed_is_one_interleaving() -> None:
    """The same seed gives the same trace and the same results."""
    first, loop = simulate(racing, seed=7)
    again, other = simulate(racing, seed=7)

    assert (first, loop.trace) == (again, other.trace)


def test_other_seeds_are_other_interleavings() -> None:
    """Among ten seeds the order of ready tasks differs."""
    assert len({tuple(simulate(racing, seed=seed)[0]) for seed in range(10)}) > 5


def test_an_hour_passes_at_once() -> None:
    """The clock jumps to the next timer without real time."""

    async def main(loop: SimLoop) -> tuple[float, float]:
        clock = SimClock(loop)
        before = clock.now()
        await asyncio.sleep(3600)
        return loop.time(), (clock.now() - before).total_seconds()

    assert simulate(main, seed=0)[0] == (3600.0, 3600.0)


def test_timeouts_work() -> None:
    """`asyncio.timeout` expires in virtual time and cancels what it guards."""

    async def main(loop: SimLoop) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await loop.create_future()
        return loop.time()

    assert simulate(main, seed=0)[0] == 2.5


def test_the_error_of_a_deadlock_names_the_tasks() -> None:
    """The error names the tasks and where they wait."""

    async def stuck_here(loop: SimLoop) -> None:
        await loop.create_future()

    with pytest.raises(DeadlockError, match="stuck_here"):
        simulate(stuck_here, seed=0)


def test_standing_time_is_an_error() -> None:
    """A loop in which time never passes is detected."""

    async def spinning(_: SimLoop) -> None:
        while True:  # noqa: ASYNC110 - the mistake that is looked for
            await asyncio.sleep(0)

    with pytest.raises(DeadlockError, match="time stands still"):
        simulate(spinning, seed=0)


@pytest.mark.parametrize("what", ["connect", "thread", "executor", "signal", "foreign"])
def test_access_to_the_outside_is_refused(what: str) -> None:
    """Sockets, executors, signal handlers and calls from other threads are refused."""

    async def main(loop: SimLoop) -> None:
        match what:
            case "connect":
                await asyncio.open_connection("127.0.0.1", 1)
            case "thread":
                await asyncio.to_thread(print)
            case "executor":
                await loop.run_in_executor(None, print)
            case "signal":
                loop.add_signal_handler(15, print)
            case _:
                await from_a_thread(loop)

    with pytest.raises(OutsideWorldError):
        simulate(main, seed=0)


async def from_a_thread(loop: SimLoop) -> None:
    """Call into the loop from another thread and raise its error here."""
    met: list[Exception] = []

    def call() -> None:
        try:
            loop.call_soon_threadsafe(print)
        except OutsideWorldError as exc:
            met.append(exc)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    raise met[0]


def test_random_values_depend_on_the_seed() -> None:
    """An entropy of one seed draws the same again, one of another seed does not."""

    def draws(seed: int) -> list[object]:
        entropy = SimEntropy(seed)
        return [entropy.random(), entropy.token(), entropy.random()]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)
