"""Random graphs as runs of agents end as the model predicts, on every backend, with crashes of hosts.

`CALLBOARD_GRAPHS=1000 CALLBOARD_SEED=7` runs more, other programs.
"""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest

from actors._kernel.stores.runs import RunFilter
from actors._workflow.hosted import graph_run
from actors._workflow.hosted.flows import Flows
from tests.behaviour.test_conversation_deaths import is_a_runs
from tests.harness.faulty_store import Faults, Manner
from tests.harness.slow import IS_SLOW
from tests.model.leftovers import leftovers
from tests.properties.flows import FlowPlay, flows_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.behaviour.bed import Bed

GATE, SERVER, MEMORY = 100, 300, 5000
"""Programs for each backend and way of suspension: in the gate; if IS_SLOW, on servers and in memory."""
SEED: Final = int(os.environ.get("CALLBOARD_SEED", "0")) * 100_000
AT_ONCE: Final = 25
DEATHS: Final = 2
"""Seconds between crashes of hosts while a group of programs runs."""


@asynccontextmanager
async def dying(bed: Bed, seed: int, flows: Flows) -> AsyncIterator[None]:
    """Let hosts crash at writes of runs, and let others take over at once."""
    rng, died = random.Random(seed), asyncio.Event()
    first, *also = sorted(rng.sample(range(5, 400), DEATHS))
    faults = Faults(
        nth=first, also=tuple(also), manner=rng.choice([Manner.DIE_BEFORE, Manner.DIE_AFTER])
    )
    faults.wanted = is_a_runs
    opened = bed.open_store
    bed.go_wrong(faults, died.set)
    await bed.restart()
    await flows.register(bed.runtime)

    taking_over = asyncio.Lock()

    async def take_over() -> None:
        while True:
            await died.wait()
            async with taking_over:
                died.clear()
                await bed.restart()
                await flows.register(bed.runtime)

    task = asyncio.ensure_future(take_over())
    try:
        yield
    finally:
        faults.nth, faults.also = None, ()
        async with taking_over:  # the next group needs a host
            task.cancel()
        await asyncio.wait({task})
        bed.open_store = opened
        if died.is_set():
            await bed.restart()


def count_on(bed: Bed) -> int:
    """Return how many programs are played on a backend."""
    slow = MEMORY if bed.backend == "memory" else SERVER
    return int(os.environ.get("CALLBOARD_GRAPHS") or (slow if IS_SLOW else GATE))


async def play_all(bed: Bed, first: int, count: int) -> None:
    """Run programs, a group at a time; in every second group hosts crash."""
    wrong: list[str] = []
    timers_s, look_s = (500.0, 25.0) if bed.backend == "memory" else (0.05, 0.01)
    for begin in range(first, first + count, AT_ONCE):
        seeds = range(begin, min(begin + AT_ONCE, first + count))
        deaths = DEATHS if begin // AT_ONCE % 2 else 0
        plays = [FlowPlay(seed, timers_s, look_s, deaths) for seed in seeds]
        app = bed.name().type
        flows = flows_of(app, plays)
        await flows.register(bed.runtime)
        async with bed.client() as client:
            if deaths:
                async with dying(bed, begin, flows):
                    problem_lists = await asyncio.gather(
                        *(play.play(client, app) for play in plays)
                    )
            else:
                problem_lists = await asyncio.gather(*(play.play(client, app) for play in plays))
        pairs = zip(plays, problem_lists, strict=True)
        wrong += [
            f"seed {play.seed}: {problem}" for play, problems in pairs for problem in problems
        ]
        runs = await bed.runtime.store.lists.runs(among=RunFilter(type=app), limit=10_000)
        wrong += await leftovers(bed.runtime, bed.runtime.store, runs)
    assert not wrong, f"{len(wrong)} differ\n" + "\n".join(wrong[:3])


@pytest.mark.costly
@pytest.mark.slow
@pytest.mark.item(391, 392, 401, 410, 421, 437, 441, 442, 443, 480)
@pytest.mark.timeout(3600)
async def test_graphs_of_agents_end_as_the_model_predicts(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs, the order of records in each branch, executions, children, and the receivers of events.

    One half of the programs continues as new after every few decisions.
    """
    first, half = SEED + 10_000 * bed.drops, count_on(bed) // 2
    await play_all(bed, first, half)
    monkeypatch.setattr(graph_run, "ENTRIES_KEPT", 3)
    await play_all(bed, first + 5_000, half)


@pytest.mark.costly
@pytest.mark.slow
@pytest.mark.nats
@pytest.mark.item(391, 392, 401, 410, 421, 437, 441, 442, 443, 480)
@pytest.mark.timeout(3600)
async def test_graphs_of_agents_with_a_broker_end_as_the_model_predicts(bed: Bed) -> None:
    """The same, with sub-graphs started over NATS."""
    await play_all(bed, SEED + 20_000 + 10_000 * bed.drops, count_on(bed))
