"""SIGKILL before and after each publish and each ingest of a conversation between two hosts.

Left sends twice to right, right twice to left, left twice to right. Each agent is on a host of its
own, and all six messages go by the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.system.fleet import HERE, LEFT, RIGHT, volley
from tests.system.moments import with_moments
from tests.system.waiting import until

if TYPE_CHECKING:
    from actors._runtime import Runtime
    from tests.system.fleet import Rows
    from tests.system.processes import HostProcess, Hosts

PLACES: Final = {"left": f"{HERE}:LEFT_NODE", "right": f"{HERE}:RIGHT_NODE"}
ORDER: Final = {"n": 0, "then": volley(RIGHT, LEFT, RIGHT)}
AT_LEFT: Final = [("submit:local", 0), ("agent:right/a", 0), ("agent:right/a", 1)]
AT_RIGHT: Final = [("agent:left/a", n) for n in range(4)]
LEASE_S: Final = 0.8
FEWEST: Final = {
    ("left", "publish"): 4,
    ("right", "publish"): 2,
    ("left", "ingest"): 1,
    ("right", "ingest"): 2,
}
"""Two messages that arrive together may be one ingest."""
MOST: Final = {**FEWEST, ("left", "ingest"): 2, ("right", "ingest"): 4}
POINTS: Final = [(*point, n) for point, most in MOST.items() for n in range(1, most + 1)]


async def is_over(rows: Rows) -> bool:
    """Return whether every message was handled."""
    return len(await rows.seen(LEFT)) >= len(AT_LEFT) and len(await rows.seen(RIGHT)) >= len(
        AT_RIGHT
    )


async def start(
    fleet: Hosts, faults: dict[str, str], lease_s: float = LEASE_S
) -> dict[str, HostProcess]:
    """Start a host for each agent."""
    hosts = {
        name: fleet.start(PLACES[name], fault=faults.get(name, ""), lease_s=lease_s)
        for name in PLACES
    }
    for host in hosts.values():
        await host.until("host.serving")
    return hosts


async def holds(rows: Rows) -> None:
    """Check that each message was handled once, in order, and that none is in flight."""
    await until(lambda: is_over(rows), "the end of the conversation")
    assert await rows.seen(LEFT) == AT_LEFT
    assert await rows.seen(RIGHT) == AT_RIGHT
    assert await rows.count("outbox") == 0
    assert await rows.count("inbox") == len(AT_LEFT) + len(AT_RIGHT)
    assert await rows.count("dead_letters") == 0


@pytest.mark.item(24, 172, 481, 486)
@pytest.mark.parametrize(("side", "point", "nth", "moment"), with_moments(POINTS))
async def test_messages_are_handled_once_and_in_order_after_any_crash(  # noqa: PLR0917 - fixtures
    fleet: Hosts, client: Runtime, rows: Rows, side: str, point: str, nth: int, moment: str
) -> None:
    """Another host takes over the dead one's agent, publishes its outbox, reads its inbox."""
    doomed = (await start(fleet, {side: f"{point}:{nth}:{moment}"}))[side]
    await client.submit(LEFT, ORDER)
    if nth <= FEWEST[side, point]:
        assert await doomed.exit_code() == -9

    async def is_dead_or_over() -> bool:
        return not doomed.is_alive or await is_over(rows)

    await until(is_dead_or_over, "death, or the end")
    if not doomed.is_alive:
        await fleet.serving(PLACES[side], lease_s=LEASE_S)
    await holds(rows)


async def test_the_kill_points_of_messages_are_complete(
    fleet: Hosts, client: Runtime, rows: Rows
) -> None:
    """An undisturbed conversation has no more publishes and ingests than were tested."""
    faults = {
        side: ",".join(f"{p}:{MOST[side, p] + 1}:before" for p in ("publish", "ingest"))
        for side in PLACES
    }
    hosts = await start(fleet, faults, lease_s=10)
    await client.submit(LEFT, ORDER)
    await holds(rows)

    assert all(host.is_alive for host in hosts.values())


@pytest.mark.item(484)
@pytest.mark.parametrize("point", ["publish", "ingest", "commit"])
async def test_a_host_frozen_in_a_call_changes_nothing_afterwards(
    fleet: Hosts, client: Runtime, rows: Rows, point: str
) -> None:
    """Its agents were taken over; its pending calls have no effect when it continues."""
    frozen = await fleet.serving(
        f"{HERE}:BOTH", fault=f"{point}:2:freeze", lease_s=2, heartbeat_s=0.25
    )
    other = fleet.start(f"{HERE}:BOTH")
    await other.until("host.serving")
    await client.submit(LEFT, ORDER)
    await frozen.until_frozen()
    await holds(rows)
    frozen.thaw()
    await frozen.until_lost()
    await client.submit(LEFT, {"n": 1, "then": volley(RIGHT)})
    await rows.until_seen(RIGHT, len(AT_RIGHT) + 2)

    assert await rows.seen(LEFT) == [*AT_LEFT, ("submit:local", 1)]
    assert await rows.seen(RIGHT) == [("agent:left/a", n) for n in range(6)]
    assert frozen.is_alive
    assert other.is_alive
