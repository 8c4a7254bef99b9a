"""The suite itself: a fault planted in conversations with models is found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from typing_extensions import override

from actors._inmemory import conversations as _transcripts
from actors._inmemory.conversations import MemoryTranscripts
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import NO_CUT, NewTurn
from actors._runtime.replay.history import PAID
from actors._runtime.verbs.call import Call
from actors._runtime.verbs.conversation import history as _history
from actors._runtime.verbs.conversation import windows as _window
from actors._runtime.verbs.conversation.sessions import Sessions
from actors._runtime.verbs.conversation.windows import RecordedCalls
from tests.model.scripted import SESSIONS
from tests.model.strategies import conversation_cases
from tests.properties.conversing import CONVERSING
from tests.properties.test_planted_faults import assert_found, everywhere_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from actors._kernel.agent.models import LLMResponse
    from actors._kernel.agent.transcript import NewCut, SessionView
    from actors._kernel.runtime.ids import AgentId
    from actors._kernel.runtime.log_entry import RunLogEntry

ENOUGH: Final = 40
"""So many random programs, beside the corpus, have to be enough to find any of the faults."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("collected"),
]


def a_replay_appends_again(patch: pytest.MonkeyPatch) -> None:
    """A turn that `ctx.history.append` has added is added once more by a replay, with another id."""

    class Repeated(Call):
        @override
        def meet(self, *args: Any, **kwargs: Any) -> RunLogEntry | None:
            record = super().meet(*args, **kwargs)
            if record is not None:
                again = NewTurn(SESSIONS[0], f"{record.seq} again", ChatMessage.of("user", "1"))
                self.run.log.writes.turns.append(again)
            return record

    patch.setattr(_history, "Call", Repeated)


def known_turns_are_added_again(patch: pytest.MonkeyPatch) -> None:
    """A session keeps a turn twice that was written twice."""
    add = _transcripts._Transcript.add

    def always(self: Any, *args: Any) -> None:
        self.ids.clear()
        add(self, *args)

    patch.setattr(_transcripts._Transcript, "add", always)


def sessions_are_every_agents(patch: pytest.MonkeyPatch) -> None:
    """A window is made of all turns in sessions of that name, whoever's they are."""
    view = MemoryTranscripts.view

    async def any_of_name(
        self: MemoryTranscripts, agent: AgentId, session: str, **more: Any
    ) -> SessionView:
        owners = [owner for owner, name in self.transcripts if name == session]
        return await view(self, owners[0] if owners else agent, session, **more)

    patch.setattr(MemoryTranscripts, "view", any_of_name)


def cuts_are_every_sessions(patch: pytest.MonkeyPatch) -> None:
    """A cut that a run makes in one session counts in the agent's others."""
    write = MemoryTranscripts.write

    def in_all(  # noqa: PLR0917 - as `write`
        self: MemoryTranscripts,
        agent: AgentId,
        run_id: str,
        turns: Iterable[NewTurn],
        cuts: Iterable[NewCut] = (),
    ) -> None:
        names = [name for owner, name in self.transcripts if owner == agent]
        more = [
            replace(cut, session=name, previous=NO_CUT)
            for cut in cuts
            for name in names
            if name != cut.session
        ]
        write(self, agent, run_id, turns, [*cuts, *more])

    patch.setattr(MemoryTranscripts, "write", in_all)


def cuts_reach_too_far(patch: pytest.MonkeyPatch) -> None:
    """The turn behind a cut is in no window any more."""
    new_cut = vars(_window)["new_cut"]

    def farther(*args: Any) -> Any:
        upto, summary = new_cut(*args)
        return (upto if upto == NO_CUT else upto + 1), summary

    patch.setattr(_window, "new_cut", farther)


def unanswered_questions_are_lost(patch: pytest.MonkeyPatch) -> None:
    """What was asked in a call that failed is not kept."""
    keep = Sessions.keep

    def answered(self: Sessions, session: str, turns: Sequence[NewTurn]) -> None:
        if "|" not in turns[-1].message.text:
            keep(self, session, turns)

    patch.setattr(Sessions, "keep", answered)


def turns_follow_their_entries(patch: pytest.MonkeyPatch) -> None:
    """Turns ride with the commit behind that of the entry that makes them durable."""
    late: dict[str, list[tuple[str, Sequence[NewTurn]]]] = {}
    keep = Sessions.keep

    def one_late(self: Sessions, session: str, turns: Sequence[NewTurn]) -> None:
        waiting = late.setdefault(self._run.run_id, [])
        waiting.append((session, turns))
        if len(waiting) > 1:
            keep(self, *waiting.pop(0))

    patch.setattr(Sessions, "keep", one_late)


def ended_runs_leave_turns(patch: pytest.MonkeyPatch) -> None:
    """Turns outlast runs whose agent keeps them for the run only."""
    patch.setattr(MemoryTranscripts, "forget_run", lambda *_: None)


def recorded_summaries_are_bought_again(patch: pytest.MonkeyPatch) -> None:
    """A call that is made again buys the summaries again that are recorded beside it."""
    ask = RecordedCalls.ask

    async def anew(self: RecordedCalls, *args: Any, **options: Any) -> LLMResponse:
        self._run.history.calls.pop(f"{self._position}{PAID}0", None)
        return await ask(self, *args, **options)

    patch.setattr(RecordedCalls, "ask", anew)


PLANTED = [
    a_replay_appends_again,
    known_turns_are_added_again,
    sessions_are_every_agents,
    cuts_are_every_sessions,
    cuts_reach_too_far,
    unanswered_questions_are_lost,
    turns_follow_their_entries,
    ended_runs_leave_turns,
    recorded_summaries_are_bought_again,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fault in place the comparison with the model fails."""
    found_by = everywhere_in(CONVERSING.values(), conversation_cases(), ENOUGH)
    assert_found(plant, found_by, monkeypatch)
