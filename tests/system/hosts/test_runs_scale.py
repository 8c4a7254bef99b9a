"""Throughput of independent runs grows with the number of hosts, and no run is executed by two."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._kernel.runtime.ids import PARTITIONS, AgentId, partition_hash
from compose.demo.desk import append_line, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext, Runtime
    from tests.system.fleet import Rows
    from tests.system.processes import Hosts

STEPS: Final = 4
STEP_S: Final = 0.05
CAPACITY: Final = 2
"""Concurrent runs of one host: so few that it is idle most of the time."""
GAIN: Final = 1.5
ROUNDS: Final = 4
"""Maximum number of attempts: a machine that stalls for a second spoils a round."""


class Sleeper:
    """Executes a few steps without CPU, each of which records time and process at its start and end."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """The payload is a ledger."""
        ledger = str(inbox[0].payload)

        async def step() -> None:
            append_line(ledger, f"+ {self.id.key} {os.getpid()} {time.monotonic()}")
            await asyncio.sleep(STEP_S)
            append_line(ledger, f"- {self.id.key} {os.getpid()} {time.monotonic()}")

        for n in range(STEPS):
            await ctx.step(f"s{n}", step)


SLEEPERS: Final[dict[str, Callable[[AgentId], Agent]]] = {"sleeper": Sleeper}
SERVES: Final = f"{__name__}:SLEEPERS"


def sleepers(round_: int) -> list[AgentId]:
    """Return three agents of each partition, so that two hosts have equal work."""
    names = (AgentId("sleeper", f"r{round_}-{n}") for n in itertools.count())
    counts: Counter[int] = Counter()
    agents: list[AgentId] = []
    for agent in names:
        partition = partition_hash(agent) % PARTITIONS
        if counts[partition] < 3:
            counts[partition] += 1
            agents.append(agent)
        if len(agents) == 3 * PARTITIONS:
            return agents
    raise AssertionError


async def throughput(client: Runtime, ledger: Path, round_: int) -> float:
    """Return how many steps ended per second while the runs of a round executed."""
    agents = sleepers(round_)
    runs = [await client.submit(agent, str(ledger), priority=9) for agent in agents]
    for run_id in runs:
        await client.result(run_id)
    times = [float(line.split()[3]) for line in lines_of(str(ledger))]
    return len(times) / 2 / (max(times) - min(times))


def problems(ledger: Path) -> list[str]:
    """Return the runs that were executed by two processes, or twice at a time by one."""
    lines = [line.split() for line in lines_of(str(ledger))]
    where: dict[str, set[str]] = {}
    inside: Counter[str] = Counter()
    wrong: list[Any] = []
    for sign, key, pid, _ in lines:
        where.setdefault(key, set()).add(pid)
        inside[key] += 1 if sign == "+" else -1
        wrong += [f"{key} is in two steps at once"] if inside[key] > 1 else []
    begun = Counter(key for sign, key, *_ in lines if sign == "+")
    return [
        *wrong,
        *(f"{key} was executed by {pids}" for key, pids in where.items() if len(pids) > 1),
        *(f"{key} did {n} steps" for key, n in begun.items() if n != STEPS),
    ]


@pytest.mark.costly
@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.item(250)
async def test_two_hosts_do_more_than_one_and_no_run_is_on_both(
    hosts: Hosts, client: Runtime, rows: Rows, tmp_path: Path
) -> None:
    """At least 1.5 times the throughput if the work is only sleeping; each step happens once."""
    first = await hosts.serving(SERVES, capacity=CAPACITY, lease_s=5)
    alone = await throughput(client, tmp_path / "alone", 1)
    second = await hosts.serving(SERVES, capacity=CAPACITY, lease_s=5)
    half = PARTITIONS // 2
    await rows.until_owned("p:sleeper:", {first.name: half, second.name: half})
    assert problems(tmp_path / "alone") == []
    together = 0.0
    for round_ in range(2, 2 + ROUNDS):
        ledger = tmp_path / f"together-{round_}"
        together = max(together, await throughput(client, ledger, round_))
        assert problems(ledger) == []
        pids = {line.split()[2] for line in lines_of(str(ledger))}
        assert pids == {str(first.pid), str(second.pid)}
        if together / alone >= GAIN:
            break

    assert together / alone >= GAIN, f"{alone:.0f} steps/s on one host, {together:.0f} on two"
