"""Which runs a dead host may have been executing, and which suspect executes next."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import WakeSet
from actors._runtime.execution.suspects import MAX_DEATHS, Legacy, Standing, SuspectLane
from actors._runtime.replay.history import History

AT = datetime(2030, 1, 1, tzinfo=UTC)
LATER = AT + timedelta(seconds=1)
AGENT = AgentId("desk", "a")
QUEUED = RunRow(RunId("r"), AGENT, RunStatus.PENDING, arrival=7)
BEGUN = replace(QUEUED, last_seq=3)
ASLEEP = replace(BEGUN, status=RunStatus.SUSPENDED)
RECEIVING = replace(ASLEEP, wake=WakeSet(message=True))


@pytest.mark.parametrize(
    ("run", "arrival", "has_mail", "may_have"),
    [
        (QUEUED, 8, False, True),
        (QUEUED, 7, False, False),
        (replace(BEGUN, wake_at=AT), 1, False, True),
        (replace(BEGUN, wake_at=LATER), 1, False, False),
        (replace(ASLEEP, wake_at=AT), 1, False, True),
        (replace(ASLEEP, wake_at=LATER), 1, False, False),
        (RECEIVING, 1, True, True),
        (RECEIVING, 1, False, False),
        (ASLEEP, 1, True, False),
    ],
)
def test_a_dead_host_may_have_executed_what_it_could_begin(
    run: RunRow, arrival: int, has_mail: bool, may_have: bool
) -> None:
    """What came before the take-over and was due then."""
    legacy = Legacy(arrival, AT)

    assert legacy.may_have_begun(run, was_running=False, has_mail=has_mail) is may_have


def test_a_run_found_running_or_with_something_to_do_may_have_been_executing() -> None:
    """Its agent counts once only: it is serial, and what it executed since is known."""
    legacy = Legacy(1, AT, awake={AGENT})
    assert legacy.may_have_begun(BEGUN, was_running=True, has_mail=False)
    assert legacy.may_have_begun(ASLEEP, was_running=False, has_mail=False)
    legacy.settled.add(AGENT)

    assert not legacy.may_have_begun(BEGUN, was_running=True, has_mail=False)
    assert not legacy.may_have_begun(ASLEEP, was_running=False, has_mail=False)


def standing(
    *, deaths: int = 0, turns: int = 0, was_running: bool = False, broken: bool = False
) -> Standing:
    """Return the standing of a run whose log has so many deaths and turns that were outlived."""
    new_standing = Standing(was_running=was_running, broken=broken)
    new_standing.read(History(deaths=deaths, turns=turns, has_outlived=turns > 0))
    return new_standing


def test_a_mark_says_whether_the_host_before_died() -> None:
    """A host that gave the shard up in order did not."""
    assert standing(broken=True).mark == {"reason": "recovered"}
    assert standing(was_running=True).mark == {"reason": "recovered", "died": False}
    assert standing().mark is None


def test_a_run_is_a_suspect_from_the_second_death_to_the_last_but_one() -> None:
    """The fifth parks it, if it was found broken off."""
    all_of_them = [standing(deaths=n, broken=True) for n in range(6)]

    assert [s.deaths for s in all_of_them if s.is_suspect] == [2, 3, 4]
    assert [s.deaths for s in all_of_them if s.verdict is not None] == [MAX_DEATHS, 6]
    assert standing(deaths=MAX_DEATHS).verdict is None


def test_a_death_behind_a_turn_that_was_outlived_is_not_counted() -> None:
    """The run did not execute as the only suspect any more. Its next turn is twice as long."""
    before, after = standing(deaths=2, broken=True), standing(deaths=2, turns=1, broken=True)

    assert (before.deaths, after.deaths, after.turn_s) == (3, 2, 2 * before.turn_s)
    assert after.mark == {"reason": "recovered", "died": False}


class Hall:
    """Items that a lane wakes, and which of them are coming."""

    def __init__(self) -> None:
        self.woken: list[str] = []
        self.away: set[str] = set()
        self.lane = SuspectLane(self.woken.append, lambda item: item not in self.away)

    def admits(self, item: str, deaths: int, *, turns: int = 0) -> bool:
        """Return whether a suspect may execute now."""
        return self.lane.admits(item, standing(deaths=deaths, turns=turns))

    async def has_woken(self, *items: str) -> None:
        """Return when the lane has woken these."""
        async with asyncio.timeout(10):
            while self.woken != [*items]:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0)


@pytest.fixture
def hall(monkeypatch: pytest.MonkeyPatch) -> Hall:
    """An empty lane, which chooses at once."""
    monkeypatch.setattr("actors._runtime.execution.suspects.CHOOSE_S", 0.0)
    return Hall()


async def test_one_suspect_executes_at_a_time_the_one_with_the_fewest_deaths_first(
    hall: Hall,
) -> None:
    """The next one begins when the first makes progress or is over."""
    assert not hall.admits("e", 2, turns=1)
    assert not any(hall.admits(item, deaths) for item, deaths in [("a", 4), ("b", 2), ("c", 2)])
    await hall.has_woken("b")
    assert hall.admits("b", 2)
    assert not hall.admits("d", 3)
    for item in ("a", "b", "b", "c", "d", "a"):
        hall.lane.leave(item)

    assert hall.woken == ["b", "c", "d", "a", "e"]


async def test_a_suspect_that_does_not_come_holds_up_no_other(hall: Hall) -> None:
    """It was cancelled, or lost with its shard, before or after it was woken."""
    for item in ("a", "b", "c"):
        hall.admits(item, 2)
    hall.away.add("a")
    await hall.has_woken("a", "b")
    hall.away.add("b")

    await hall.has_woken("a", "b", "c")
