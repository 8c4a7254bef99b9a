"""Branches of session conversations: nodes, the active path, and the cuts on it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.agent import ROOT, SessionChange
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import NO_CUT, NewCut, NewTurn
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.administration import EraseRequest
from actors._kernel.stores.errors import SessionDeletingError, UnknownNodeError
from actors._runtime.sharding.retention import Erasing
from tests.conformance.bed import Turns, result, started
from tests.conformance.run_store.test_sessions import CHAT, ENDED, begin, node, said, submit

if TYPE_CHECKING:
    from tests.conformance.bed import Bed


async def ids(bed: Bed, agent: AgentId = CHAT, **page: Any) -> str:
    """Return the ids of a page's nodes as one word."""
    return "".join(
        turn.id for turn in await bed.store.data.transcripts.page(agent, agent.key, **page)
    )


async def active(bed: Bed, agent: AgentId = CHAT) -> str:
    """Return the ids on the active path, after checking that all reads agree; the last one is the head."""
    store, transcripts = bed.store.data.sessions, bed.store.data.transcripts
    path = await store.path(agent)
    word = "".join(turn.id for turn in path)
    parents = [turn.parent for turn in path]
    assert parents == [None, *word][: len(word)]
    assert await ids(bed, agent) == word
    assert await transcripts.count(agent, agent.key) == len(word)
    view = await transcripts.view(agent, agent.key, limit=100, whole=True)
    assert "".join(view.ordinals) == word
    assert {turn.id: turn.ordinal for turn in path} == dict(view.ordinals)
    row = await store.get(agent)
    assert row is not None
    assert (row.head or "") == word[-1:]
    assert path == await store.nodes(agent, [*word, "unknown", *word])
    return word


async def window(bed: Bed, **view: Any) -> tuple[str | None, str]:
    """Return the strategy of the valid cut, and the ids after it."""
    view_read = await bed.store.data.transcripts.view(CHAT, CHAT.key, **{"limit": 100, **view})
    return None if view_read.cut is None else view_read.cut.strategy, "".join(view_read.ordinals)


@pytest.mark.item(376, 381)
async def test_what_is_said_after_a_switch_begins_a_branch(bed: Bed) -> None:
    """The nodes after the active one stay. They are read again when one of them becomes active."""
    store = bed.store.data.sessions
    await said(bed, *"abcd")
    assert await active(bed) == "abcd"
    await store.switch(CHAT, "b")
    assert await active(bed) == "ab"
    await said(bed, *"ef")
    assert await active(bed) == "abef"
    await store.switch(CHAT, "e")
    await said(bed, *"gh")
    assert await active(bed) == "abegh"
    await store.switch(CHAT, "d")
    assert await active(bed) == "abcd"
    await said(bed, "i")
    await store.switch(CHAT, "f")
    await said(bed, "j")
    assert await active(bed) == "abefj"
    await store.switch(CHAT, "i")

    assert await active(bed) == "abcdi"
    assert await ids(bed, branches=True) == "abcdefghij"
    view = await bed.store.data.transcripts.view(CHAT, CHAT.key, limit=3)
    assert ("".join(view.ordinals), view.count) == ("cdi", 10)
    nodes = await store.nodes(CHAT, list("jaegx"))
    assert [(n.id, n.parent) for n in nodes] == [("a", None), ("e", "b"), ("g", "e"), ("j", "f")]
    assert [n.ordinal for n in nodes] == [0, 4, 6, 9]


@pytest.mark.item(376)
@pytest.mark.parametrize("odd", ["a\0b", "x\ud800", "x" * 3_000, ""])
async def test_odd_text_is_the_id_of_no_node(bed: Bed, odd: str) -> None:
    """As any other unknown id, also where the database would refuse the text."""
    store = bed.store.data.sessions
    await said(bed, "a")
    assert [n.id for n in await store.nodes(CHAT, ["a", odd])] == ["a"]
    with pytest.raises(UnknownNodeError):
        await store.switch(CHAT, odd)


async def test_a_branch_may_begin_with_its_first_node(bed: Bed) -> None:
    """Later branches may start at a branch's first node. After a switch to the last node no branch starts."""
    store = bed.store.data.sessions
    await said(bed, *"abc")
    await store.switch(CHAT, "c")
    await said(bed, "d")
    assert await active(bed) == "abcd"
    await store.switch(CHAT, "b")
    await store.switch(CHAT, "d")
    await said(bed, "e")
    assert await active(bed) == "abcde"
    for n in range(5):
        await store.switch(CHAT, "a")
        await said(bed, f"{n}")
        assert await active(bed) == f"a{n}"
    await store.switch(CHAT, "1")
    assert await active(bed) == "a1"


@pytest.mark.item(381)
async def test_a_conversation_begins_anew_from_the_root(bed: Bed) -> None:
    """By a switch, or by a run that names the root. Cuts of other paths do not apply, and all nodes stay."""
    store = bed.store.data.sessions
    await said(bed, *"abcd")
    await (await begin(bed)).complete(cuts=(NewCut(CHAT.key, 1, NO_CUT, "cut"),), session=ENDED)
    await store.switch(CHAT, ROOT)
    assert await active(bed) == ""
    assert await window(bed) == (None, "")
    await store.switch(CHAT, "c")
    assert await window(bed) == ("cut", "c")
    await store.switch(CHAT, ROOT)
    await store.switch(CHAT, ROOT)
    await said(bed, *"ef")
    assert await active(bed) == "ef"
    run = Turns(bed, (await submit(bed)).run_id, CHAT)
    await run.commit(run.turn(started(CHAT), session=SessionChange(("started",), head=ROOT)))
    assert await active(bed) == ""
    await run.complete(turns=(node("g"),), session=ENDED)
    assert await active(bed) == "g"
    await store.switch(CHAT, "f")
    await said(bed, "h")

    assert await active(bed) == "efh"
    nodes = await store.nodes(CHAT, list("aegh"))
    assert [n.parent for n in nodes] == [None, None, None, "f"]
    await store.switch(CHAT, "d")
    assert await active(bed) == "abcd"


@pytest.mark.item(381)
async def test_a_conversation_without_nodes_has_a_root(bed: Bed) -> None:
    """The first run may name it."""
    run = Turns(bed, (await submit(bed)).run_id, CHAT)
    change = SessionChange(("started",), head=ROOT)
    await run.commit(run.turn(started(CHAT), session=change, turns=(node("a"),)))
    await run.complete(turns=(node("b"),), session=ENDED)
    assert await active(bed) == "ab"


async def test_a_page_of_a_path_is_what_it_says_at_both_edges(bed: Bed) -> None:
    """By numbers, and after an ordinal that is not on the path."""
    await said(bed, *"abcd")
    await bed.store.data.sessions.switch(CHAT, "b")
    await said(bed, *"ef")

    pages = [await ids(bed, limit=2, offset=n) for n in range(6)]
    assert pages == ["ab", "be", "ef", "f", "", ""]
    behind = [await ids(bed, limit=2, after=n) for n in range(-1, 7)]
    assert behind == ["ab", "be", "ef", "ef", "ef", "f", "", ""]
    assert await ids(bed, limit=0) == ""
    assert await ids(bed, offset=1, after=0) == "ef"
    assert [await ids(bed, limit=2, after=n, branches=True) for n in (-1, 1, 3)] == [
        "ab",
        "cd",
        "ef",
    ]


async def test_a_run_goes_on_from_the_node_that_it_names(bed: Bed) -> None:
    """The same commit adds turns there. If the node does not exist they follow the head."""
    await said(bed, *"abcd")
    run = Turns(bed, (await submit(bed)).run_id, CHAT)
    change = SessionChange(("started",), head="b")
    await run.commit(run.turn(started(CHAT), session=change, turns=(node("e"),)))
    assert await active(bed) == "abe"
    await run.complete(turns=(node("f"),), session=ENDED)
    assert await active(bed) == "abef"
    other = Turns(bed, (await submit(bed)).run_id, CHAT)
    await other.commit(other.turn(started(CHAT), session=SessionChange(("started",), head="d")))
    assert await active(bed) == "abcd"
    await other.commit(other.turn(result("0"), turns=(node("g"),)))
    last = other.turn(result("1"), session=SessionChange((), head="unknown"), turns=(node("h"),))
    await other.commit(last)

    assert await active(bed) == "abcdgh"
    assert await ids(bed, branches=True) == "abcdefgh"


@pytest.mark.item(377)
@pytest.mark.parametrize("end", ["fail", "cancel"])
async def test_an_end_without_success_goes_back_to_what_a_user_has_seen(bed: Bed, end: str) -> None:
    """The head moves to the run's last visible node. Without one the head stays."""
    await said(bed, "a")
    run = await begin(bed)
    empty = NewTurn(CHAT.key, "d", ChatMessage(role="assistant"))
    turns = (node("b"), node("c", role="assistant"), empty, node("e", role="tool"))
    await run.commit(run.turn(result("0"), turns=turns))
    await run.commit(run.turn(result("1"), turns=(node("f", role="system"),)))
    await getattr(run, end)("no", session=ENDED)
    assert await active(bed) == "abc"
    queued = Turns(bed, (await submit(bed)).run_id, CHAT)
    await queued.cancel("no", session=ENDED)
    silent = await begin(bed)
    await silent.commit(silent.turn(result("0"), turns=(node("g", role="tool"),)))
    await getattr(silent, end)("no", session=ENDED)
    assert await active(bed) == "abcg"
    await said(bed, "h")
    assert await active(bed) == "abcgh"
    assert await ids(bed, branches=True) == "abcdefgh"


async def test_a_cut_holds_on_the_paths_of_its_last_node(bed: Bed) -> None:
    """Windows of other paths start with the cut before it, which is valid again on its path."""
    store = bed.store.data.sessions
    await said(bed, *"abcdef")
    for n, (upto, previous) in enumerate(((0, NO_CUT), (3, 0))):
        run = await begin(bed)
        summary = ChatMessage.of("user", f"summary {n}")
        cuts = (NewCut(CHAT.key, upto, previous, f"{n}", summary),)
        await run.complete(cuts=cuts, session=ENDED)
    assert await window(bed) == ("1", "ef")
    await store.switch(CHAT, "c")
    assert await window(bed) == ("0", "bc")
    await said(bed, *"gh")
    assert await window(bed) == ("0", "bcgh")
    assert await window(bed, whole=True) == ("0", "abcgh")
    run = await begin(bed)
    bad, late = NewCut(CHAT.key, 4, 0, "off"), NewCut(CHAT.key, 99, 0, "late")
    await run.commit(run.turn(result("0"), cuts=(bad,)))
    await run.commit(run.turn(result("1"), cuts=(late,)))
    await run.complete(cuts=(NewCut(CHAT.key, 6, 0, "2"),), session=ENDED)
    assert await window(bed) == ("2", "h")
    await store.switch(CHAT, "a")
    assert await window(bed) == ("0", "")
    await store.switch(CHAT, "f")
    assert await window(bed) == ("1", "ef")
    view = await bed.store.data.transcripts.view(CHAT, CHAT.key, limit=9)
    assert view.cut is not None
    assert view.cut.summary == ChatMessage.of("user", "summary 1")
    await store.switch(CHAT, "h")
    assert await window(bed) == ("2", "h")
    await store.switch(CHAT, "e")
    assert await window(bed) == ("1", "e")


async def test_nodes_that_are_taken_out_leave_their_branches(bed: Bed) -> None:
    """Later nodes follow the remaining ones before them."""
    store, transcripts = bed.store.data.sessions, bed.store.data.transcripts
    await said(bed, *"abcd")
    await store.switch(CHAT, "b")
    first = await said(bed, "e")
    await said(bed, "f")
    await store.switch(CHAT, "e")
    await said(bed, "g")
    await transcripts.clear_run(CHAT, CHAT.key, first.run_id)
    assert await active(bed) == "abg"
    await store.switch(CHAT, "f")
    assert await active(bed) == "abf"
    last = await said(bed, *"hi")
    await transcripts.clear_run(CHAT, CHAT.key, last.run_id)
    assert await active(bed) == "abf"
    await said(bed, "j")
    assert await active(bed) == "abfj"
    [turn] = await store.nodes(CHAT, ["g"])
    assert turn.parent == "b"


async def test_a_conversation_that_is_cleared_begins_anew(bed: Bed) -> None:
    """It has no path, branches or cuts."""
    store, transcripts = bed.store.data.sessions, bed.store.data.transcripts
    for clears in (True, False):
        first = await said(bed, *"abcd")
        await store.switch(CHAT, "b")
        run = await begin(bed)
        cuts = (NewCut(CHAT.key, 0, NO_CUT, "0"),)
        await run.complete(cuts=cuts, turns=(node("e"),), session=ENDED)
        if clears:
            await transcripts.clear(CHAT, CHAT.key)
        else:
            for written_run in (first, run):
                await transcripts.clear_run(CHAT, CHAT.key, written_run.run_id)
        assert await active(bed) == ""
    await said(bed, *"xyz")
    assert await active(bed) == "xyz"
    await store.switch(CHAT, "y")
    assert (await active(bed), await window(bed)) == ("xy", (None, "xy"))


async def test_an_erased_agent_leaves_nothing_of_its_session(bed: Bed) -> None:
    """New facts count from 1. Another tenant's session with the same id stays."""
    store, other = bed.store.data.sessions, AgentId("desk", "chat", "acme")
    for agent in (CHAT, other):
        await said(bed, *"abc", agent=agent)
        await store.switch(agent, "b")
        await said(bed, "d", agent=agent)
    while (await bed.store.retention.forget_agent(CHAT, limit=2)).more:
        pass
    assert (await store.get(CHAT), await store.facts(CHAT), await store.path(CHAT)) == (
        None,
        [],
        [],
    )
    await said(bed, *"xy")

    assert [fact.number for fact in await store.facts(CHAT)] == [1, 2, 3]
    assert await active(bed) == "xy"
    assert await active(bed, other) == "abd"
    assert len(await store.facts(other)) == 6


@pytest.mark.parametrize("is_whole", [False, True])
async def test_an_erase_counts_sessions_and_their_facts(bed: Bed, is_whole: bool) -> None:
    """Of an agent or of its tenant only. The erase removes what the preview counted."""
    store, other = bed.store.data.sessions, AgentId("desk", "chat", "acme")
    for agent in (CHAT, other):
        await said(bed, *"ab", agent=agent)
    what = EraseRequest(tenant="default", agent=None if is_whole else CHAT)
    preview = await Erasing(bed.store, what).preview(datetime.now(UTC))
    report = await Erasing(bed.store, what).run(datetime.now(UTC))

    assert report.counts["sessions"] == preview.counts["sessions"] == {"facts": 3, "sessions": 1}
    assert (await store.get(CHAT), await store.facts(CHAT)) == (None, [])
    assert (len(await store.facts(other)), await active(bed, other)) == (3, "ab")
    assert (await Erasing(bed.store, what).run(datetime.now(UTC))).total == 0


async def test_a_session_that_is_deleted_outlives_the_erase_of_its_agent(bed: Bed) -> None:
    """It refuses runs until its deletion is done and keeps its number. An erase of the tenant deletes it."""
    store = bed.store.data.sessions
    await said(bed, "a")
    assert await store.begin_delete(CHAT)
    agents = EraseRequest(tenant="default", agent=CHAT)
    await Erasing(bed.store, agents).run(datetime.now(UTC))
    assert await store.path(CHAT) == []
    with pytest.raises(SessionDeletingError):
        await submit(bed)
    assert await store.finish_delete(CHAT) == 4
    await said(bed, "b")
    assert [fact.number for fact in await store.facts(CHAT)] == [4, 5, 6]

    assert await store.begin_delete(CHAT)
    await Erasing(bed.store, EraseRequest(tenant="default")).run(datetime.now(UTC))
    assert not await store.begin_delete(CHAT)
    await said(bed, "c")
    assert [fact.number for fact in await store.facts(CHAT)] == [1, 2, 3]
