"""Each store call of a fixed corpus fails once, in each manner."""

from __future__ import annotations

import pytest

from tests.harness.faulty_store import Faults, Manner
from tests.model.signs import TieError
from tests.model.verdict import broken_promises, differences, play_both
from tests.properties.corpus import CORPUS

DEATHS = (Manner.DIE_BEFORE, Manner.DIE_AFTER)
ERRORS = (Manner.ERROR_BEFORE, Manner.ERROR_AFTER)
EXACT = ("append", "commit", "submit")
"""After one of these errors the run is loaded again at once, so that the model knows the instant."""


def found_at(name: str, suspend_after: float, faults: Faults) -> list[str]:
    """Return the differences that a fault at one call causes, as text."""
    case = CORPUS[name]
    try:
        both = play_both(case, suspend_after=suspend_after, faults=faults)
    except TieError:
        return []
    struck = faults.calls[faults.nth] if faults.nth is not None else ""
    if faults.manner in DEATHS or struck in EXACT:
        problems = differences(case, both.predicted, both.observed)
    else:
        problems = broken_promises(case, both.observed)
    head = (
        f"{name}, suspend_after={suspend_after:g}: {faults.manner} at call {faults.nth}, {struck}"
    )
    return [head, *problems] if problems else []


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.item(80, 172, 186, 189, 190, 484, 485, 490)
@pytest.mark.parametrize("manner", list(Manner)[:4])
@pytest.mark.parametrize("suspend_after", [5.0, 0.0])
@pytest.mark.parametrize("name", CORPUS)
def test_a_fault_at_every_store_call(name: str, suspend_after: float, manner: Manner) -> None:
    """Each call may fail, or be the last of its host: the result is the model's."""
    plain = Faults()
    both = play_both(CORPUS[name], suspend_after=suspend_after, faults=plain)
    assert not differences(CORPUS[name], both.predicted, both.observed)

    reports = [
        found_at(name, suspend_after, Faults(nth=nth, manner=manner))
        for nth in range(len(plain.calls))
    ]

    wrong = [r for r in reports if r]
    heads = [r[0] for r in wrong]
    assert not wrong, "\n".join([f"{len(wrong)} of {len(reports)} points", *heads, *wrong[-1]])
