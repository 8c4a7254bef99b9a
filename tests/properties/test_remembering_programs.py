"""Random programs that keep memories: versions, blocks, hits and the embedder's calls are what the model says.

`CALLBOARD_REMEMBERING=5000 CALLBOARD_SEED=7` plays more, other programs in memory.
"""

from __future__ import annotations

import os
from itertools import product
from typing import TYPE_CHECKING, Final

import pytest

from tests.harness.faulty_store import Faults
from tests.harness.slow import IS_SLOW
from tests.model.drawing import drawn_cases
from tests.model.signs import TieError
from tests.model.strategies import memory_cases
from tests.model.verdict import broken_promises, differences, play_both
from tests.properties.remembering import REMEMBERING
from tests.properties.stage import opened_stage
from tests.properties.test_crowds import foretold, wrong
from tests.properties.test_programs import (
    DEATHS,
    ERRORS,
    PARTS,
    SEED,
    SEEDS,
    SUSPENDED,
    faults_of,
    for_each,
    played,
    report,
)

if TYPE_CHECKING:
    from tests.harness.servers import TestNats, TestPostgres
    from tests.model.program import Case

COUNT: Final = int(os.environ.get("CALLBOARD_REMEMBERING", "300" if IS_SLOW else "16"))
CROWD: Final = 200 if IS_SLOW else 16
STRIDE: Final = 1 if IS_SLOW or SEED else 3
"""The gate lets a host die at every third store call: before it, and after it."""
DYING: Final = [*REMEMBERING] if IS_SLOW or SEED else ["versions", "blocks"]
"""Programs whose hosts die at all calls."""
WRITES: Final = ("put", "forget", "search", "append", "commit") if IS_SLOW else ("put",)
"""Calls of real stores before and behind which a host dies."""
ON_SERVERS: Final = [*REMEMBERING] if IS_SLOW else ["versions"]
SERVERS: Final = {"postgres": False, "nats": True} if IS_SLOW else {"nats": True}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if SEED else 120)]


def test_memories_are_as_the_model_says() -> None:
    """Logs, memories and executions of the embedder are as predicted, hot and suspended: replay asks nobody."""

    def holds(case: Case, seed: int) -> None:
        for suspend_after in (5.0, 0.0):
            both = played(case, seed, suspend_after)
            found = differences(case, both.predicted, both.observed)
            assert not found, report(found, case, seed)

    for_each(0, COUNT * PARTS, holds, memory_cases(), SEEDS)


def test_another_host_goes_on_with_what_is_remembered() -> None:
    """After a death at any store call each memory is there once, and no recorded call is made again."""

    def holds(case: Case, seed: int, faults: Faults, suspend_after: float) -> None:
        both = played(case, seed, suspend_after, faults)
        found = differences(case, both.predicted, both.observed)
        assert not found, report(found, case, seed, faults)

    for_each(1, COUNT * PARTS, holds, memory_cases(), SEEDS, faults_of(DEATHS, 60), SUSPENDED)


def test_an_error_of_the_store_doubles_no_memory() -> None:
    """Whatever call fails, known or unknown outcome: each version is of one call, and none is missing."""

    def holds(case: Case, seed: int, faults: Faults, suspend_after: float) -> None:
        both = played(case, seed, suspend_after, faults)
        found = broken_promises(case, both.observed)
        assert not found, report(found, case, seed, faults)

    for_each(2, COUNT * PARTS, holds, memory_cases(), SEEDS, faults_of(ERRORS, 60), SUSPENDED)


@pytest.mark.parametrize("name", DYING)
def test_each_memory_is_kept_once_wherever_a_host_dies(name: str) -> None:
    """Before and after each store call: memories and embeddings are as what is left behind says."""
    case, nth, is_struck, wrong = REMEMBERING[name], 0, True, []
    while is_struck:
        for manner in DEATHS:
            faults = Faults(nth=nth, manner=manner)
            try:
                both = play_both(case, suspend_after=(0.0, 5.0)[nth // STRIDE % 2], faults=faults)
            except TieError:
                found = []
            else:
                found = differences(case, both.predicted, both.observed)
            wrong += [report(found, case, 0, faults)] if found else []
            is_struck = faults.struck
        nth += STRIDE
    assert not wrong, f"{len(wrong)} of {nth // STRIDE * 2} deaths\n{wrong[-1]}"


@pytest.mark.parametrize("brokered", SERVERS.values(), ids=SERVERS)
def test_each_memory_is_kept_once_by_real_servers(
    postgres_server: TestPostgres, nats_server: TestNats, *, brokered: bool
) -> None:
    """A host dies before and after each write of a memory and of a log, and each search."""
    wrong = []
    with opened_stage(postgres_server, nats_server, brokered=brokered) as stage:
        stage.is_mute = True
        for name, method in product(ON_SERVERS, WRITES):
            case, nth, is_struck = REMEMBERING[name], 0, True
            while is_struck:
                for manner in DEATHS:
                    faults = Faults(nth=nth, manner=manner, method=method)
                    both = play_both(
                        case, suspend_after=5.0 * (nth % 2), faults=faults, play=stage.play
                    )
                    found = differences(case, both.predicted, both.observed)
                    wrong += [report(found, case, 0, faults)] if found else []
                    is_struck = faults.struck
                nth += 1
    assert not wrong, f"{len(wrong)} deaths\n{wrong[-1]}"


@pytest.mark.parametrize("brokered", [False, True], ids=["postgres", "nats"])
def test_a_crowd_remembers_as_the_model_says(
    postgres_server: TestPostgres, nats_server: TestNats, *, brokered: bool
) -> None:
    """On real servers, many at a time: one half is evicted where it waits, the other stays in memory."""
    seed = int(SEED or 1) + brokered
    cases = drawn_cases(memory_cases(), CROWD, seed)
    halves = {0.0: [*REMEMBERING.values(), *cases[::2]], 5.0: cases[1::2]}
    with opened_stage(postgres_server, nats_server, brokered=brokered) as stage:
        found = [
            one
            for suspend_after, half in halves.items()
            for one in wrong(stage, foretold(half), seed, suspend_after)
        ]

    assert not found, min(found, key=len)
