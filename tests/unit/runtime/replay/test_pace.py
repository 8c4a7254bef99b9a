"""How many branches go on between two looks at everything else."""

from __future__ import annotations

import asyncio

import pytest

from actors._runtime.replay.branch_scheduler import MOVES, Pace
from tests.harness.simloop import SimLoop, simulate


def test_behind_each_hundred_branches_come_all_others() -> None:
    """250 are let go in one instant: 100, then 100, then the rest, and each time others had their turn."""

    async def main(_: SimLoop) -> list[int]:
        pace, loop = Pace(), asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(2 * MOVES + 50)]
        for future in futures:
            pace.let(future)
        counts = [sum(future.done() for future in futures)]
        while counts[-1] < len(futures):
            await asyncio.sleep(0)
            done = sum(future.done() for future in futures)
            if done != counts[-1]:
                counts.append(done)
            assert [future.done() for future in futures] == [True] * done + [False] * (
                len(futures) - done
            )
        return counts

    assert simulate(main, seed=1)[0] == [MOVES, 2 * MOVES, 2 * MOVES + 50]


def test_who_is_held_goes_on_with_its_error_in_order() -> None:
    """An error waits for its turn as a plain go does; one who was cancelled meanwhile is left out."""

    async def main(_: SimLoop) -> None:
        pace, loop = Pace(), asyncio.get_running_loop()
        while pace.may_go():
            pass
        first, cancelled_future, last = pace.hold(), loop.create_future(), loop.create_future()
        pace.let(cancelled_future)
        pace.let(last, ValueError("no"))
        cancelled_future.cancel()
        assert not first.done()

        await first
        with pytest.raises(ValueError, match="no"):
            await last

    simulate(main, seed=1)
