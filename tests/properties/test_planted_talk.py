"""The suite itself: a fault planted in what runs do with each other is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from actors._inmemory.runs import commit as _commit
from actors._inmemory.runs import tree
from actors._inmemory.runs.follow_rows import FollowRows
from actors._inmemory.runs.records import AnswerRow
from actors._inmemory.runs.rows import MemoryRows
from actors._runtime.replay.history import History
from actors._runtime.verbs.messaging import Messaging
from tests.model.strategies import talking_cases
from tests.properties.talking import TALKING
from tests.properties.test_planted_faults import assert_found, everywhere_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors._inmemory.runs.records import RunRecord
    from actors._kernel.runtime.waits import Answer

ENOUGH: Final = 100
"""So many random programs, beside the corpus, have to be enough to find any of the faults."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("collected"),
]


def places_are_not_given_back(patch: pytest.MonkeyPatch) -> None:
    """A child that has ended still counts as open."""
    patch.setattr(_commit, "release_slot", lambda *_: None)


def ends_answer_nobody(patch: pytest.MonkeyPatch) -> None:
    """A run that ends leaves those without an answer who asked it, or joined it."""
    patch.setattr(_commit, "answer_end", lambda *_: [])


def the_last_answer_counts(patch: pytest.MonkeyPatch) -> None:
    """A second answer takes the place of the first."""

    def keep(rows: MemoryRows, answer: Answer) -> RunRecord:
        record = rows.runs[answer.run_id]
        record.answers[answer.key] = AnswerRow.of(answer)
        return record

    patch.setattr(tree, "keep_answer", keep)


def orphans_live_on(patch: pytest.MonkeyPatch) -> None:
    """Children of a run that has ended are not asked to stop."""
    patch.setattr(_commit, "resolve_orphans", lambda *_: [])


def joined_children_are_orphans(patch: pytest.MonkeyPatch) -> None:
    """A run names children among its orphans that it has joined."""
    patch.setattr(History, "unjoined_children", property(lambda self: tuple(self.children)))


def cancels_do_not_go_down(patch: pytest.MonkeyPatch) -> None:
    """Only the run itself is asked to stop."""
    patch.setattr(MemoryRows, "subtree", lambda _self, record: [record])


def budgets_are_each_parents(patch: pytest.MonkeyPatch) -> None:
    """Children are counted where they are spawned, not at the root."""
    patch.setattr(tree, "_root_of", lambda _rows, commit: commit.lease.run_id)


def unfollowing_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Who has followed once gets every post."""
    patch.setattr(FollowRows, "unfollow", lambda *_: False)


def replies_leave_nothing(patch: pytest.MonkeyPatch) -> None:
    """A reply is neither recorded nor sent."""

    async def nothing(*_: object) -> None:
        return None

    patch.setattr(Messaging, "reply", nothing)


PLANTED = [
    places_are_not_given_back,
    ends_answer_nobody,
    the_last_answer_counts,
    orphans_live_on,
    joined_children_are_orphans,
    cancels_do_not_go_down,
    budgets_are_each_parents,
    unfollowing_is_forgotten,
    replies_leave_nothing,
]


@pytest.mark.costly
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fault in place the comparison with the model fails."""
    found_by = everywhere_in(TALKING.values(), talking_cases(), ENOUGH)
    assert_found(plant, found_by, monkeypatch)
