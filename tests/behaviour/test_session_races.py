"""Two processes that start, cancel, switch and delete one session in the same instant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.model.dialogue_program import Dialogues
from tests.model.dialogue_race import races
from tests.model.dialogue_stage import Stage

if TYPE_CHECKING:
    from tests.behaviour.bed import Bed


@pytest.mark.costly
@pytest.mark.item(365, 368, 381, 385)
@pytest.mark.timeout(120)
async def test_concurrent_calls_have_the_outcome_of_some_order(bed: Bed) -> None:
    """Outcomes, facts, nodes and events; on real servers in real time."""
    stage = Stage(bed, bed.name().type)
    await stage.open()
    try:
        assert await races(stage, Dialogues(()), 4) == []
    finally:
        await stage.close()
