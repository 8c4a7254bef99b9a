"""Timers on a clock that steps, in virtual time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from actors._kernel.runtime.ids import AgentId
from actors._runtime.loop.timers import MAX_ARM_S, Alarm, Timers
from tests.harness.simloop import SimClock, SimLoop, simulate

if TYPE_CHECKING:
    from datetime import datetime

A, B = AgentId("t", "a"), AgentId("t", "b")


class Stepping(SimClock):
    """Virtual time, and so much more."""

    ahead_s = 0.0

    @override
    def now(self) -> datetime:
        """Return the virtual instant as a wrong clock shows it."""
        return super().now() + timedelta(seconds=self.ahead_s)


@pytest.mark.parametrize("step_s", [-3600.0, -86_400.0])
def test_a_clock_that_was_wrong_for_half_a_second_silences_no_timer(step_s: float) -> None:
    """What is looked at while it is wrong is looked at again soon."""

    async def main(loop: SimLoop) -> dict[AgentId, float]:
        clock, rung = Stepping(loop), dict[AgentId, float]()
        timers = Timers(clock, lambda agent: rung.update({agent: loop.time()}))
        timers.add(clock.now() + timedelta(seconds=1), A)
        timers.add(clock.now() + timedelta(seconds=2), B)
        await asyncio.sleep(0.75)
        clock.ahead_s = step_s
        await asyncio.sleep(0.5)
        clock.ahead_s = 0.0
        await asyncio.sleep(4 * MAX_ARM_S)
        return rung

    rung, _ = simulate(main, seed=1)
    assert all(at < 2 + MAX_ARM_S for at in rung.values())
    assert set(rung) == {A, B}


@pytest.mark.parametrize("ahead_s", [3600.0, 20.0, 0.0, -20.0])
def test_an_alarm_rings_once_when_the_clock_has_come_there(ahead_s: float) -> None:
    """Never before by the clock as it is then, and soon after, however it was set."""

    async def main(loop: SimLoop) -> list[float]:
        clock, rung = Stepping(loop), list[float]()
        at = clock.now() + timedelta(seconds=30)
        Alarm(clock, at, lambda: rung.append((clock.now() - at).total_seconds()))
        await asyncio.sleep(10)
        clock.ahead_s = ahead_s
        await asyncio.sleep(100)
        return rung

    [late_s], _ = simulate(main, seed=1)
    assert 0 <= late_s < max(ahead_s, 0) + MAX_ARM_S


def test_an_alarm_that_was_cancelled_does_not_ring() -> None:
    """Neither the first timer of the loop nor a later one calls anybody."""

    async def main(loop: SimLoop) -> list[float]:
        clock, rung = Stepping(loop), list[float]()
        alarm = Alarm(clock, clock.now() + timedelta(seconds=30), lambda: rung.append(1))
        await asyncio.sleep(12)
        alarm.cancel()
        await asyncio.sleep(100)
        return rung

    assert simulate(main, seed=1)[0] == []
