"""The suite itself: a fault planted in what runs meet beside deaths is found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import strategies as st

from actors._inmemory.runs import commit as _commit
from actors._inmemory.runs import shards as memory
from actors._inmemory.runs.operators import MemoryOperators
from actors._inmemory.runs.rows import MemoryRows
from actors._kernel.agent.agent import MAX_MESSAGES
from actors._kernel.runtime.rows import RESOLVE
from actors._runtime.execution import suspects
from actors._runtime.execution.ending import Ending
from actors._runtime.journal import amendments
from actors._runtime.journal.write_set import WriteSet
from actors._runtime.loop import timers
from actors._runtime.replay import failures as error_record
from actors._runtime.sharding.ownership import Recovery
from actors._runtime.verbs import messaging as talk
from actors._runtime.verbs import question
from actors._runtime.verbs.buffers import SignalBuffer
from actors._runtime.worker.mailbox import Mailbox
from tests.harness.faulty_store import Faults
from tests.model.drawing import first_drawn
from tests.model.signs import TieError
from tests.model.strategies import (
    batch_cases,
    cases,
    cycle_cases,
    doubtful_cases,
    limit_cases,
    mail_cases,
    sleeping_cases,
    talking_cases,
)
from tests.model.verdict import differences, play_both
from tests.properties.test_programs import SEEDS, SUSPENDED
from tests.properties.test_troubles import (
    BACK,
    BETWEEN,
    COUNT,
    LIMITS,
    ORDERED,
    STEPPED,
    TALK_OR_MAIL,
    UNREADABLE,
    UNRELIABLE,
    decides_once,
    goes_on,
    is_one_order,
    is_predicted,
    keeps_order,
    outlives_hosts,
    reads_again,
    silences_nothing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors._inmemory.runs.records import RunRecord
    from actors._kernel.runtime.commit import Commit
    from actors._kernel.runtime.rows import Arrived, BufferedSignal
    from actors._runtime.worker.mailbox import Start
    from tests.model.program import Case

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("collected"),
]


def as_predicted(case: Case, seed: int, suspend_after: float) -> None:
    """The runtime does what the model says."""
    both = play_both(case, seed=seed, suspend_after=suspend_after)
    assert not differences(case, both.predicted, both.observed)


def mail_overtakes_what_no_hint_told_of(patch: pytest.MonkeyPatch) -> None:
    """A commit takes any message that waits."""
    patch.setattr(_commit, "overtaken", lambda *_: ())


def mail_passes_queued_runs(patch: pytest.MonkeyPatch) -> None:
    """A free agent is given mail ahead of a queued run of its sender."""
    take_next = Mailbox.take_next

    def take_in_two_orders(self: Mailbox, most: int = MAX_MESSAGES) -> Start | None:
        if self.queue and self.is_mail_next:
            self.queue.sort(key=lambda item: item[1].run_id is not None)
        start = take_next(self, most)
        if self.queue:
            self.queue.sort(key=lambda item: item[0])
        return start

    patch.setattr(Mailbox, "take_next", take_in_two_orders)


def queued_runs_are_overtaken(patch: pytest.MonkeyPatch) -> None:
    """What begins is compared with older mail of its sender, not with runs that wait."""
    patch.setattr(_commit, "_queued_before", lambda *_: {})


def timers_are_set_for_any_length(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks whether the clock has stepped."""
    patch.setattr(timers, "MAX_ARM_S", 1e9)


def decisions_are_about_nothing(patch: pytest.MonkeyPatch) -> None:
    """Each decision is kept, and the next doubt at its position takes the oldest one."""

    def keep(record: RunRecord, *_: object) -> int:
        return len(record.log)

    async def oldest(self: SignalBuffer, position: str, _: int) -> BufferedSignal | None:
        return await self.take(f"{RESOLVE}{position}")

    patch.setattr(memory, "decide", keep)
    patch.setattr(SignalBuffer, "decision", oldest)


def redriven_letters_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A run is redriven whose dead letters were."""
    redrive = MemoryOperators.redrive

    async def and_forget(self: MemoryOperators, ids: Sequence[int]) -> list[Arrived]:
        arrived = await redrive(self, ids)
        self._rows.given_back.clear()
        return arrived

    patch.setattr(MemoryOperators, "redrive", and_forget)


def every_error_has_a_text(patch: pytest.MonkeyPatch) -> None:
    """What is recorded of an error is asked of the error, which may raise."""
    patch.setattr(error_record, "text_of", str)


def another_server_is_the_same_one(patch: pytest.MonkeyPatch) -> None:
    """Hosts go on with what they remember."""
    patch.setattr(Recovery, "begin_anew", lambda *_: None)


def ends_of_time_overtake_answers(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks for an answer in the commit that says that there was none."""
    commit = WriteSet.commit

    def blind(self: WriteSet, *args: Any, **others: Any) -> Commit:
        return replace(commit(self, *args, **others), unless_answered=())

    patch.setattr(WriteSet, "commit", blind)


def refused_questions_stay(patch: pytest.MonkeyPatch) -> None:
    """A question that closes a cycle is on its way all the same."""
    patch.setattr(MemoryRows, "withdraw", lambda *_: None)


def runs_are_not_taken_apart(patch: pytest.MonkeyPatch) -> None:
    """A run that was given several messages fails with all of them."""
    patch.setattr(Ending, "_others", lambda _: ())


def messages_have_any_size(patch: pytest.MonkeyPatch) -> None:
    """No call refuses what cannot be sent to another host."""
    for module in (talk, question):
        patch.setattr(module, "check_payload_size", lambda *_, **__: None)


def unreadable_rows_park_at_once(patch: pytest.MonkeyPatch) -> None:
    """The first time that rows of a run cannot be read parks it."""
    patch.setattr(amendments, "MAX_UNREADABLE", 1)


def one_death_parks_a_run(patch: pytest.MonkeyPatch) -> None:
    """Code that a dying host broke off is taken for the cause at once."""
    patch.setattr(suspects, "MAX_DEATHS", 1)


REDRIVES: Final = st.integers(20, 119).map(
    lambda n: Faults(
        orders=tuple(
            (n / 4 + k, verb) for k, verb in enumerate(("redrive letters", "redrive runs"))
        )
    )
)
"""An operator redrives all dead letters, and then the runs that they are of."""
PLANTED: Final[list[tuple[Any, Callable[..., None], tuple[st.SearchStrategy[Any], ...]]]] = [
    (
        mail_overtakes_what_no_hint_told_of,
        keeps_order,
        (mail_cases(), SEEDS, SUSPENDED, UNRELIABLE),
    ),
    (mail_passes_queued_runs, is_predicted, (cases(), SEEDS, SUSPENDED, st.builds(Faults))),
    (queued_runs_are_overtaken, keeps_order, (mail_cases(), SEEDS, SUSPENDED, UNRELIABLE)),
    (
        timers_are_set_for_any_length,
        silences_nothing,
        (sleeping_cases(), SEEDS, SUSPENDED, STEPPED),
    ),
    (decisions_are_about_nothing, decides_once, (doubtful_cases(), SEEDS, SUSPENDED, ORDERED)),
    (redriven_letters_are_forgotten, decides_once, (doubtful_cases(), SEEDS, SUSPENDED, REDRIVES)),
    (another_server_is_the_same_one, goes_on, (TALK_OR_MAIL, SEEDS, SUSPENDED, BACK)),
    (ends_of_time_overtake_answers, is_one_order, (limit_cases(), SEEDS, SUSPENDED)),
    (refused_questions_stay, keeps_order, (cycle_cases(), SEEDS, SUSPENDED, st.builds(Faults))),
    (runs_are_not_taken_apart, as_predicted, (batch_cases(), SEEDS, SUSPENDED)),
    (unreadable_rows_park_at_once, reads_again, (TALK_OR_MAIL, SEEDS, SUSPENDED, UNREADABLE)),
    (one_death_parks_a_run, outlives_hosts, (cases(), SEEDS, SUSPENDED, BETWEEN)),
    (every_error_has_a_text, as_predicted, (cases(), SEEDS, SUSPENDED)),
    (messages_have_any_size, as_predicted, (talking_cases(), SEEDS, SUSPENDED)),
]


_COUNTS: Final = {as_predicted: COUNT // 2, decides_once: COUNT * 2, is_one_order: LIMITS}


def finds(holds: Callable[..., None], drawn: tuple[Any, ...]) -> bool:
    """Whether something is wrong; a tie is not, an error of any kind is."""
    try:
        holds(*drawn)
    except TieError:
        return False
    except Exception:  # noqa: BLE001 - that is a find
        return True
    return False


@pytest.mark.costly
@pytest.mark.parametrize(
    ("plant", "holds", "strategies"), PLANTED, ids=lambda x: getattr(x, "__name__", "")
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    holds: Callable[..., None],
    strategies: tuple[st.SearchStrategy[Any], ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the fault in place a property fails within its number of programs, without it none does there."""
    count = _COUNTS.get(holds, COUNT)
    programs: st.SearchStrategy[tuple[Any, ...]] = st.tuples(*strategies)
    with monkeypatch.context() as planted:
        plant(planted)
        finding_case = first_drawn(programs, count, 1, lambda drawn: finds(holds, drawn))
    assert finding_case is not None
    assert not finds(holds, finding_case), "it was not the fault that was found"
