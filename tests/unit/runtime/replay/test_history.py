"""Hit or miss, strict or pool: the fold of a log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.log_entry import RunLogEntry
from actors._runtime.replay.history import History
from actors.errors import NonDeterminismError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STEP = (K.EFFECT_INTENT, K.EFFECT_RESULT)


def log(*lines: tuple[K, str, dict[str, Any]]) -> list[RunLogEntry]:
    """Return a log that starts with run.started."""
    first = (K.RUN_STARTED, "", {"agent": "a/1"})
    return [
        RunLogEntry(RunId("r"), seq, kind, position, payload, NOW)
        for seq, (kind, position, payload) in enumerate((first, *lines))
    ]


def result(position: str, digest: str = "h") -> tuple[K, str, dict[str, Any]]:
    """Return a recorded result."""
    return K.EFFECT_RESULT, position, {"effect": "step", "hash": digest, "status": "ok", "value": 1}


def failed(retry_from: int, *, ending: bool = True) -> tuple[K, str, dict[str, Any]]:
    """Return the end of an attempt."""
    payload: dict[str, Any] = {"attempt": 1, "error": {}, "retry_from": retry_from, "at": ""}
    return K.RUN_ATTEMPT_FAILED, "", payload | ({"ending": True} if ending else {})


@pytest.mark.item(70)
def test_what_is_recorded_is_a_hit() -> None:
    """The same kind and hash at the same position is found."""
    history = History.of(log(result("0")))
    entries = history.meet("0", STEP, "step a", "h")

    assert entries is not None
    assert entries.end is not None


def test_a_strict_difference_names_position_expected_and_found() -> None:
    """Another hash where the log must be met exactly is a divergence."""
    history = History.of(log(result("0", "old")))

    with pytest.raises(NonDeterminismError, match=r"position 0 .*hash old.*step a \(hash new\)"):
        history.meet("0", STEP, "step a", "new")


@pytest.mark.item(71)
def test_the_effect_that_ended_an_attempt_executes_anew_and_what_came_before_does_not() -> None:
    """Up to retry_from entries are strict; the ending one is void; later ones are a pool."""
    history = History.of(log(result("0"), result("1"), result("2"), failed(2)))
    first, ending = history.meet("0", STEP, "s", "h"), history.meet("1", STEP, "s", "h")

    assert history.attempt == 2
    assert first is not None
    assert not first.ends_void
    assert ending is not None
    assert ending.ends_void
    assert history.is_strict(1)
    assert not history.is_strict(3)
    assert history.meet("2", STEP, "s", "other") is None


def test_a_later_attempt_that_ended_earlier_turns_strict_entries_into_pool() -> None:
    """An entry is strict only if every attempt that failed after it agrees."""
    history = History.of(log(result("0"), result("1"), failed(2), result("1"), failed(1)))

    assert not history.is_strict(2)
    assert history.is_strict(1)


def test_replay_reads_from_the_last_continuation() -> None:
    """Entries before run.continued are history; attempts count from one again."""
    continued = (K.RUN_CONTINUED, "", {"generation": 1, "input": 7})
    history = History.of(log(result("0"), failed(1), continued, result("1:0")))

    assert (history.generation, history.attempt) == (1, 1)
    assert "0" not in history.calls
    assert history.is_replaying()


def test_positions_the_code_never_asked_for_are_known_at_the_end() -> None:
    """A shorter program than the log is a divergence too."""
    history = History.of(log(result("0"), result("1")))
    history.meet("0", STEP, "s", "h")

    assert history.first_unmet_position() == "1"


@pytest.mark.parametrize(
    ("seqs", "count"), [((-1, 0), 0), ((1,), 1), ((1, 2), 2), ((1, 1, 4), 3), ((0, 4), 1)]
)
def test_only_ends_of_the_log_without_progress_behind_them_count(
    seqs: tuple[int, ...], count: int
) -> None:
    """What a host that fails over and over in the same effect leaves behind is no progress."""
    resumed = (K.RUN_RESUMED, "", {"reason": "recovered"})
    intent = (K.EFFECT_INTENT, "1", {"effect": "step", "hash": "h"})
    history = History.of(log(result("0"), resumed, intent, resumed))

    assert history.without_progress(seqs) == count


@pytest.mark.parametrize(
    ("behind", "deaths"),
    [
        ((), 2),
        (((K.EFFECT_INTENT, "1", {"effect": "step", "hash": "h"}),), 2),
        (((K.RUN_RESUMED, "", {"reason": "recovered", "died": False}),), 2),
        (((K.RUN_SUSPENDED, "", {"wake": {}}),), 0),
        (((K.EFFECT_INTENT, "1", {"effect": "step", "hash": "h"}), result("1")), 0),
        (((K.RUN_PARKED, "", {"reason": "poison"}),), 0),
    ],
)
def test_each_mark_of_a_death_counts_until_the_run_writes_something_or_rests(
    behind: tuple[tuple[K, str, dict[str, Any]], ...], deaths: int
) -> None:
    """Intents, and hosts that went in order, change nothing."""
    resumed = (K.RUN_RESUMED, "", {"reason": "recovered"})

    assert History.of(log(result("0"), resumed, resumed, *behind)).deaths == deaths


def test_a_run_without_a_log_has_made_no_progress() -> None:
    """A host that gave it up before its first commit counts."""
    assert History.of([]).without_progress((-1, -1)) == 2


def test_a_run_that_was_taken_apart_has_the_messages_it_kept() -> None:
    """And that failure counts for none of them; the attempt's number goes on."""
    inputs: list[tuple[K, str, dict[str, Any]]] = [
        (K.MSG_RECEIVED, f"in.{n}", {"message": {}}) for n in range(3)
    ]
    kind, position, payload = failed(3, ending=False)
    history = History.of(log(*inputs, (kind, position, payload | {"kept": 1}), failed(4)))

    assert [entry.position for entry in history.inputs] == ["in.0"]
    assert (history.attempt, len(history.failures)) == (3, 1)
    assert history.is_at_beginning
