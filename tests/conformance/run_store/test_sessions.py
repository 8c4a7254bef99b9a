"""Sessions: facts of their runs, written in the commits that cause them; deletion; tails."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._kernel.agent.agent import NewSession, SessionChange
from actors._kernel.agent.message import ChatMessage, MessageKey
from actors._kernel.agent.transcript import NewTurn
from actors._kernel.runtime.commit import Committed, Conflict, LeaseLost
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.errors import (
    SessionActiveError,
    SessionDeletingError,
    UnknownNodeError,
    UnknownSessionError,
)
from actors.errors import RunConflictError
from tests.conformance.bed import DESK, Turns, message, result, started

if TYPE_CHECKING:
    from actors._kernel.stores.conversations import SessionFact
    from actors._kernel.stores.runs import Submitted
    from tests.conformance.bed import Bed

CHAT: Final = AgentId("desk", "chat")
FOREIGN: Final = AgentId("desk", "chat", "acme")
NEW: Final = NewSession("project")
STARTED: Final = SessionChange(("started",))
ENDED: Final = SessionChange(("ended",))
HOSTILE: Final = ("a/b//", "~user", "50 %", "%2F", "ünï 😀 \u2028", "'\"\\", "x" * 256, "s:t", ".")


async def submit(bed: Bed, agent: AgentId = CHAT, **parts: Any) -> Submitted:
    """Submit a run of a session."""
    return await bed.submit(agent=agent, session=NEW, **parts)


async def begin(bed: Bed, agent: AgentId = CHAT, **parts: Any) -> Turns:
    """Start a run of a session."""
    run = Turns(bed, (await submit(bed, agent)).run_id, agent)
    await run.commit(run.turn(started(agent), session=STARTED, **parts))
    return run


async def said(bed: Bed, *texts: str, agent: AgentId = CHAT) -> Turns:
    """Complete a run that added these nodes."""
    run = await begin(bed, agent)
    await run.complete(turns=tuple(node(text, agent) for text in texts), session=ENDED)
    return run


def node(text: str, agent: AgentId = CHAT, role: Any = "user") -> NewTurn:
    """Return a turn of a session, whose id is its text."""
    return NewTurn(agent.key, text, ChatMessage.of(role, text))


async def kinds(bed: Bed, agent: AgentId = CHAT) -> list[str]:
    """Return the kinds of the facts, whose numbers have no gap."""
    facts = await bed.store.data.sessions.facts(agent)
    first = facts[0].number if facts else 1
    assert [fact.number for fact in facts] == list(range(first, first + len(facts)))
    assert all(earlier.at <= later.at for earlier, later in pairwise(facts))
    return [fact.kind for fact in facts]


@pytest.mark.item(366, 370, 375)
async def test_facts_tell_of_submits_starts_and_ends_in_order(bed: Bed) -> None:
    """A fact of a queued run has the number of open runs before it.

    A run that never started has an end, too.
    """
    store = bed.store.data.sessions
    runs = [(await submit(bed, id=f"m{n}")).run_id for n in range(3)]
    first, second = (Turns(bed, run_id, CHAT) for run_id in runs[:2])
    await first.commit(first.turn(started(CHAT), session=STARTED))
    await first.complete(session=ENDED)
    await second.cancel("no more", session=ENDED)
    last = await submit(bed, id="m3")

    facts = await store.facts(CHAT)
    assert [(fact.kind, fact.run_id, fact.ahead) for fact in facts] == [
        ("queued", runs[0], 0),
        ("queued", runs[1], 1),
        ("queued", runs[2], 2),
        ("started", runs[0], 0),
        ("ended", runs[0], 0),
        ("ended", runs[1], 0),
        ("queued", last.run_id, 1),
    ]
    assert [fact.number for fact in facts] == list(range(1, 8))
    assert await store.queued(CHAT, runs[2]) == facts[2]
    assert await store.queued(FOREIGN, runs[2]) is None
    row = await store.get(CHAT)
    assert row is not None
    assert (row.agent_id, row.project, row.last_fact, row.open_runs) == (CHAT, NEW.project, 7, 2)
    assert (row.head, row.created_at, row.last_at) == (None, facts[0].at, facts[-1].at)


async def test_sessions_are_listed_by_their_last_fact(bed: Bed) -> None:
    """Sessions of one type and tenant, in pages."""
    store = bed.store.data.sessions
    agents = [AgentId("desk", f"{n}") for n in range(5)]
    others = [AgentId("clerk", "0"), AgentId("desk", "0", "acme")]
    for agent in (*agents, *others):
        await said(bed, "hello", agent=agent)
    await submit(bed, agents[2])

    rows = await store.recent("default", "desk")
    assert {row.agent_id for row in rows} == set(agents)
    assert all(newer.last_at >= older.last_at for newer, older in pairwise(rows))
    assert {row.agent_id: row.open_runs for row in rows}[agents[2]] == 1
    assert {row.head for row in rows} == {"hello"}
    assert rows[0] == await store.get(rows[0].agent_id)
    assert len(await store.recent("default", "desk", limit=2)) == 2
    before = await store.recent("default", "desk", before=rows[0].last_at)
    assert before == [row for row in rows if row.last_at < rows[0].last_at]
    assert [row.agent_id for row in await store.recent("acme", "desk")] == [others[1]]
    assert await store.recent("acme", "clerk") == []


async def test_facts_of_submits_at_once_have_no_gap(bed: Bed) -> None:
    """Of two tenants, beside runs that start and end."""

    async def run(n: int, agent: AgentId) -> None:
        await said(bed, f"{n}", agent=agent) if n % 2 else await submit(bed, agent, id=f"m{n}")

    async with asyncio.TaskGroup() as group:
        for n in range(20):
            for agent in (CHAT, FOREIGN):
                alone = agent if n % 2 == 0 else AgentId("desk", f"{n}", agent.tenant)
                group.create_task(run(n, alone))
    for agent in (CHAT, FOREIGN):
        assert await kinds(bed, agent) == ["queued"] * 10
        facts = await bed.store.data.sessions.facts(agent)
        assert [fact.ahead for fact in facts] == list(range(10))
        assert len({fact.run_id for fact in facts}) == 10
    assert await kinds(bed, AgentId("desk", "3")) == ["queued", "started", "ended"]


async def test_a_submit_that_is_sent_again_is_one_fact(bed: Bed) -> None:
    """For concurrent and for later calls."""
    submits = await asyncio.gather(*(submit(bed, id="m") for _ in range(4)))
    await submit(bed, id="m")

    assert len({s.run_id for s in submits}) == 1
    assert await kinds(bed) == ["queued"]


async def test_what_makes_no_run_is_no_fact(bed: Bed) -> None:
    """Joined and refused submits write none.

    An interrupting submit is queued behind the run that has to stop.
    """
    run = await begin(bed)
    joined = await submit(bed, on_conflict="join")
    with pytest.raises(RunConflictError):
        await submit(bed, on_conflict="reject")
    assert (joined.run_id, await kinds(bed)) == (run.run_id, ["queued", "started"])
    await submit(bed, on_conflict="interrupt")
    assert await kinds(bed) == ["queued", "started", "cancelling", "queued"]
    other = AgentId("desk", "2")
    await submit(bed, other, sender="ext:shop", is_apart=True, on_conflict="interrupt")
    assert await kinds(bed, other) == ["queued"]


async def test_a_submit_without_a_session_leaves_no_row(bed: Bed) -> None:
    """Nor does its run."""
    run = await bed.begin(agent=CHAT)
    await run.complete()

    assert await bed.store.data.sessions.get(CHAT) is None
    assert await bed.store.data.sessions.recent("default", "desk") == []
    assert await kinds(bed) == []


async def test_a_commit_that_is_refused_writes_no_fact(bed: Bed) -> None:
    """A repeated commit writes no further facts."""
    run = await begin(bed)
    late = run.turn(result("0"), session=ENDED)
    await run.commit(run.turn(result("0")))
    assert isinstance(await run.send(late), Conflict)
    assert await kinds(bed) == ["queued", "started"]
    async with bed.rival() as rival:
        await bed.lose_to(rival)
        assert isinstance(await run.send(run.turn(result("1"), session=ENDED)), LeaseLost)
        assert await kinds(rival) == ["queued", "started"]


async def test_a_run_of_waiting_messages_makes_its_session(bed: Bed) -> None:
    """The session has no queue fact and no project."""
    await bed.store.arrivals.deliver([message(id="m", to=CHAT)])
    key = MessageKey(CHAT, "client:tests", "m")
    run, new = bed.turns_of_mail(key)
    outcome = await run.send(run.turn(started(CHAT), create=new, bind=(key,), session=STARTED))
    assert isinstance(outcome, Committed)
    await run.complete(session=ENDED)

    row = await bed.store.data.sessions.get(CHAT)
    assert row is not None
    assert (row.project, row.open_runs, await kinds(bed)) == ("", 0, ["started", "ended"])
    assert await bed.store.data.sessions.queued(CHAT, run.run_id) is None


async def test_one_commit_may_begin_and_end_a_run(bed: Bed) -> None:
    """Its facts are in order."""
    run = Turns(bed, (await submit(bed)).run_id, CHAT)
    await run.append(started(CHAT))
    await run.complete(session=SessionChange(("started", "ended")), turns=(node("a"),))

    assert await kinds(bed) == ["queued", "started", "ended"]


@pytest.mark.parametrize("key", HOSTILE)
async def test_a_session_may_have_any_id(bed: Bed, key: str) -> None:
    """Each key of an agent is a valid session id."""
    agent, store = AgentId("desk", key, "acme"), bed.store.data.sessions
    await said(bed, "a", "b", agent=agent)
    await store.switch(agent, "a")

    assert [row.head for row in await store.recent("acme", "desk")] == ["a"]
    assert [turn.id for turn in await store.path(agent)] == ["a"]
    assert await kinds(bed, agent) == ["queued", "started", "ended"]
    assert await store.begin_delete(agent)
    assert await store.finish_delete(agent) == 4
    assert await store.get(agent) is None


@pytest.mark.item(370, 379)
async def test_the_first_request_to_stop_is_a_fact_of_a_session(bed: Bed) -> None:
    """It is written with the request, for the agent's own runs that have not ended, queued or started."""
    arrivals = bed.store.arrivals
    run = await begin(bed)
    queued = await submit(bed)
    for run_id in (queued.run_id, run.run_id, queued.run_id, run.run_id):
        await arrivals.request_cancel(run_id, reason="enough")
    facts = await bed.store.data.sessions.facts(CHAT)
    assert [(fact.kind, fact.run_id) for fact in facts[3:]] == [
        ("cancelling", queued.run_id),
        ("cancelling", run.run_id),
    ]
    assert await kinds(bed) == ["queued", "started", "queued", "cancelling", "cancelling"]
    await run.cancel("enough", session=ENDED)
    await arrivals.request_cancel(run.run_id, reason="late")
    assert (await kinds(bed))[5:] == ["ended"]
    plain = AgentId("desk", "plain")
    await arrivals.request_cancel((await bed.submit(agent=plain)).run_id, reason="enough")
    assert await kinds(bed, plain) == []


async def test_ten_thousand_facts_are_read_in_pages(bed: Bed) -> None:
    """Each page starts after the one before."""
    run, store = await begin(bed), bed.store.data.sessions
    for n in range(10):
        many = SessionChange(("started",) * 1_000)
        await run.commit(run.turn(result(f"{n}"), session=many))

    numbers, after = list[int](), 0
    while page := await store.facts(CHAT, after=after):
        assert len(page) <= 1_000
        numbers += [fact.number for fact in page]
        after = numbers[-1]
    assert numbers == list(range(1, 10_003))
    assert [fact.number for fact in await store.facts(CHAT, after=9_999, limit=2)] == [
        10_000,
        10_001,
    ]
    await run.complete(session=ENDED)
    assert await store.begin_delete(CHAT)
    assert await store.finish_delete(CHAT) == 10_004


async def take(bed: Bed, count: int, *, after: int = 0, agent: AgentId = CHAT) -> list[SessionFact]:
    """Return this many facts of a session's tail."""
    taken_facts: list[SessionFact] = []
    async with aclosing(bed.store.data.sessions.tail(agent, after=after)) as facts:  # type: ignore[type-var]
        async for fact in facts:
            taken_facts.append(fact)
            if len(taken_facts) == count:
                break
    return taken_facts


async def test_a_tail_may_begin_before_its_session(bed: Bed) -> None:
    """A tail continues after the last fact that its reader saw. There may be any number of tails."""
    async with asyncio.TaskGroup() as group:
        tails = [group.create_task(take(bed, 3)) for _ in range(3)]
        await asyncio.sleep(0)
        await said(bed, "a")
    facts = await bed.store.data.sessions.facts(CHAT)
    assert [tail.result() for tail in tails] == [facts] * 3
    assert await take(bed, 2, after=1) == facts[1:]
    async with asyncio.TaskGroup() as group:
        late = group.create_task(take(bed, 2, after=2))
        await submit(bed)
    assert [fact.kind for fact in late.result()] == ["ended", "queued"]


async def test_a_tail_hears_of_other_hosts(bed: Bed) -> None:
    """Two hosts share only the rows."""
    async with bed.rival() as rival, asyncio.TaskGroup() as group:
        tail = group.create_task(take(rival, 3))
        await said(bed, "a")
        assert [fact.kind for fact in await tail] == ["queued", "started", "ended"]


@pytest.mark.item(382, 385)
async def test_a_session_is_deleted_in_two_steps(bed: Bed) -> None:
    """Between them runs are refused, also after a crash. A new session continues the numbers of its facts."""
    store = bed.store.data.sessions
    assert not await store.begin_delete(CHAT)
    assert await store.finish_delete(CHAT) == 0
    run = await begin(bed)
    for call in (store.begin_delete(CHAT), store.switch(CHAT, "a")):
        with pytest.raises(SessionActiveError) as refused:
            await call
        assert refused.value.runs == 1
    await run.complete(turns=(node("a"),), session=ENDED)
    for _ in range(2):
        assert await store.begin_delete(CHAT)
        for mode in ("queue", "reject", "join", "interrupt"):
            for is_apart in (False, True):
                with pytest.raises(SessionDeletingError):
                    await submit(bed, on_conflict=mode, is_apart=is_apart)
        with pytest.raises(SessionActiveError):
            await store.switch(CHAT, "a")
        assert (await store.get(CHAT), await store.recent("default", "desk")) == (None, [])

    assert await store.finish_delete(CHAT) == 4
    assert await store.finish_delete(CHAT) == 0
    assert not await store.begin_delete(CHAT)
    with pytest.raises(UnknownSessionError):
        await store.switch(CHAT, "a")
    assert (await store.get(CHAT), await store.facts(CHAT)) == (None, [])
    await bed.submit(agent=CHAT, session=NewSession("other"))
    [fact], row = await store.facts(CHAT), await store.get(CHAT)
    assert row is not None
    assert (fact.number, fact.kind, row.project, row.last_fact) == (4, "queued", "other", 4)
    assert await take(bed, 1, after=2) == [fact]
    assert await store.finish_delete(CHAT) == 0, "another one that deletes it comes late"
    assert await store.facts(CHAT) == [fact]


async def test_a_known_submit_is_answered_while_its_session_is_deleted(bed: Bed) -> None:
    """Also after the deletion. It does not create the session again."""
    store = bed.store.data.sessions
    submitted = await submit(bed, id="m")
    run = Turns(bed, submitted.run_id, CHAT)
    await run.append(started(CHAT))
    await run.complete(session=ENDED)
    await store.begin_delete(CHAT)
    assert (await submit(bed, id="m")).run_id == submitted.run_id
    other = await bed.submit(agent=DESK, session=NEW)
    assert (await store.facts(DESK))[0].run_id == other.run_id
    await store.finish_delete(CHAT)
    assert (await submit(bed, id="m")).run_id == submitted.run_id

    assert (await store.get(CHAT), await kinds(bed)) == (None, [])


async def test_submits_and_a_deletion_never_pass_each_other(bed: Bed) -> None:
    """Either the session refuses all later submits, or it keeps an open run and is not deleted."""
    for n in range(12):
        agent = AgentId("desk", f"race-{n}")
        await said(bed, "a", agent=agent)
        calls = (
            submit(bed, agent),
            bed.store.data.sessions.begin_delete(agent),
            submit(bed, agent),
            bed.store.data.sessions.switch(agent, "a"),
        )
        order = calls[n % 4 :] + calls[: n % 4]
        outcomes = await asyncio.gather(*order, return_exceptions=True)
        first, deletes, second, switched = (
            outcomes[-(n % 4) :] + outcomes[: -(n % 4)] if n % 4 else outcomes
        )
        submits = [outcome for outcome in (first, second) if not isinstance(outcome, BaseException)]
        assert isinstance(switched, SessionActiveError | None)
        if deletes is True:
            assert submits == []
            assert all(isinstance(refused, SessionDeletingError) for refused in (first, second))
        else:
            assert isinstance(deletes, SessionActiveError)
            assert len(submits) == 2
            row = await bed.store.data.sessions.get(agent)
            assert row is not None
            assert row.open_runs == 2


@pytest.mark.item(381, 385)
async def test_a_switch_wants_a_session_without_open_runs_and_a_node_of_it(bed: Bed) -> None:
    """Otherwise nothing changes."""
    store, other = bed.store.data.sessions, AgentId("desk", "other")
    with pytest.raises(UnknownSessionError):
        await store.switch(CHAT, "a")
    await said(bed, "a", "b")
    await said(bed, "c", agent=other)
    for unknown in ("c", "", "A", "\u2028"):
        with pytest.raises(UnknownNodeError) as refused:
            await store.switch(CHAT, unknown)
        assert refused.value.node == unknown
    queued = Turns(bed, (await submit(bed)).run_id, CHAT)
    with pytest.raises(SessionActiveError):
        await store.switch(CHAT, "a")
    row = await store.get(CHAT)
    assert row is not None
    assert row.head == "b"
    await queued.cancel("no more", session=ENDED)
    await store.switch(CHAT, "a")
    row = await store.get(CHAT)
    assert row is not None
    assert row.head == "a"
