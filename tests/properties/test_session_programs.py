"""Random programs of clients and readers of sessions agree with the model.

`CALLBOARD_DIALOGUES=5000 CALLBOARD_SEED=7` runs more, other programs.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

from tests.harness.slow import IS_SLOW
from tests.model.dialogue_program import dialogues
from tests.properties.dialogues import FIXED, LOOKS, report, wrong_in
from tests.properties.test_programs import PARTS, SEED, parts

COUNT: Final = int(os.environ.get("CALLBOARD_DIALOGUES", "5000" if IS_SLOW else "160"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if SEED or IS_SLOW else 120)]


@pytest.mark.costly
@pytest.mark.item(352, 365, 366, 368, 374, 375, 376, 377, 379, 381, 385)
@parts
def test_sessions_agree_with_the_model(part: int) -> None:
    """Outcomes, statuses, order, nodes, heads, windows, and the events of each reader, hot and suspended."""
    first = int(SEED or 0) * 1_000_000
    for seed in range(first + part, first + COUNT, PARTS):
        program, drops = dialogues(seed), seed // PARTS % 2 == 0
        if wrong_in(program, seed, drops=drops):
            pytest.fail(report(program, seed, drops=drops))


@pytest.mark.item(352, 375, 381)
@pytest.mark.parametrize("name", FIXED)
def test_a_fixed_program_is_as_predicted(name: str) -> None:
    """In many interleavings, hot and suspended."""
    for seed in range(LOOKS):
        for drops in (False, True):
            wrong = wrong_in(FIXED[name], seed, drops=drops)
            assert not wrong, report(FIXED[name], seed, drops=drops)
