"""Dialogues run in memory, in virtual time."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from actors._runtime.verbs.conversation import sessions, windows
from actors._sessions import feed
from tests.behaviour.bed import memory_bed
from tests.harness.simloop import simulate
from tests.model.dialogue_play import Play
from tests.model.dialogue_program import Act, Dialogues, Reader, shrunk
from tests.model.dialogue_stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.faulty_store import Faults
    from tests.harness.simloop import SimLoop

HOT_S: Final = 1e6
"""A run that waits stays in memory."""
BACK: Final = 3
"""Facts read at once to find the active run: so few that there are several pages."""

HALVED: Final = Dialogues(
    (
        *(Act("start", kind="hold"), Act("start"), Act("start"), Act("start")),
        *(Act("cancel", 1), Act("go"), Act("start")),
    ),
    (Reader(0, 0, ((0, 5), (1, 9))), Reader(0, 1, ((0, 5), (1, 1), (0, 1)))),
)
"""A reader is disconnected between the two events of a run that is cancelled in the queue."""
INTERRUPTED: Final = Dialogues(
    tuple(
        Act("start", kind=kind, conflict="interrupt") for kind in ("crack", "tell", "ask", "tell")
    )
)
"""Runs that wait for a person are interrupted by the next message."""
CUT: Final = Dialogues(
    (
        *(Act("start"),) * 6,
        *(Act("switch", 4), Act("start"), Act("switch", 7), Act("start"), Act("start", parent=2)),
    ),
    (),
    is_plain=True,
)
"""Windows are cut on three paths."""
ANEW: Final = Dialogues(
    (
        *(Act("start"), Act("delete"), Act("start", kind="hold")),
        *(Act("start", who=1, conflict="join"), Act("switch", 0), Act("delete"), Act("go")),
        *(Act("start", kind="child"), Act("go"), Act("crash"), Act("start", kind="signal")),
    ),
    (Reader(0, 0, ((0, 2), (2, 1), (0, 2))), Reader(0, 1, ())),
)
"""A session is created again; a message joins from another process; changes of a session are refused."""
FIXED: Final = {"halved": HALVED, "interrupted": INTERRUPTED, "cut": CUT, "anew": ANEW}
LOOKS: Final = 12
"""Number of interleavings in which the fixed programs are run, each in both modes."""


def fixed_plays() -> Iterator[tuple[Dialogues, int, bool]]:
    """Yield the fixed programs, each with seeds and modes."""
    for seed in range(LOOKS):
        for program in FIXED.values():
            yield program, seed, False
            yield program, seed, True


@contextmanager
def small(program: Dialogues) -> Iterator[None]:
    """Use small limits inside the block, and make cuts from the first turn on in a plain program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed, "LOOK_BACK", BACK)
        if program.is_plain:
            for module in (windows, sessions):
                patch.setattr(module, "LEAST", 1)
        yield


def wrong_in(
    program: Dialogues,
    seed: int,
    *,
    drops: bool,
    faults: Faults | None = None,
    dies_at: int | None = None,
) -> list[str]:
    """Return the differences from the model in one run; the host may crash at a store call of one act."""

    async def main(loop: SimLoop) -> list[str]:
        bed = memory_bed(loop, 0.0 if drops else HOT_S, seed)
        bed._prefix = "dialogue"  # the same names each time: they determine the shards
        await bed.start()
        stage = Stage(bed, bed.name().type, faults=faults, dies_at=dies_at)
        try:
            await stage.open()
            return await Play(program, stage).play()
        finally:
            await stage.close()
            await bed.stop()

    with small(program):
        return simulate(main, seed=seed)[0]


def report(program: Dialogues, seed: int, *, drops: bool) -> str:
    """Return a small part of a failing program, and its differences."""

    def is_wrong(smaller: Dialogues) -> bool:
        return bool(wrong_in(smaller, seed, drops=drops))

    smallest = shrunk(program, is_wrong)
    lines = [*map(str, smallest.acts), *map(str, smallest.readers)]
    wrong = wrong_in(smallest, seed, drops=drops)
    return "\n".join([f"simulation seed {seed}, {drops=}, {smallest.is_plain=}", *lines, *wrong])
