"""The contract of every `SignalBus`."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.commit import SignalKey
from actors._kernel.runtime.waits import WakeSet
from actors._runtime.parts import InMemorySignalBus
from actors._runtime.parts.signal_bus import TIMER_SIGNAL
from tests.conformance.bed import Turns, result
from tests.conformance.clock import ManualClock

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.ids import RunId
    from actors._kernel.runtime.waits import SignalBus
    from tests.conformance.source import Source


class Waiter:
    """A run that takes signals one after the other."""

    def __init__(self, source: Source, bus: SignalBus, run: RunId, turns: Turns | None) -> None:
        self.source, self.bus, self.run_id, self.turns = source, bus, run, turns
        self.taken = 0

    async def take(self, name: str) -> JsonValue:
        """Return the payload of the next signal of this name, or None."""
        if isinstance(self.bus, InMemorySignalBus):
            try:
                return await self.bus.wait_for_signal(self.run_id, name, timeout=0)
            except TimeoutError:
                return None
        assert self.turns is not None
        for signal in await self.turns.bed.store.reads.signals(self.run_id):
            if signal.name == name:
                key = SignalKey(name, signal.n)
                self.taken += 1
                await self.turns.commit(
                    self.turns.turn(result(str(self.taken)), take_signals=(key,))
                )
                return signal.payload
        return None


async def waiter(source: Source, bus: SignalBus) -> Waiter:
    """Return a new run."""
    run_id = await source.new_run()
    turns = None if source.bed is None else await source.turns_of(run_id)
    return Waiter(source, bus, run_id, turns)


@pytest.mark.item(132, 148, 226)
async def test_signals_that_came_first_are_taken_in_order_once(source: Source) -> None:
    """Two of one name are two signals. After that there is none."""
    bus = source.signal_bus()
    run = await waiter(source, bus)

    await bus.signal(run.run_id, "go", {"n": 1})
    await bus.signal(run.run_id, "go", {"n": 2})

    assert [await run.take("go") for _ in range(3)] == [{"n": 1}, {"n": 2}, None]


@pytest.mark.item(131)
async def test_signals_of_other_runs_and_names_do_not_mix(source: Source) -> None:
    """Each run and name has its own queue."""
    bus = source.signal_bus()
    first, second = await waiter(source, bus), await waiter(source, bus)

    await bus.signal(first.run_id, "a", {"for": "first a"})
    await bus.signal(first.run_id, "b", {"for": "first b"})
    await bus.signal(second.run_id, "a", {"for": "second a"})

    assert await second.take("b") is None
    assert await second.take("a") == {"for": "second a"}
    assert await first.take("b") == {"for": "first b"}
    assert await first.take("a") == {"for": "first a"}


@pytest.mark.item(226)
async def test_a_signal_wakes_a_run_that_is_not_in_memory(source: Source) -> None:
    """The hook that loads runs gets its id."""
    woken: list[RunId] = []
    bus = source.signal_bus(wake=woken.append)
    run = await waiter(source, bus)

    await bus.signal(run.run_id, "go", {})

    assert woken == [run.run_id]


@pytest.mark.item(133, 227)
async def test_a_timer_in_the_past_fires_at_once(source: Source) -> None:
    """The suspended run is woken without waiting."""
    woken: list[RunId] = []
    bus = source.signal_bus(wake=woken.append)
    run = await waiter(source, bus)
    if run.turns is not None:
        await run.turns.suspend(WakeSet(signals=("go",)))

    await bus.timer(run.run_id, source.clock.now() - timedelta(seconds=5))

    assert woken == [run.run_id]


@pytest.mark.item(133, 227)
async def test_a_timer_fires_when_its_time_has_come(source: Source) -> None:
    """Not before its time. An earlier timer of the same run fires first."""
    bus = source.signal_bus()
    run = await waiter(source, bus)
    if run.turns is not None:
        await run.turns.suspend(WakeSet(signals=("go",)))
    now = source.clock.now()

    await bus.timer(run.run_id, now + timedelta(seconds=3600))
    await bus.timer(run.run_id, now + timedelta(seconds=1800))

    if isinstance(bus, InMemorySignalBus):
        assert bus.fire_due() == []
        source.advance(1800)
        assert bus.fire_due() == [run.run_id]
        assert await run.take(TIMER_SIGNAL) is not None
        bus.forget(run.run_id)
        return
    assert source.bed is not None
    store, shards = source.bed.store, source.bed.shards
    assert await store.backlog.due(shards, within_s=1700) == []
    (timer,) = await store.backlog.due(shards, within_s=1900)
    assert timer.run_id == run.run_id


@pytest.fixture
def bus() -> InMemorySignalBus:
    """Return a bus on a stopped clock."""
    return InMemorySignalBus(clock=ManualClock())


RUN: RunId = "r" * 32  # type: ignore[assignment]


@pytest.mark.item(106, 132)
async def test_a_waiting_run_gets_the_next_signal(bus: InMemorySignalBus) -> None:
    """In the order in which they wait; no other run is woken."""
    waiting = [asyncio.create_task(bus.wait_for_signal(RUN, "go")) for _ in range(2)]
    await asyncio.sleep(0)

    await bus.signal(RUN, "go", {"n": 1})
    await bus.signal(RUN, "go", {"n": 2})

    assert await asyncio.gather(*waiting) == [{"n": 1}, {"n": 2}]


@pytest.mark.item(134)
async def test_a_wait_that_runs_out_of_time_leaves_nothing_behind(bus: InMemorySignalBus) -> None:
    """The next signal is for the next wait."""
    with pytest.raises(TimeoutError):
        await bus.wait_for_signal(RUN, "go", timeout=0.001)

    await bus.signal(RUN, "go", {"n": 1})

    assert await bus.wait_for_signal(RUN, "go") == {"n": 1}


async def test_a_wait_cancelled_as_its_signal_comes_does_not_swallow_it(
    bus: InMemorySignalBus,
) -> None:
    """The next wait gets the signal, before later ones."""
    waiting = asyncio.create_task(bus.wait_for_signal(RUN, "go"))
    await asyncio.sleep(0)
    await bus.signal(RUN, "go", {"n": 1})
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await bus.signal(RUN, "go", {"n": 2})

    assert await bus.wait_for_signal(RUN, "go") == {"n": 1}
    assert await bus.wait_for_signal(RUN, "go") == {"n": 2}


@pytest.mark.item(227)
async def test_the_timers_of_an_ended_run_are_dropped(bus: InMemorySignalBus) -> None:
    """Its signals that were not taken are dropped, too."""
    await bus.timer(RUN, ManualClock().now() + timedelta(seconds=5))
    await bus.signal(RUN, "go", {"n": 1})

    bus.forget(RUN)

    with pytest.raises(TimeoutError):
        await bus.wait_for_signal(RUN, "go", timeout=0)
    assert bus.fire_due() == []
