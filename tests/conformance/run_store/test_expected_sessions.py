"""Submits that are refused unless their session exists and belongs to a principal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.agent import ExpectedSession, NewSession
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.conversations import SessionLabel
from actors._kernel.stores.errors import (
    SessionActiveError,
    SessionDeletingError,
    UnknownSessionError,
)
from tests.conformance.bed import Turns, started
from tests.conformance.run_store.test_sessions import CHAT, ENDED, FOREIGN, kinds, said

if TYPE_CHECKING:
    from actors._kernel.stores.runs import Submitted
    from tests.conformance.bed import Bed

MODES = [
    (mode, is_apart)
    for mode in ("queue", "join", "reject", "interrupt")
    for is_apart in (False, True)
]


async def ask(bed: Bed, owner: str | None = None, agent: AgentId = CHAT, **parts: Any) -> Submitted:
    """Submit a run of an existing session."""
    session = NewSession("p", ExpectedSession(owner))
    return await bed.submit(agent=agent, session=session, **parts)


async def refused(bed: Bed, *owners: str | None, **parts: Any) -> None:
    """Check that submits of these principals are refused in each mode."""
    for owner in owners:
        for mode, is_apart in MODES:
            with pytest.raises(UnknownSessionError):
                await ask(bed, owner, on_conflict=mode, is_apart=is_apart, **parts)


async def delete(bed: Bed, agent: AgentId = CHAT) -> int:
    """Delete a session in both steps."""
    store = bed.store.data.sessions
    return await store.finish_delete(agent) if await store.begin_delete(agent) else 0


async def test_a_submit_to_an_unknown_session_writes_nothing(bed: Bed) -> None:
    """No session, no run, no message. A session of another tenant is another one."""
    store = bed.store
    await store.data.directory.create(FOREIGN, SessionLabel(), owner="ada")
    await refused(bed, None, "ada")
    assert (await store.data.sessions.get(CHAT), await kinds(bed)) == (None, [])
    assert not await store.data.directory.is_deleted(CHAT)
    assert await store.lists.find_run_for_agent(CHAT) is None
    submitted = await bed.submit(agent=CHAT, id="m1", session=NewSession("p"))
    assert submitted.arrived is not None, "no message of this id was written before"


async def test_a_submit_is_refused_to_all_but_the_owner(bed: Bed) -> None:
    """Also one with a known id, and while a run is open. A session without an owner has none."""
    await bed.store.data.directory.create(CHAT, SessionLabel(), owner="ada")
    await refused(bed, "bob", "Ada", "ada ", "%")
    first = await ask(bed, "ada", id="m")
    await refused(bed, "bob")
    await refused(bed, "bob", id="m")
    again = await ask(bed, "ada", id="m")
    second = await ask(bed, None)
    assert (again.run_id, again.arrived) == (first.run_id, None)
    assert second.run_id != first.run_id
    assert await kinds(bed) == ["queued", "queued"]

    nobodys = AgentId("desk", "nobodys")
    await said(bed, "a", agent=nobodys)
    await refused(bed, "ada", agent=nobodys)
    assert (await ask(bed, None, nobodys)).arrived is not None


@pytest.mark.item(382, 385)
async def test_a_submit_to_a_deleted_session_is_refused(bed: Bed) -> None:
    """Also one with a known id. It does not create the session again."""
    store = bed.store.data.sessions
    await bed.store.data.directory.create(CHAT, SessionLabel(), owner="ada")
    run = Turns(bed, (await ask(bed, "ada", id="m")).run_id, CHAT)
    await run.append(started(CHAT))
    await run.complete(session=ENDED)
    assert await store.begin_delete(CHAT)
    await refused(bed, "ada", None)
    await refused(bed, "ada", id="m")
    assert await store.finish_delete(CHAT) > 0
    await refused(bed, "ada", None)
    await refused(bed, "ada", id="m")
    assert (await store.get(CHAT), await store.facts(CHAT)) == (None, [])
    assert await bed.store.data.directory.create(CHAT, SessionLabel(), owner="ada")
    assert (await ask(bed, "ada")).arrived is not None


async def test_refused_submits_of_a_group_do_not_hold_the_others(bed: Bed) -> None:
    """Each of many submits at once has its own outcome."""
    owners = ("ada", "bob", None)
    agents = [AgentId("desk", f"{n}") for n in range(9)]
    for n, agent in enumerate(agents):
        if n % 3 != 2:
            await bed.store.data.directory.create(agent, SessionLabel(), owner=owners[n % 3])
    calls = [ask(bed, "ada", agent) for agent in agents]
    plain = bed.submit(agent=CHAT, session=NewSession("p"))
    *outcomes, submitted = await asyncio.gather(*calls, plain, return_exceptions=True)

    assert [isinstance(outcome, UnknownSessionError) for outcome in outcomes] == [
        False,
        True,
        True,
    ] * 3
    assert not isinstance(submitted, BaseException)
    rows = [await bed.store.data.sessions.get(agent) for agent in agents]
    assert [row and row.last_fact for row in rows] == [1, 0, None] * 3


async def test_submits_and_a_deletion_have_one_order(bed: Bed) -> None:
    """Either the session keeps its runs, or it is gone and stays so."""
    for n in range(12):
        agent = AgentId("desk", f"race-{n}")
        await bed.store.data.directory.create(agent, SessionLabel(), owner="ada")
        calls = [ask(bed, "ada", agent), delete(bed, agent), ask(bed, "ada", agent)]
        order = calls[n % 3 :] + calls[: n % 3]
        outcomes = await asyncio.gather(*order, return_exceptions=True)
        first, deleted, second = outcomes[3 - n % 3 :] + outcomes[: 3 - n % 3]
        row = await bed.store.data.sessions.get(agent)
        if isinstance(deleted, SessionActiveError):
            assert row is not None
            assert row.open_runs == 2
        else:
            assert deleted == 1
            assert (row, await bed.store.data.sessions.facts(agent)) == (None, [])
            refusals = UnknownSessionError | SessionDeletingError
            assert all(isinstance(outcome, refusals) for outcome in (first, second))
