"""The suite itself: a fault planted in sessions is found."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._inmemory import conversations as _transcripts
from actors._inmemory import sessions as _sessions
from actors._inmemory.conversations import MemoryTranscripts
from actors._inmemory.runs.rows import MemoryRole
from actors._inmemory.sessions import InMemorySessions
from actors._kernel.agent.agent import SessionChange
from actors._runtime.execution import start as _modes
from actors._runtime.journal.write_set import WriteSet
from actors._runtime.worker.launcher import Launcher
from actors._runtime.worker.mailbox import Holding, Mailbox
from actors._sessions import feed as _feed
from actors._sessions.events import EventCursor
from actors._sessions.feed import SessionFeed
from tests.model.dialogue_program import dialogues
from tests.properties.dialogues import FIXED, fixed_plays, wrong_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from actors._kernel.runtime.commit import Commit
    from actors._kernel.runtime.ids import AgentId
    from actors.sessions import SessionEvent
    from tests.model.dialogue_program import Dialogues

ENOUGH: Final = 150
"""So many random programs have to be enough to find any of the faults."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("collected"),
]


def a_cursor_is_one_too_early(patch: pytest.MonkeyPatch) -> None:
    """A reader that comes back is given its last entry again."""
    early = property(lambda self: max(self.seq, 0))
    patch.setattr(EventCursor, "next_seq", early)


def the_rest_of_an_entry_is_skipped(patch: pytest.MonkeyPatch) -> None:
    """A reader that was cut off among the events of one entry goes on behind all of them."""
    patch.setattr(EventCursor, "next_seq", property(lambda self: self.seq + 1))


def a_half_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Who saw the first event of a fact and then an entry counts as having seen the second."""
    move_past = SessionFeed._move_past

    def whole(self: SessionFeed, found_event: Any) -> SessionEvent:
        self.at = replace(self.at, is_half=False)
        return move_past(self, found_event)

    patch.setattr(SessionFeed, "_move_past", whole)


def only_one_page_is_looked_at(patch: pytest.MonkeyPatch) -> None:
    """The run that is active at a cursor is looked for in the newest facts only."""
    take = SessionFeed.take_position

    async def briefly(self: SessionFeed) -> None:
        at = self.at
        self.at = replace(at, seq=-1, part=None)
        await take(self)
        facts = await self.runtime.store.data.sessions.facts(self.agent, after=at.last_fact - 1)
        if not facts or facts[0].kind != "started":
            self._active = None
        self.at = at

    patch.setattr(SessionFeed, "take_position", briefly)


def runs_that_never_began_leave_no_fact(patch: pytest.MonkeyPatch) -> None:
    """The end of a run that was cancelled in the queue is not told."""
    write = InMemorySessions.write_change

    def begun(self: Any, agent: AgentId, run_id: Any, change: Any, **more: Any) -> None:
        facts = self.records[agent].facts
        is_begun = any(fact.run_id == run_id and fact.kind == "started" for fact in facts)
        if is_begun or "started" in change.facts:
            write(self, agent, run_id, change, **more)

    patch.setattr(InMemorySessions, "write_change", begun)


def heads_are_not_settled(patch: pytest.MonkeyPatch) -> None:
    """A run that has not ended well leaves its last turn as the active node, whoever sees it."""
    patch.setattr(MemoryTranscripts, "settle_head", lambda *_: None)


def paths_reach_too_far(patch: pytest.MonkeyPatch) -> None:
    """A path has the turn behind the one that a branch follows."""

    def is_on(path: Any, ordinal: int) -> bool:
        return any(
            first <= ordinal and (last is None or ordinal <= last + 1) for first, last in path
        )

    patch.setattr(_transcripts, "is_on", is_on)


def the_last_queued_run_is_first(patch: pytest.MonkeyPatch) -> None:
    """A free agent takes the newest of its queue."""
    take = Mailbox.take_next

    def newest(self: Mailbox, *args: Any) -> Any:
        if self.queue and all(item.run_id is not None for _, item in self.queue):
            self.queue.reverse()
            try:
                return take(self, *args)
            finally:
                if self.queue:
                    self.queue.reverse()
        return take(self, *args)

    patch.setattr(Mailbox, "take_next", newest)


def tombstones_lose_the_number(patch: pytest.MonkeyPatch) -> None:
    """A session that begins anew counts its facts from 1."""
    finish = InMemorySessions.finish_delete

    async def forgotten(self: Any, agent: AgentId) -> int:
        rows = await finish(self, agent)
        self.records.pop(agent, None)
        return rows

    patch.setattr(InMemorySessions, "finish_delete", forgotten)


def cuts_stay_on_a_switch(patch: pytest.MonkeyPatch) -> None:
    """A window of one path begins where one of another path did."""
    move = _transcripts._Transcript.move

    def move_and_keep_cut(self: Any, ordinal: int) -> None:
        cut = self.cut
        move(self, ordinal)
        self.cut = cut

    patch.setattr(_transcripts._Transcript, "move", move_and_keep_cut)


def named_parents_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """A run goes on from the active node, whatever its message names."""
    commit = WriteSet.commit

    def headless(self: WriteSet, *args: Any, **more: Any) -> Commit:
        self.head = None
        return commit(self, *args, **more)

    patch.setattr(WriteSet, "commit", headless)


def everybody_is_ahead(patch: pytest.MonkeyPatch) -> None:
    """A run that is submitted counts itself among those before it."""
    add = InMemorySessions._add

    def one_more(self: Any, *args: Any, ahead: int = 0) -> None:
        add(self, *args, ahead=ahead + (args[2] == "queued"))

    patch.setattr(InMemorySessions, "_add", one_more)


def modes_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Every run is executed by the agent of the first mode."""
    patch.setattr(_modes, "_mode_of", lambda *_: None)


def sessions_change_under_their_runs(patch: pytest.MonkeyPatch) -> None:
    """A switch or a deletion is not refused while a run is open."""
    patch.setattr(InMemorySessions, "_refuse_open", lambda *_: None)


def joined_messages_are_told_to_nobody(patch: pytest.MonkeyPatch) -> None:
    """Mail of another process is found when somebody looks."""
    notify = MemoryRole._notify

    def without_mail(self: MemoryRole, nudge: Any) -> None:
        if nudge.kind != "mail":
            notify(self, nudge)

    patch.setattr(MemoryRole, "_notify", without_mail)


def requests_to_stop_are_told_behind_the_end(patch: pytest.MonkeyPatch) -> None:
    """A feed takes facts as they come, also behind the end of a run that was asked to stop before."""

    async def nothing(self: SessionFeed, run_id: Any) -> Any:
        for event in list[Any]():
            yield event

    patch.setattr(SessionFeed, "_before_end", nothing)


def ends_come_before_their_run(patch: pytest.MonkeyPatch) -> None:
    """A feed takes the end of a run for one that was cancelled in the queue."""
    patch.setattr(_feed, "_is_end_of", lambda *_: False)


def an_agent_may_start_twice(patch: pytest.MonkeyPatch) -> None:
    """What was on its way to go on goes on beside what began since."""
    prepare = Launcher.prepare

    async def anyhow(self: Launcher, mailbox: Mailbox) -> Any:
        if mailbox.holding is Holding.EXECUTING:
            mailbox.holding = Holding.READY
        return await prepare(self, mailbox)

    patch.setattr(Launcher, "prepare", anyhow)


def ends_are_told_twice(patch: pytest.MonkeyPatch) -> None:
    """The end of a run is two facts."""
    write = InMemorySessions.write_change

    def twice(self: Any, agent: Any, run_id: Any, change: SessionChange, **more: Any) -> None:
        write(self, agent, run_id, change, **more)
        if "ended" in change.facts:
            write(self, agent, run_id, SessionChange(("ended",)), **more)

    patch.setattr(_sessions.InMemorySessions, "write_change", twice)


PLANTED = [
    a_cursor_is_one_too_early,
    the_rest_of_an_entry_is_skipped,
    a_half_is_forgotten,
    only_one_page_is_looked_at,
    runs_that_never_began_leave_no_fact,
    heads_are_not_settled,
    paths_reach_too_far,
    the_last_queued_run_is_first,
    tombstones_lose_the_number,
    cuts_stay_on_a_switch,
    named_parents_are_ignored,
    everybody_is_ahead,
    modes_are_forgotten,
    sessions_change_under_their_runs,
    joined_messages_are_told_to_nobody,
    requests_to_stop_are_told_behind_the_end,
    ends_come_before_their_run,
    ends_are_told_twice,
    an_agent_may_start_twice,
]


def finds(play: tuple[Dialogues, int, bool]) -> bool:
    """Return whether a play finds something; an error of any kind is a find."""
    program, seed, drops = play
    try:
        return bool(wrong_in(program, seed, drops=drops))
    except Exception:  # noqa: BLE001 - that is a find
        return True


def everywhere() -> Iterator[tuple[Dialogues, int, bool]]:
    """What CI plays, in small: the fixed programs in many interleavings, and random ones."""
    fixed = fixed_plays()
    for seed in range(ENOUGH):
        yield from itertools.islice(fixed, 2 * len(FIXED))
        yield dialogues(seed), seed, seed % 2 == 0


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fault in place some program differs from the model, and without it that one does not."""
    with monkeypatch.context() as planted:
        plant(planted)
        finding_play = next((play for play in everywhere() if finds(play)), None)
    assert finding_play is not None
    assert not finds(finding_play), "it was not the fault that was found"
