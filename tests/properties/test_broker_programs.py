"""Random programs on NATS and PostgreSQL agree with the model.

Time is virtual, the servers are real: messages of external clients and of agents travel by the
broker. `CALLBOARD_BROKER_PROGRAMS=2000 CALLBOARD_SEED=7` runs more, other programs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from persistence._postgres.commits import committer
from persistence._postgres.connection import link
from tests.harness.faulty_store import Faults, Manner
from tests.harness.slow import IS_SLOW
from tests.model.signs import TieError
from tests.model.strategies import cases
from tests.model.verdict import broken_promises, differences, executed_again, play_both
from tests.properties.corpus import CORPUS
from tests.properties.stage import opened_stage
from tests.properties.test_programs import DEATHS, ERRORS, SEED, profile, report, seeded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.servers import TestNats, TestPostgres
    from tests.model.broker_ground import Theatre
    from tests.model.program import Case
    from tests.model.verdict import Played

COUNT: Final = int(os.environ.get("CALLBOARD_BROKER_PROGRAMS", "15" if IS_SLOW else "6"))
FAULTS: Final = 45
"""Number of store calls of a short case."""
brief = settings(profile, max_examples=COUNT)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if SEED else 120)]


@pytest.fixture(scope="module")
def stage(postgres_server: TestPostgres, nats_server: TestNats) -> Iterator[Theatre]:
    """The stage of this module's cases."""
    with opened_stage(postgres_server, nats_server) as stage:
        yield stage


def played(  # noqa: PLR0917
    stage: Theatre, case: Case, seed: int, suspend_after: float, faults: Faults | None = None
) -> Played:
    """Run the case on both; skip one that decides nothing."""
    try:
        return play_both(
            case, seed=seed, suspend_after=suspend_after, faults=faults, play=stage.play
        )
    except TieError:
        assume(False)
        raise


@pytest.mark.item(68, 69, 70, 99, 118, 193, 201)
@pytest.mark.parametrize("suspend_after", [5.0, 0.0])
@pytest.mark.parametrize("name", CORPUS)
def test_a_fixed_program_is_as_predicted(stage: Theatre, name: str, suspend_after: float) -> None:
    """Each program of the corpus, hot and suspended."""
    both = played(stage, CORPUS[name], 0, suspend_after)
    problems = differences(CORPUS[name], both.predicted, both.observed)
    assert not problems, report(problems, CORPUS[name], 0)


@pytest.mark.costly
@pytest.mark.item(80, 172, 186, 189, 200, 485)
@pytest.mark.parametrize("manner", DEATHS)
@pytest.mark.parametrize("method", ["append", "commit", "ingest"])
def test_programs_survive_a_crash_at_every_write(
    stage: Theatre, method: str, manner: Manner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program sends and receives messages: the next host sends the dead one's outbox."""
    case, nth, is_struck = CORPUS["continued"], 0, True
    monkeypatch.setattr(stage, "is_mute", True)
    while is_struck:
        faults = Faults(nth=nth, manner=manner, method=method)
        suspend_after = 5.0 if nth % 2 else 0.0
        both = play_both(case, suspend_after=suspend_after, faults=faults, play=stage.play)
        problems = differences(case, both.predicted, both.observed)
        assert not problems, report(problems, case, 0, faults)
        is_struck, nth = faults.struck, nth + 1


@pytest.mark.costly
@pytest.mark.item(45, 68, 69, 70, 99, 100, 118, 163, 193, 201)
@seeded
@brief
@given(case=cases(), seed=st.integers(0, 1_000_000))
def test_the_runtime_agrees_with_the_model(stage: Theatre, case: Case, seed: int) -> None:
    """Status, output, order, log, state, messages and executions are as predicted, hot and suspended."""
    for suspend_after in (5.0, 0.0):
        both = played(stage, case, seed, suspend_after)
        found = differences(case, both.predicted, both.observed)
        assert not found, report(found, case, seed)


@pytest.mark.costly
@pytest.mark.item(80, 172, 186, 189, 200, 485)
@seeded
@brief
@given(
    case=cases(),
    seed=st.integers(0, 1_000_000),
    faults=st.builds(Faults, nth=st.integers(0, FAULTS), manner=st.sampled_from(DEATHS)),
    suspend_after=st.sampled_from([5.0, 0.0]),
)
def test_another_host_continues_exactly_where_one_crashed(  # noqa: PLR0917
    stage: Theatre, case: Case, seed: int, faults: Faults, suspend_after: float
) -> None:
    """After a crash at any store call, ingest and outbox included, the rest is as predicted."""
    both = played(stage, case, seed, suspend_after, faults)
    found = differences(case, both.predicted, both.observed)
    assert not found, report(found, case, seed, faults)


@pytest.mark.item(190, 200)
@seeded
@brief
@given(
    case=cases(),
    seed=st.integers(0, 1_000_000),
    faults=st.builds(Faults, nth=st.integers(0, FAULTS), manner=st.sampled_from(ERRORS)),
    suspend_after=st.sampled_from([5.0, 0.0]),
)
def test_an_error_of_the_store_breaks_no_promise(  # noqa: PLR0917
    stage: Theatre, case: Case, seed: int, faults: Faults, suspend_after: float
) -> None:
    """Each call may fail, with a known or unknown outcome: no effect, message or entry is doubled or lost."""
    both = played(stage, case, seed, suspend_after, faults)
    found = broken_promises(case, both.observed)
    assert not found, report(found, case, seed, faults)


_FULL: Final = st.tuples(st.integers(0, 16), st.integers(1, 120)).map(
    lambda at: (at[0] / 2, at[0] / 2 + at[1])
)


@pytest.mark.costly
@seeded
@brief
@given(
    case=cases(),
    seed=st.integers(0, 1_000_000),
    faults=st.builds(Faults, full=_FULL),
    suspend_after=st.sampled_from([5.0, 0.0]),
)
def test_a_temporarily_full_disk_loses_and_repeats_nothing(  # noqa: PLR0917
    stage: Theatre, case: Case, seed: int, faults: Faults, suspend_after: float
) -> None:
    """Also for longer than calls wait: each effect is executed once, and all results are written."""
    both = played(stage, case, seed, suspend_after, faults)
    found = broken_promises(case, both.observed) + executed_again(both.observed)
    assert not found, report(found, case, seed, faults)


def test_a_full_disk_treated_as_a_refusal_is_detected(
    stage: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is loaded again instead repeats its effects: the property above detects it."""
    for module in (committer, link):
        monkeypatch.setattr(module, "is_full", lambda _: False)

    assert any(
        executed_again(played(stage, case, 0, 0.0, Faults(full=(0.5, 4.0))).observed)
        for case in CORPUS.values()
    )
