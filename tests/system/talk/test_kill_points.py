"""SIGKILL before and after each write of a conversation between two hosts.

The conversation of `talking`: spawn, ask, join, reply and emit over both hosts; all messages go by
the broker. CI tests one crash in seven, `CALLBOARD_TEST_SLOW=1` all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.harness.slow import IS_SLOW
from tests.system.talking import (
    BOSS,
    FOLLOWERS,
    HERE,
    TOPIC,
    executed,
    follow_all,
    is_quiet,
    problems,
    recorded,
    until_over,
)
from tests.system.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from actors._runtime import Runtime
    from tests.system.fleet import Rows
    from tests.system.processes import HostProcess, Hosts

SIDES: Final = {"left": f"{HERE}:LEFT", "right": f"{HERE}:RIGHT"}
LEASE_S: Final = 0.8
FEWEST: Final = {
    "left": {"commit": 12, "append": 3, "publish": 2, "ingest": 2, "expand": 1},
    "right": {"commit": 8, "append": 2, "publish": 2, "ingest": 1, "expand": 1},
}
"""Writes, and messages, that come together may be one write. An append is one if no commit is in its group.

On a busy machine that is certain only for what an agent writes alone: on the left a plan, the
intent to pay and the end; on the right the first intent of the children, and the one to file.
"""
MOST: Final = {
    "left": {"commit": 20, "append": 9, "publish": 4, "ingest": 4, "expand": 1},
    "right": {"commit": 13, "append": 6, "publish": 4, "ingest": 3, "expand": 1},
}
POINTS: Final = [
    (side, point, nth, moment)
    for side, points in MOST.items()
    for point, most in points.items()
    for nth in range(1, most + 1)
    for moment in ("before", "after")
]
CERTAIN: Final = [case for case in POINTS if case[2] <= FEWEST[case[0]][case[1]]]
PAIRS: Final = [
    (f"{left_point}:{n}:{moment}", f"{right_point}:{m}:{moment}")
    for moment in ("after", "before")
    for left_point, n, right_point, m in (
        *(("commit", 3, "commit", 2), ("commit", 6, "commit", 5), ("commit", 12, "commit", 8)),
        *(("append", 2, "commit", 3), ("publish", 1, "ingest", 1), ("expand", 1, "expand", 1)),
    )
]


async def start(
    fleet: Hosts, faults: dict[str, str], suspend_after: float, lease_s: float = LEASE_S
) -> dict[str, HostProcess]:
    """Start a host for each side."""
    hosts = {
        side: fleet.start(
            SIDES[side], fault=faults.get(side, ""), lease_s=lease_s, suspend_after=suspend_after
        )
        for side in SIDES
    }
    for host in hosts.values():
        await host.until("host.serving")
    return hosts


async def bury(fleet: Hosts, doomed: dict[str, HostProcess], rows: Rows) -> set[str]:
    """Start another host for each that is killed, until all are dead or the conversation is over.

    Returns the effects recorded at the first crash.
    """
    before: set[str] = set()

    def dead() -> list[str]:
        return [side for side, host in doomed.items() if not host.is_alive]

    async def is_next() -> bool:
        return bool(dead()) or await is_quiet(rows)

    while doomed:
        await until(is_next, "death, or the end")
        if not dead():
            return before
        before = before or await recorded(rows)
        for side in dead():
            assert await doomed.pop(side).exit_code() == -9
            fleet.start(SIDES[side], lease_s=LEASE_S)
    return before


@pytest.mark.costly
@pytest.mark.item(145, 146, 172, 229, 231, 235, 244, 486)
@pytest.mark.parametrize(("side", "point", "nth", "moment"), POINTS if IS_SLOW else CERTAIN[2::5])
async def test_a_conversation_completes_after_a_crash_at_any_write(  # noqa: PLR0917 - fixtures
    fleet: Hosts,
    client: Runtime,
    rows: Rows,
    tmp_path: Path,
    side: str,
    point: str,
    nth: int,
    moment: str,
) -> None:
    """Every child is spawned once, every ask gets one reply, and no recorded effect is repeated."""
    ledger = tmp_path / "ledger"
    suspend_after = 5 * (nth % 2)
    hosts = await start(fleet, {side: f"{point}:{nth}:{moment}"}, suspend_after)
    await follow_all(client)
    run_id = await client.submit(BOSS, str(ledger))
    before = await bury(fleet, {side: hosts[side]}, rows)
    await until_over(client, rows, run_id)

    assert await problems(rows, ledger, before) == []
    if nth <= FEWEST[side][point]:  # it may come after the last row
        assert await hosts[side].exit_code() == -9


@pytest.mark.costly
@pytest.mark.item(145, 146, 172, 229, 235, 244, 486)
@pytest.mark.parametrize(("left", "right"), PAIRS if IS_SLOW else PAIRS[2::3])
async def test_a_conversation_completes_when_both_hosts_are_killed(  # noqa: PLR0917 - fixtures
    fleet: Hosts, client: Runtime, rows: Rows, tmp_path: Path, left: str, right: str
) -> None:
    """Only the rows have the state."""
    ledger = tmp_path / "ledger"
    hosts = await start(fleet, {"left": left, "right": right}, 0)
    await follow_all(client)
    run_id = await client.submit(BOSS, str(ledger))
    before = await bury(fleet, dict(hosts), rows)
    await until_over(client, rows, run_id)

    assert await problems(rows, ledger, before) == []
    assert [await host.exit_code() for host in hosts.values()] == [-9, -9]


@pytest.mark.costly
async def test_the_kill_points_of_conversations_are_complete(
    fleet: Hosts, client: Runtime, rows: Rows, tmp_path: Path
) -> None:
    """An undisturbed conversation has no more writes than were tested, and each step happens once."""
    ledger = tmp_path / "ledger"
    faults = {
        side: ",".join(f"{point}:{most + 1}:before" for point, most in points.items())
        for side, points in MOST.items()
    }
    hosts = await start(fleet, faults, 0, lease_s=10)
    await follow_all(client)
    run_id = await client.submit(BOSS, str(ledger))
    await until_over(client, rows, run_id)

    assert await problems(rows, ledger, {line.effect for line in executed(ledger)}) == []
    assert all(host.is_alive for host in hosts.values())


@pytest.mark.item(94, 486)
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_process_killed_while_publishing_repeats_without_duplicates(
    fleet: Hosts, client: Runtime, rows: Rows, moment: str
) -> None:
    """The same post comes from the next process: each follower gets it once."""
    await follow_all(client)
    doomed = fleet.start(
        SIDES["left"], f"{HERE}:announce", fault=f"post:1:{moment}", lease_s=LEASE_S
    )
    assert await doomed.exit_code() == -9
    for serves in ((SIDES["left"], f"{HERE}:announce"), (SIDES["right"],)):
        await fleet.serving(*serves, lease_s=LEASE_S)

    for follower in FOLLOWERS:
        assert await rows.until_seen(follower, 1) == [(f"topic:{TOPIC}", 0)]
    assert await rows.count("posts") == 1
