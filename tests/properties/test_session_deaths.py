"""A host crashes at every store call of an act of a session, and another one continues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.harness.faulty_store import Faults
from tests.harness.slow import IS_SLOW
from tests.model.dialogue_program import Act, Dialogues, Reader
from tests.properties.dialogues import wrong_in
from tests.properties.test_programs import DEATHS, SEED

if TYPE_CHECKING:
    from tests.harness.faulty_store import Manner

STRIDE: Final = 1 if IS_SLOW or SEED else 5
"""The gate crashes a host at every fifth store call."""
READERS: Final = (Reader(0, 0, ((0, 3), (0, 2), (1, 2))), Reader(0, 1, ((0, 2), (1, 3))))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 if IS_SLOW else 120)]


def start(kind: str = "say", conflict: str = "queue", parent: int | None = None) -> Act:
    """A client in the host's process sends a message."""
    return Act("start", kind=kind, conflict=conflict, parent=parent)


def act(what: str, n: int = 0) -> Act:
    """Another act of that client."""
    return Act(what, n)


OPEN: Final = (start(), start("hold"))
"""A session with a run whose model call is open."""
ASKED: Final = (start(), start("crack"))
"""A session with a run that waits for a person."""
IDLE: Final = (start(), start("tell"), act("go"), start("fail"))
"""A session whose runs have ended."""
DYING: Final[dict[str, tuple[tuple[Act, ...], Act]]] = {
    "first start": ((), start()),
    "start": (IDLE, start("ask")),
    "start a branch": (IDLE, start(parent=0)),
    "start in the queue": (OPEN, start()),
    "join": (OPEN, start(conflict="join")),
    "interrupt": (OPEN, start(conflict="interrupt")),
    "a child": (IDLE, start("child")),
    "a failure": (IDLE, start("fail")),
    "cancel": (OPEN, act("cancel")),
    "cancel in the queue": ((*OPEN, start(), start()), act("cancel", 1)),
    "cancel while it waits": ((*ASKED, start()), act("cancel")),
    "in the middle of an answer": ((*OPEN, start()), act("go")),
    "a decision": (ASKED, act("go")),
    "switch": (IDLE, act("switch", 1)),
    "delete": (IDLE, act("delete")),
}
"""The present state, and the act in which the host crashes."""
THEN: Final = (
    act("go"),
    act("go"),
    act("go"),
    start("tell"),
    act("switch", 1),
    act("go", 1),
    act("go"),
    start(),
)
"""The next act: the session accepts runs again."""


@pytest.mark.item(352, 366, 375, 385)
@pytest.mark.parametrize("manner", DEATHS)
@pytest.mark.parametrize("name", DYING)
def test_programs_survive_a_crash_at_every_store_call(name: str, manner: Manner) -> None:
    """No event, no node and no run is lost or doubled; an act without an answer is repeated."""
    before, dying = DYING[name]
    program = Dialogues((*before, dying, *THEN), READERS)
    nth, is_struck, wrong = DEATHS.index(manner) % STRIDE, True, []
    while is_struck:
        faults, drops = Faults(nth=nth, manner=manner), nth // STRIDE % 2 == 0
        problems = wrong_in(program, nth, drops=drops, faults=faults, dies_at=len(before))
        is_struck = faults.struck
        if problems:
            wrong.append(f"call {nth}, {faults.calls[nth : nth + 1]}, {drops=}: {problems}")
        nth += STRIDE
    assert nth > STRIDE, "no store call was met"
    assert not wrong, f"{len(wrong)} of {nth // STRIDE} points\n" + "\n".join(wrong[:3])
