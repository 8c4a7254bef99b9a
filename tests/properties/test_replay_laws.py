"""A run started from any prefix of a finished log continues as the model predicts for that prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.log_entry import TERMINAL_KINDS, EntryKind
from tests.model.drive import play
from tests.model.signs import TieError
from tests.model.verdict import differences, play_both, predict
from tests.properties.corpus import CORPUS

if TYPE_CHECKING:
    from actors._kernel.runtime.log_entry import RunLogEntry
    from tests.model.drive import Observed
    from tests.model.program import Case

NOT_AN_END = {*TERMINAL_KINDS, EntryKind.RUN_PARKED, EntryKind.RUN_SUSPENDED}


def gone_on(case: Case, whole: Observed, length: int, suspend_after: float) -> list[str]:
    """Return the differences of a run that starts with this many entries of a log, as text."""
    prefix = tuple(whole.entries[:length])
    until = predict(case).ended_at + 30
    observed = play(
        case, suspend_after=suspend_after, until=until, prefix=prefix, before=tuple(whole.begun)
    )
    try:
        predicted = predict(case, observed)
    except TieError:
        return []
    problems = differences(case, predicted, observed)
    # The messages of the prefix are in the store that it was taken from.
    problems = [
        line for line in problems if not line.startswith(("messages sent", "the row is", "of "))
    ]
    return [f"the first {length} of {len(whole.entries)} entries:", *problems] if problems else []


def prefixes(entries: list[RunLogEntry]) -> list[int]:
    """Return the lengths at which a host could have left the log if its flushes were that small."""
    return [n for n in range(2, len(entries)) if entries[n - 1].kind not in NOT_AN_END]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.item(68, 69, 70, 71, 74, 170, 171, 172, 187, 193)
@pytest.mark.parametrize("suspend_after", [5.0, 0.0])
@pytest.mark.parametrize("name", CORPUS)
def test_a_run_can_continue_from_every_prefix_of_a_log(name: str, suspend_after: float) -> None:
    """No recorded effect executes again, and the output is that of the model."""
    case = CORPUS[name]
    whole = play_both(case).observed

    wrong = [gone_on(case, whole, n, suspend_after) for n in prefixes(whole.entries)]

    assert not any(wrong), "\n".join(next(lines for lines in wrong if lines))
