"""Random programs of clients and readers of sessions on real servers, with crashes of their host.

Many run at a time. In memory: `tests/properties/test_session_programs.py`.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from tests.harness.faulty_store import Faults
from tests.harness.slow import IS_SLOW
from tests.model.dialogue_play import Play
from tests.model.dialogue_program import Dialogues, dialogues
from tests.model.dialogue_stage import Stage
from tests.properties.test_programs import DEATHS
from tests.properties.test_session_deaths import DYING, READERS, THEN

if TYPE_CHECKING:
    from tests.behaviour.bed import Bed

COUNT: Final = int(os.environ.get("CALLBOARD_DIALOGUES", "2500" if IS_SLOW else "16"))
AT_ONCE: Final = 16
CRASHES: Final = 2
"""Maximum number of crashes of a group's host: each program waits for all others."""
SAMPLE: Final = [*DYING] if IS_SLOW else ["start", "cancel", "delete"]
HOT_S: Final = 1e6
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if IS_SLOW else 120)]


@pytest.fixture(autouse=True)
async def on_a_server(bed: Bed) -> None:
    """Memory tests run elsewhere. Runs stay in memory for good, or not at all."""
    if bed.backend == "memory":
        pytest.skip("in virtual time, with other programs")
    if not bed.drops:
        bed.suspend_after = HOT_S
        await bed.restart()


def calm(program: Dialogues) -> Dialogues:
    """Return a program without excess crashes, and without cuts, which need a small limit."""
    crashes = [n for n, act in enumerate(program.acts) if act.what == "crash"]
    acts = [act for n, act in enumerate(program.acts) if n not in crashes[CRASHES:]]
    return replace(program, acts=tuple(acts), is_plain=False)


async def play_all(bed: Bed, first: int) -> None:
    """Run programs from this seed on, a group at a time."""
    first += 5_000 * bed.drops
    for begin in range(first, first + COUNT, AT_ONCE):
        seeds = range(begin, min(begin + AT_ONCE, first + COUNT))
        stage = Stage(bed, bed.name().type, parties=len(seeds))
        await stage.open()
        try:
            plays = [Play(calm(dialogues(n, most=16)), stage, f"d{n}.") for n in seeds]
            problems = await asyncio.gather(*(play.play() for play in plays))
        finally:
            await stage.close()
        wrong = [
            f"program {n}: {problem}" for n, problem in zip(seeds, problems, strict=True) if problem
        ]
        assert not wrong, "\n".join(wrong)


@pytest.mark.costly
@pytest.mark.item(352, 365, 366, 368, 374, 375, 376, 377, 379, 381, 385)
async def test_sessions_behave_as_the_model_predicts(bed: Bed) -> None:
    """Outcomes, statuses, order, nodes, heads, windows, and the events of each reader."""
    await play_all(bed, 10_000)


@pytest.mark.costly
@pytest.mark.nats
@pytest.mark.item(352, 365, 366, 368, 374, 375, 376, 377, 379, 381, 385)
async def test_sessions_with_a_broker_behave_as_the_model_predicts(bed: Bed) -> None:
    """The same, with messages of agents over NATS."""
    await play_all(bed, 20_000)


@pytest.mark.item(352, 366, 375, 385)
@pytest.mark.parametrize("name", SAMPLE)
async def test_sessions_survive_a_crash_at_a_store_call(bed: Bed, name: str) -> None:
    """A sample of the crashes that the memory tests cause at each call."""
    if bed.drops != (bed.backend == "postgres") and not IS_SLOW:
        pytest.skip("the other mode is played on the other server")
    before, dying = DYING[name]
    program = Dialogues((*before, dying, *THEN), READERS)
    opened = bed.open_store
    for nth in range(12) if IS_SLOW else (SAMPLE.index(name),):
        faults = Faults(nth=nth, manner=DEATHS[nth % 2])
        stage = Stage(bed, bed.name().type, faults=faults, dies_at=len(before))
        await stage.open()
        try:
            assert await Play(program, stage).play() == []
        finally:
            bed.open_store = opened
            await stage.close()
        if not faults.struck:
            break
