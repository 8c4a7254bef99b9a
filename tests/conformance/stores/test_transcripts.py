"""Conversations: turns are written in commits of runs, once and in order; cuts move a window's start."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.transcript import NO_CUT, NewCut, NewTurn, message_of_turn, turn_id
from actors._kernel.runtime.commit import Conflict, LeaseLost
from actors._kernel.runtime.ids import AgentId
from tests.conformance.bed import DESK, result

if TYPE_CHECKING:
    from actors._kernel.agent.transcript import SessionView, Turn
    from tests.conformance.bed import Bed

OTHER = AgentId("desk", "2")
FOREIGN = AgentId("desk", "1", "acme")


def turn(text: str, session: str = "s", **more: Any) -> NewTurn:
    """A turn of the user, whose id is its text."""
    return NewTurn(session, text, ChatMessage.of("user", text), **more)


def texts(turns: list[Turn]) -> list[str]:
    """Return the texts of turns."""
    return [turn.message.text for turn in turns]


def texts_of_view(view: SessionView) -> list[str]:
    """Return the texts of a view's turns."""
    return [message.text for message in view.messages]


@pytest.mark.item(276, 277, 278, 281, 285)
async def test_turns_are_there_with_their_commit_in_order(bed: Bed) -> None:
    """Ordinals count from 0 without a gap; a page is what it says at both edges."""
    run, store = await bed.begin(), bed.store.data.transcripts
    await run.commit(run.turn(result("0"), turns=(turn("a", tokens=3), turn("b", parent="a"))))
    await run.commit(run.turn(result("1"), turns=(turn("c"),)))

    turns = await store.page(DESK, "s")
    assert [(t.ordinal, t.id, t.run_id) for t in turns] == [
        (0, "a", run.run_id),
        (1, "b", run.run_id),
        (2, "c", run.run_id),
    ]
    assert [(t.tokens, t.parent) for t in turns] == [(3, None), (None, "a"), (None, None)]
    assert await store.count(DESK, "s") == 3
    pages = [await store.page(DESK, "s", limit=2, offset=n) for n in range(5)]
    assert [texts(page) for page in pages] == [["a", "b"], ["b", "c"], ["c"], [], []]
    assert texts(await store.page(DESK, "s", limit=0)) == []
    behind = [await store.page(DESK, "s", limit=2, after=n) for n in range(-1, 4)]
    assert [texts(page) for page in behind] == [["a", "b"], ["b", "c"], ["c"], [], []]
    assert texts(await store.page(DESK, "s", offset=1, after=0)) == ["c"]


@pytest.mark.item(286)
async def test_a_turn_that_is_written_again_is_one(bed: Bed) -> None:
    """In one commit, in the next one, in another run's, and outside of runs."""
    run, store = await bed.begin(), bed.store.data.transcripts
    await run.commit(run.turn(result("0"), turns=(turn("a"), turn("a"), turn("b"))))
    await run.commit(run.turn(result("1"), turns=(turn("b"), turn("c"))))
    await store.append(DESK, [turn("c"), turn("d")])
    await store.append(DESK, [turn("c"), turn("d")])

    turns = await store.page(DESK, "s")
    assert [(t.ordinal, t.id) for t in turns] == list(enumerate("abcd"))


@pytest.mark.item(273)
async def test_sessions_and_agents_and_tenants_are_apart(bed: Bed) -> None:
    """The same id in another session is another turn."""
    store = bed.store.data.transcripts
    for agent in (DESK, OTHER, FOREIGN):
        for session in ("s", "t"):
            new_turn = NewTurn(session, "a", ChatMessage.of("user", f"{agent} {session}"))
            await store.append(agent, [new_turn])

    for agent in (DESK, OTHER, FOREIGN):
        for session in ("s", "t"):
            assert texts(await store.page(agent, session)) == [f"{agent} {session}"]
    await store.clear(DESK, "s")
    counts = [await store.count(a, s) for a in (DESK, OTHER, FOREIGN) for s in ("s", "t")]
    assert counts == [0, 1, 1, 1, 1, 1]


async def test_a_commit_that_is_refused_adds_no_turn(bed: Bed) -> None:
    """For a wrong last seq of the log, and for a host that lost the shard."""
    run = await bed.begin()
    late = run.turn(result("0"), turns=(turn("late"),), cuts=(NewCut("s", 0, NO_CUT, "Cut"),))
    await run.commit(run.turn(result("0"), turns=(turn("a"),)))
    assert isinstance(await run.send(late), Conflict)
    assert texts(await bed.store.data.transcripts.page(DESK, "s")) == ["a"]
    async with bed.rival() as rival:
        await bed.lose_to(rival)
        frozen = run.turn(result("1"), turns=(turn("frozen"),), clear_turns=True)
        assert isinstance(await run.send(frozen), LeaseLost)
        assert texts(await rival.store.data.transcripts.page(DESK, "s")) == ["a"]


@pytest.mark.item(257, 258, 282)
async def test_a_cut_moves_the_view_and_changes_no_turn(bed: Bed) -> None:
    """The view starts after the cut, with its summary. The transcript is unchanged."""
    run, store = await bed.begin(), bed.store.data.transcripts
    new_turns = tuple(turn(text) for text in "abcde")
    summary = ChatMessage.of("user", "what was said")
    await run.commit(run.turn(result("0"), turns=new_turns[:4]))
    before = await store.page(DESK, "s")
    first = NewCut("s", 1, NO_CUT, "SummarizationCompaction", summary)
    await run.commit(run.turn(result("1"), turns=new_turns[4:], cuts=(first,)))

    view = await store.view(DESK, "s", limit=10)
    assert view.cut is not None
    assert (view.cut.upto, view.cut.strategy) == (1, "SummarizationCompaction")
    behind = (await store.page(DESK, "s"))[2:]
    assert view.messages == tuple(map(message_of_turn, behind))
    assert view.ordinals == {t.id: t.ordinal for t in behind}
    assert (view.cut.summary, view.cut.run_id) == (summary, run.run_id)
    assert (texts_of_view(view), view.count) == (["c", "d", "e"], 5)
    assert texts_of_view(await store.view(DESK, "s", limit=2)) == ["d", "e"]
    whole = await store.view(DESK, "s", limit=4, whole=True)
    assert (whole.cut, texts_of_view(whole)) == (view.cut, ["b", "c", "d", "e"])
    assert (await store.page(DESK, "s"))[:4] == before


@pytest.mark.item(257)
async def test_a_cut_has_the_changes_of_turns_behind_it(bed: Bed) -> None:
    """A turn with other content, and one that is left out; also if nothing is left out at the beginning.

    The changes go with any turn of the session, because they repeat what turns said.
    """
    run, store = await bed.begin(), bed.store.data.transcripts
    new_turns = tuple(turn(text) for text in "abcd")
    await run.commit(run.turn(result("0"), turns=new_turns))
    await store.append(DESK, [turn("z")], run_id="late")
    short = ChatMessage.of("tool", "b…\x00")
    changes = {new_turns[1].id: short, new_turns[2].id: None}
    first = NewCut("s", NO_CUT, NO_CUT, "Cut", None, changes)
    await run.commit(run.turn(result("1"), cuts=(first,)))
    view = await store.view(DESK, "s", limit=9)
    assert (view.cut and (view.cut.upto, view.cut.changes)) == (NO_CUT, changes)
    assert texts_of_view(view) == ["a", "b", "c", "d", "z"]

    second = NewCut("s", 0, NO_CUT, "Cut", None, {new_turns[3].id: None})
    await run.commit(run.turn(result("2"), cuts=(second,)))
    view = await store.view(DESK, "s", limit=9)
    assert (view.cut and (view.cut.upto, view.cut.changes)) == (0, {new_turns[3].id: None})
    await store.clear_run(DESK, "s", "late")
    view = await store.view(DESK, "s", limit=9)
    assert (view.cut and (view.cut.upto, view.cut.changes)) == (0, {})


async def test_a_cut_counts_only_behind_the_one_that_its_run_saw(bed: Bed) -> None:
    """Of two concurrent cuts the first is kept. A cut beyond the last turn is ignored."""
    run, store = await bed.begin(), bed.store.data.transcripts
    await run.commit(run.turn(result("0"), turns=tuple(turn(text) for text in "abcd")))
    for number, (upto, previous) in enumerate(((1, NO_CUT), (2, NO_CUT), (9, 1))):
        cut = NewCut("s", upto, previous, f"Cut{number}")
        await run.commit(run.turn(result(f"{number + 1}"), cuts=(cut,)))

    view = await store.view(DESK, "s", limit=10)
    assert view.cut is not None
    assert (view.cut.upto, view.cut.strategy) == (1, "Cut0")
    await run.commit(run.turn(result("9"), cuts=(NewCut("s", 2, 1, "Cut3"),)))
    assert texts_of_view(await store.view(DESK, "s", limit=10)) == ["d"]


@pytest.mark.item(268, 280)
async def test_the_end_of_a_run_can_take_its_turns_along(bed: Bed) -> None:
    """Those of the last commit, too, from each session. Other runs' turns stay, in order."""
    first, store = await bed.begin(), bed.store.data.transcripts
    await store.append(DESK, [turn("before"), turn("u", session="own")])
    mine = (turn("a"), turn("b", session="own"), turn("c", session="new"))
    await first.commit(first.turn(result("0"), turns=mine))
    await store.append(DESK, [turn("between")])
    await first.complete("done", turns=(turn("last"),), clear_turns=True)

    assert texts(await store.page(DESK, "s")) == ["before", "between"]
    assert texts(await store.page(DESK, "own")) == ["u"]
    assert [session.name for session in await store.sessions(DESK)] == ["s", "own"]
    await store.append(DESK, [turn("after")])
    ordinals = [t.ordinal for t in await store.page(DESK, "s")]
    assert ordinals == sorted(set(ordinals))


@pytest.mark.item(279, 280)
async def test_a_summary_goes_with_what_it_stands_for(bed: Bed) -> None:
    """A cut stays if only turns after it were deleted."""
    store = bed.store.data.transcripts
    run = await bed.begin()
    await store.append(DESK, [turn("x"), turn("y")], run_id="early")
    cut = NewCut("s", 2, NO_CUT, "Cut", ChatMessage.of("user", "so far"))
    await run.commit(run.turn(result("0"), turns=(turn("a"), turn("b"))))
    await run.commit(run.turn(result("1"), cuts=(cut,)))
    await store.append(DESK, [turn("z")], run_id="late")

    await store.clear_run(DESK, "s", "late")
    assert (await store.view(DESK, "s", limit=9)).cut is not None
    await store.clear_run(DESK, "s", "early")
    view = await store.view(DESK, "s", limit=9)
    assert (view.cut, texts_of_view(view), view.count) == (None, ["a", "b"], 2)


async def test_what_was_said_comes_back_as_it_came(bed: Bed) -> None:
    """Unknown blocks, signatures, numbers, odd text and the order of keys."""
    block = ContentBlock.model_validate(
        {
            "type": "thinking",
            "signature": "aGk=",
            "z": 1.0,
            "a": [{"k": None}, 10**30, "\u2028'\\"],
            "text": "😀 \n 'quoted' {\"json\": 1}",
        }
    )
    message = ChatMessage(
        role="assistant", content=[block], name="tutor", metadata={"turn": "t", "k": "'\""}
    )
    await bed.store.data.transcripts.append(DESK, [NewTurn("s '\"", "t", message)])

    [stored] = await bed.store.data.transcripts.page(DESK, "s '\"")
    assert stored.message == message
    assert stored.message.model_dump_json() == message.model_dump_json()


async def test_writers_of_one_session_leave_no_gap(bed: Bed) -> None:
    """A run and other writers: each turn has its own number."""
    run, store = await bed.begin(), bed.store.data.transcripts

    async def beside(n: int) -> None:
        await store.append(DESK, [turn(f"{n}.{k}") for k in range(5)], run_id=f"o{n}")

    async with asyncio.TaskGroup() as group:
        for n in range(6):
            group.create_task(beside(n))
        for n in range(6):
            await run.commit(run.turn(result(str(n)), turns=(turn(f"r.{n}"),)))
    turns = await store.page(DESK, "s")
    assert [t.ordinal for t in turns] == list(range(36))
    for n in range(6):
        own = [t.id for t in turns if t.id.startswith(f"{n}.")]
        assert own == [f"{n}.{k}" for k in range(5)]


async def test_what_is_added_while_a_session_is_cleared_is_gone_or_there(bed: Bed) -> None:
    """A batch is stored or deleted whole, the counters are right, and the session continues."""
    store = bed.store.data.transcripts

    async def add(n: int) -> None:
        await store.append(DESK, [turn(f"{n}.{k}") for k in range(3)], run_id=f"r{n}")

    async def take(n: int, *, whole: bool) -> None:
        await (store.clear(DESK, "s") if whole else store.clear_run(DESK, "s", f"r{n}"))

    for each in range(80):
        async with asyncio.TaskGroup() as group:
            for n in range(8):
                group.create_task(add(n))
                group.create_task(take(n, whole=bool(each % 2 and n % 2)))
        turns = await store.page(DESK, "s")
        assert await store.count(DESK, "s") == len(turns)
        whole = {t.id.partition(".")[0] for t in turns}
        assert {t.id for t in turns} == {f"{n}.{k}" for n in whole for k in range(3)}
    await store.append(DESK, [turn("after")])
    assert (await store.page(DESK, "s"))[-1].id == "after"


async def test_lists_count_turns_and_tokens(bed: Bed) -> None:
    """The session that was written last comes first."""
    store = bed.store.data.transcripts
    for session, tokens in (("old", 2), ("new", 5)):
        await store.append(DESK, [turn(f"{n}", session=session, tokens=tokens) for n in range(2)])
    await store.append(DESK, [turn("x", session="old")])

    sessions = await store.sessions(DESK)
    assert {(s.name, s.turns, s.tokens) for s in sessions} == {("old", 3, 4), ("new", 2, 10)}
    assert all(s.first_at <= s.last_at for s in sessions)
    assert len(await store.sessions(DESK, limit=1)) == 1
    assert await store.sessions(OTHER) == []


def test_a_turns_id_is_that_of_its_place() -> None:
    """It depends on run, position and number only."""
    ids = [turn_id(run, position, n) for run in "ab" for position in ("1", "1.0") for n in (0, 1)]
    assert len(set(ids)) == len(ids)
    assert turn_id("a", "1", 0) == ids[0]


@pytest.mark.item(285)
async def test_a_large_turn_comes_back_as_it_came(bed: Bed) -> None:
    """Of a commit, or without a run; beside small ones, repeated, and deleted with its session."""
    run, store = await bed.begin(), bed.store.data.transcripts
    large, huge = "é" * 200_000 + "\x00", "x" * 1_000_000
    new_turns = (turn("a"), NewTurn("s", "b", ChatMessage.of("user", large), tokens=7), turn("c"))
    await run.commit(run.turn(result("0"), turns=new_turns))
    for _ in range(2):
        await store.append(DESK, [NewTurn("s", "d", ChatMessage.of("tool", huge))])

    assert texts(await store.page(DESK, "s")) == ["a", large, "c", huge]
    view = await store.view(DESK, "s", limit=3)
    assert texts_of_view(view) == [large, "c", huge]
    assert (view.messages[0].metadata["tokens"], view.messages[2].role) == ("7", "tool")
    assert texts(await store.page(FOREIGN, "s")) == []
    await store.clear_run(DESK, "s", run.run_id)
    assert texts(await store.page(DESK, "s")) == [huge]
