"""Random programs that store memories: versions, blocks, hits and embeddings agree with the model.

`CALLBOARD_REMEMBERING=5000 CALLBOARD_SEED=7` runs more, other programs in memory.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Final

import pytest

from tests.harness.faulty_store import Faults
from tests.harness.slow import IS_SLOW
from tests.model.signs import TieError
from tests.model.strategies import memory_cases
from tests.model.verdict import differences, play_both
from tests.properties.frames import crowd, die_everywhere, hold, hold_in_deaths, hold_in_errors
from tests.properties.remembering import REMEMBERING
from tests.properties.stage import opened_stage
from tests.properties.test_programs import DEATHS, SEED, report

if TYPE_CHECKING:
    from tests.harness.servers import TestNats, TestPostgres

COUNT: Final = int(os.environ.get("CALLBOARD_REMEMBERING", "300" if IS_SLOW else "16"))
CROWD: Final = 200 if IS_SLOW else 16
DYING: Final = [*REMEMBERING] if IS_SLOW or SEED else ["versions", "blocks"]
"""Programs whose hosts crash at all calls."""
WRITES: Final = ("put", "forget", "search", "append", "commit") if IS_SLOW else ("put",)
"""Calls of real stores before and after which a host crashes."""
ON_SERVERS: Final = [*REMEMBERING] if IS_SLOW else ["versions"]
SERVERS: Final = {"postgres": False, "nats": True} if IS_SLOW else {"nats": True}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if SEED else 120)]


def test_memories_agree_with_the_model() -> None:
    """Logs, memories and embeddings are as predicted, hot and suspended: a replay embeds nothing."""
    hold(COUNT, memory_cases())


def test_another_host_continues_with_the_stored_memories() -> None:
    """After a crash at any store call each memory exists once, and no recorded call is repeated."""
    hold_in_deaths(COUNT, memory_cases())


def test_an_error_of_the_store_doubles_no_memory() -> None:
    """Each call may fail, with a known or unknown outcome: each version is of one call, and none is missing."""
    hold_in_errors(COUNT, memory_cases())


@pytest.mark.parametrize("name", DYING)
def test_each_memory_is_stored_once_over_a_crash_at_any_store_call(name: str) -> None:
    """Before and after each store call: memories and embeddings are as the remaining rows predict."""
    die_everywhere(REMEMBERING[name])


@pytest.mark.costly
@pytest.mark.parametrize("brokered", SERVERS.values(), ids=SERVERS)
def test_each_memory_is_stored_once_on_real_servers(
    postgres_server: TestPostgres, nats_server: TestNats, *, brokered: bool
) -> None:
    """A host crashes before and after each write of a memory and of a log, and each search."""
    wrong = []
    with opened_stage(postgres_server, nats_server, brokered=brokered) as stage:
        stage.is_mute = True
        for name, method in product(ON_SERVERS, WRITES):
            case, nth, is_struck = REMEMBERING[name], 0, True
            while is_struck:
                for manner in DEATHS:
                    faults = Faults(nth=nth, manner=manner, method=method)
                    with suppress(TieError):  # such a death decides nothing
                        both = play_both(
                            case, suspend_after=5.0 * (nth % 2), faults=faults, play=stage.play
                        )
                        problems = differences(case, both.predicted, both.observed)
                        wrong += [report(problems, case, 0, faults)] if problems else []
                    is_struck = faults.struck
                nth += 1
    assert not wrong, f"{len(wrong)} deaths\n{wrong[-1]}"


@pytest.mark.costly
@pytest.mark.parametrize("brokered", [False, True], ids=["postgres", "nats"])
def test_a_crowd_of_memories_agrees_with_the_model(
    postgres_server: TestPostgres, nats_server: TestNats, *, brokered: bool
) -> None:
    """On real servers, many at a time: one half is evicted where it waits, the other stays in memory."""
    servers = postgres_server, nats_server
    crowd(servers, REMEMBERING.values(), memory_cases(), CROWD, brokered=brokered)
