"""A tree of three levels on two hosts is cancelled while it grows, executes and ends, and a host crashes.

Branches have leaves that execute, are suspended, are queued, or end by themselves, and continue to
spawn until they are cancelled.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._kernel.agent.agent import SpawnBudget
from actors._kernel.runtime.ids import AgentId, RunId
from actors._runtime.verbs.run_context import RunContext
from tests.harness.slow import IS_SLOW
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.sources import RunResult
    from actors._runtime import Runtime
    from tests.system.fleet import Rows
    from tests.system.processes import HostProcess, Hosts

LEASE_S: Final = 0.8
CHIEF: Final = AgentId("chief", "a")
JOINER: Final = AgentId("joiner", "a")
REASON: Final = "enough"
LEAVES: Final = ("executes", "waits", "sleeps", "receives", "ends")
BORN: Final = 4
"""Number of further leaves that each branch spawns, one at a time."""
GROWN: Final = 31
STATES: Final = {"RUNNING", "SUSPENDED", "PENDING", "COMPLETED"}


class Chief:
    """Spawns the tree, cancels it on a signal, and returns its outcome."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> list[Any]:
        """Execute; the payload is ignored."""
        del inbox
        root = await ctx.spawn("branchr", "root", key="root")
        await ctx.sleep_until_signal("stop")
        await ctx.cancel(root, reason=REASON)
        return json_of(await ctx.join(root))


def json_of(result: RunResult) -> list[Any]:
    """Return a run's outcome as JSON data."""
    return [result.status.value, result.error]


class Joiner:
    """Joins a run that is not its child."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> list[Any]:
        """Join the run in the payload."""
        return json_of(await ctx.join(str(inbox[0].payload)))


class Branch:
    """Acts by its payload: the root has four branches, each of which has leaves on both hosts."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> int:
        """Return how many children have ended, once all have."""
        if inbox[0].payload == "root":
            below = ["grows", "grows", "waits", "ends"]
            sides = itertools.cycle(("branchl", "branchr"))
            handles = [
                await ctx.spawn(side, kind) for side, kind in zip(sides, below, strict=False)
            ]
        elif inbox[0].payload == "ends":
            handles = [await ctx.spawn(side, "ends") for side in ("leafl", "leafr")]
        else:
            kinds = zip(itertools.cycle(("leafl", "leafr")), LEAVES, strict=False)
            handles = [await ctx.spawn(side, kind) for side, kind in kinds]
            # Two branches have leaves of one agent: one of them occupies it, the other is queued.
            handles.append(await ctx.spawn("leafl", "waits", key="shared"))
            for _ in range(BORN if inbox[0].payload == "grows" else 0):
                await ctx.sleep(0.03)
                handles.append(await ctx.spawn("leafr", "waits"))
        return len(await ctx.gather(*handles))


class Leaf:
    """Acts by its payload until it is cancelled."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Return only if the payload asks for it."""
        kind = inbox[0].payload
        while kind == "executes":
            await ctx.step("tick", asyncio.sleep, 0.05)
        if kind == "waits":
            await ctx.sleep_until_signal("never")
        if kind == "sleeps":
            await ctx.sleep(600)
        if kind == "receives":
            await ctx.receive()
        return await ctx.step("end", str, "ended")


LEFT: Final[dict[str, Callable[[AgentId], Agent]]] = {
    "chief": Chief,
    "branchl": Branch,
    "leafl": Leaf,
}
RIGHT: Final[dict[str, Callable[[AgentId], Agent]]] = {
    "joiner": Joiner,
    "branchr": Branch,
    "leafr": Leaf,
}
SIDES: Final = {"left": f"{__name__}:LEFT", "right": f"{__name__}:RIGHT"}


async def root_of(rows: Rows, count: int) -> RunId:
    """Return the tree's first run once the tree has this many runs; if all of them, in every state."""

    async def is_grown() -> bool:
        spawned = "select status, count(*) as n from runs where parent is not null group by status"
        counts = {row["status"]: row["n"] for row in await rows.connection.fetch(spawned)}
        return sum(counts.values()) >= count and (count < GROWN or counts.keys() >= STATES)

    await until(is_grown, f"{count} runs")
    run_id = await rows.connection.fetchval("select run_id from runs where agent = 'branchr/root'")
    return RunId(run_id)


async def until_still(rows: Rows) -> None:
    """Return once no run is open."""

    async def is_still() -> bool:
        return not await rows.connection.fetchval(
            "select exists (select from runs where ended_at is null)"
        )

    await until(is_still, "every run's end", limit_s=60)


async def problems(rows: Rows, root: RunId) -> list[str]:
    """Return the runs of the tree with two ends, a wrong end, no reason, or leftovers."""
    ended_runs = await rows.connection.fetch("""
        select r.run_id, r.agent, r.status, max(m.payload #>> '{message,payload}') as kind,
            count(e.seq) as ends, min(e.kind) as ended, min(e.payload ->> 'reason') as reason
          from runs r
          left join event_log e on e.run_id = r.run_id
            and e.kind in ('run.completed', 'run.failed', 'run.cancelled')
          left join event_log m on m.run_id = r.run_id and m.kind = 'msg.received'
            and m.payload #>> '{message,sender}' like 'spawn:%'
          where r.parent is not null
          group by r.run_id, r.agent, r.status""")
    names = {row["run_id"] for row in ended_runs}
    spawn_records = await rows.connection.fetch(
        "select payload ->> 'child' as child from event_log where kind = 'child.spawned'"
    )
    wrong = [
        f"{row['agent']}: {problem}" for row in ended_runs for problem in _wrong(dict(row), root)
    ]
    if sorted(row["child"] for row in spawn_records) != sorted(names):
        wrong.append("who was spawned is not who was born")
    for table, where in (("waits", "true"), ("inbox", "state <> 'd'"), ("outbox", "true")):
        row_count = await rows.connection.fetchval(f"select count(*) from {table} where {where}")
        wrong += [f"{row_count} rows of {table}"] if row_count else []
    return wrong


def _wrong(row: dict[str, Any], root: RunId) -> list[str]:
    ends = {"COMPLETED": "run.completed", "CANCELLED": "run.cancelled"}
    may_complete = row["kind"] == "ends" and row["run_id"] != root
    checks = {
        f"ended {row['ends']} times": row["ends"] == 1,
        f"is {row['status']} by {row['ended']}": ends.get(row["status"]) == row["ended"],
        f"{row['kind']} is {row['status']}": row["status"] == "CANCELLED" or may_complete,
        f"was cancelled for {row['reason']}": row["reason"] == REASON
        or row["status"] == "COMPLETED",
    }
    return [problem for problem, is_fine in checks.items() if not is_fine]


async def start(fleet: Hosts, sides: Iterable[str]) -> dict[str, HostProcess]:
    """Start a host for each of these sides."""
    hosts = {side: fleet.start(SIDES[side], lease_s=LEASE_S, suspend_after=0.05) for side in sides}
    for host in hosts.values():
        await host.until("host.serving")
    return hosts


CASES: Final = [
    (count, victims, by)
    for count in (range(1, 33, 2) if IS_SLOW else (1, 7, 19, GROWN))
    for victims in ("", "left", "right", "left right")
    for by in ("client", "run")
]


@pytest.mark.costly
@pytest.mark.timeout(120)
@pytest.mark.item(84, 145, 231, 239, 247, 486)
@pytest.mark.parametrize(("count", "victims", "by"), CASES if IS_SLOW else CASES[1::5])
async def test_no_run_of_a_cancelled_tree_is_left_open_after_any_crash(  # noqa: PLR0917 - fixtures
    fleet: Hosts, client: Runtime, rows: Rows, count: int, victims: str, by: str
) -> None:
    """Each run ends once, by the cancel or before it. A join gets the outcome."""
    hosts = await start(fleet, SIDES)
    budget = SpawnBudget(max_runs=1000)
    chief = await client.submit(CHIEF, "go", spawn_budget=budget)
    root = await root_of(rows, count)
    joiner = await client.submit(JOINER, root)
    async with asyncio.TaskGroup() as tasks:
        if by == "client":
            tasks.create_task(client.cancel(root, reason=REASON))
        tasks.create_task(client.signal(chief, "stop"))
        for side in victims.split():
            tasks.create_task(asyncio.to_thread(hosts[side].send, signal.SIGKILL))
    for side in victims.split():
        assert await hosts[side].exit_code() == -9
    await start(fleet, victims.split())
    await until_still(rows)

    assert await problems(rows, root) == []
    for run_id in (chief, joiner):
        result: Any = await client.result(run_id)
        status, error = result
        assert (status, REASON in json.dumps(error)) == ("CANCELLED", True)
