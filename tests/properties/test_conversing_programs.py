"""Random programs that call models: their turns, cuts and calls agree with the model.

`CALLBOARD_CONVERSING=5000 CALLBOARD_SEED=7` runs more, other programs in memory.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest

from tests.harness.slow import IS_SLOW
from tests.model.strategies import conversation_cases
from tests.properties.conversing import CONVERSING
from tests.properties.frames import crowd, die_everywhere, hold, hold_in_deaths, hold_in_errors
from tests.properties.test_programs import SEED

if TYPE_CHECKING:
    from tests.harness.servers import TestNats, TestPostgres

COUNT: Final = int(os.environ.get("CALLBOARD_CONVERSING", "300" if IS_SLOW else "24"))
CROWD: Final = 200 if IS_SLOW else 30
DYING: Final = [*CONVERSING] if IS_SLOW or SEED else ["cuts", "later runs", "errors"]
"""Programs whose hosts crash at all calls."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if SEED else 120)]


@pytest.mark.item(286, 300)
def test_conversations_agree_with_the_model() -> None:
    """Logs, answers, turns, cuts and executions are as predicted, hot and suspended."""
    hold(COUNT, conversation_cases())


@pytest.mark.item(286, 300)
def test_another_host_continues_a_conversation() -> None:
    """After a crash at any store call no turn is missing or doubled, and no recorded call is repeated."""
    hold_in_deaths(COUNT, conversation_cases())


@pytest.mark.item(286)
def test_an_error_of_the_store_doubles_no_turn() -> None:
    """Each call may fail, with a known or unknown outcome: each recorded call has its turns, once."""
    hold_in_errors(COUNT, conversation_cases())


@pytest.mark.item(286, 300, 485)
@pytest.mark.parametrize("name", DYING)
def test_each_recorded_call_is_made_once_over_a_crash_at_any_store_call(name: str) -> None:
    """Before and after each store call: answers and summaries are executed as the remaining log predicts."""
    die_everywhere(CONVERSING[name])


@pytest.mark.costly
@pytest.mark.item(286, 300)
@pytest.mark.parametrize("brokered", [False, True], ids=["postgres", "nats"])
def test_a_crowd_of_conversations_agrees_with_the_model(
    postgres_server: TestPostgres, nats_server: TestNats, *, brokered: bool
) -> None:
    """On real servers, many at a time: one half is evicted where it waits, the other stays in memory."""
    servers = postgres_server, nats_server
    crowd(servers, CONVERSING.values(), conversation_cases(), CROWD, brokered=brokered)
