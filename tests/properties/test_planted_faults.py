"""The suite itself: a fault planted in the runtime is found."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from actors._runtime.execution.execution import Execution
from actors._runtime.journal.run_log import RunLog
from actors._runtime.replay.branches import BranchQueue, Select
from actors._runtime.replay.history import History
from actors._runtime.replay.verdict import judge
from actors._runtime.verbs import run_context, waits
from actors._runtime.verbs.effects import Effects
from actors._runtime.worker.mailbox_table import MailboxTable
from tests.harness.faulty_store import Faults, Manner
from tests.model.drawing import drawn_cases
from tests.model.signs import TieError
from tests.model.strategies import cases
from tests.model.verdict import differences, play_both
from tests.properties.corpus import CORPUS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hypothesis.strategies import SearchStrategy

    from tests.model.program import Case

ENOUGH: Final = 400
"""So many random programs have to be enough to find any of the faults."""


def out_of_order(patch: pytest.MonkeyPatch) -> None:
    """Recorded results are released latest first."""

    def pop_last(hits: list[Any]) -> Any:
        hits.sort()
        return hits.pop()

    patch.setattr(f"{BranchQueue.__module__}.heapq", _Heap(pop_last))


class _Heap:
    """A `heapq` with another pop."""

    def __init__(self, pop: Callable[[list[Any]], Any]) -> None:
        self.heappush = heapq.heappush
        self.heappop = pop


def no_abandoned(patch: pytest.MonkeyPatch) -> None:
    """`effect.abandoned` is forgotten."""
    patch.setattr(Execution, "_on_closed", lambda _self, branch: branch.open_effects.clear())


def executed_twice(patch: pytest.MonkeyPatch) -> None:
    """An at-most-once effect in doubt executes again."""

    async def nobody_knows(*_: object) -> None:
        return None

    patch.setattr(Effects, "_in_doubt", nobody_knows)


def pool_is_strict(patch: pytest.MonkeyPatch) -> None:
    """What a failed attempt recorded behind its error has to be met again."""
    patch.setattr(History, "is_strict", lambda _self, _seq: True)


def strict_is_pool(patch: pytest.MonkeyPatch) -> None:
    """What an attempt recorded before its error may differ."""
    patch.setattr(History, "is_strict", lambda _self, _seq: False)


def nothing_is_void(patch: pytest.MonkeyPatch) -> None:
    """The error that ended an attempt is raised again for ever."""
    add_entry = History._add_call_entry

    def never_void(self: History, entry: Any, *, is_void: bool) -> None:
        add_entry(self, entry, is_void=False)

    patch.setattr(History, "_add_call_entry", never_void)


def not_durable(patch: pytest.MonkeyPatch) -> None:
    """A result is returned before it is written."""

    async def at_once(self: RunLog, _branch: object, seq: int) -> None:
        self._scheduler.durable_upto(seq)

    patch.setattr(RunLog, "durable", at_once)


def losers_stay_open(patch: pytest.MonkeyPatch) -> None:
    """A select goes on without closing its losers."""
    patch.setattr(Select, "_close_one", lambda *_: False)


def no_ending(patch: pytest.MonkeyPatch) -> None:
    """A failed attempt does not look for the recorded error that ended it."""
    patch.setattr(f"{judge.__module__}.origin_of", lambda _exc: None)


def sleepers_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A host takes an agent for free whose run sleeps."""
    patch.setattr(MailboxTable, "_falls_asleep", lambda _self, _mailbox: None)


def mailboxes_stay(patch: pytest.MonkeyPatch) -> None:
    """A host keeps an object for each agent that it has ever seen."""
    patch.setattr(MailboxTable, "_delete", lambda _self, _mailbox: None)


def kept_values_are_shared(patch: pytest.MonkeyPatch) -> None:
    """Code gets the values of the log themselves."""
    for module in (run_context, waits):
        patch.setattr(module, "fresh", lambda value: value)


PLANTED = [
    out_of_order,
    no_abandoned,
    executed_twice,
    pool_is_strict,
    strict_is_pool,
    nothing_is_void,
    not_durable,
    losers_stay_open,
    no_ending,
    sleepers_are_forgotten,
    mailboxes_stay,
    kept_values_are_shared,
]


class Look(NamedTuple):
    """One comparison of the runtime with the model; the host dies at call `nth` of the store, if given."""

    case: Case
    suspend_after: float
    nth: int | None = None
    manner: Manner = Manner.DIE_AFTER

    def finds(self) -> bool:
        """Whether they disagree; a tie is no disagreement, an error of any kind is."""
        faults = Faults(nth=self.nth, manner=self.manner)
        try:
            both = play_both(self.case, suspend_after=self.suspend_after, faults=faults)
        except TieError:
            return False
        except Exception:  # noqa: BLE001 - that is a find
            return True
        return bool(differences(self.case, both.predicted, both.observed))


def everywhere() -> Iterator[Look]:
    """What CI runs, in small: the corpus with deaths, then random programs in both modes."""
    for case in CORPUS.values():
        for nth in range(6, 20, 2):
            yield Look(case, 0.0, nth, Manner.DIE_BEFORE)
            yield Look(case, 5.0, nth)
    for case in drawn_cases(cases(), ENOUGH, 1):
        yield Look(case, 0.0)
        yield Look(case, 5.0)


def everywhere_in(
    corpus: Iterable[Case], programs: SearchStrategy[Case], enough: int
) -> Iterator[Look]:
    """What CI runs, in small: a corpus with and without deaths, then random programs; all in both modes."""
    for case in corpus:
        yield Look(case, 0.0)
        yield Look(case, 5.0)
        for nth in range(16, 40, 4):
            yield Look(case, 0.0, nth)
    for case in drawn_cases(programs, enough, 1):
        yield Look(case, 0.0)
        yield Look(case, 5.0)


def assert_found(
    plant: Callable[[pytest.MonkeyPatch], None], looks: Iterator[Look], patch: pytest.MonkeyPatch
) -> None:
    """Some look finds the fault, and finds nothing there without it."""
    with patch.context() as planted:
        plant(planted)
        finding_look = next((look for look in looks if look.finds()), None)
    assert finding_look is not None
    assert not finding_look.finds(), "it was not the fault that was found"


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("collected")
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fault in place the comparison with the model fails."""
    assert_found(plant, everywhere(), monkeypatch)
