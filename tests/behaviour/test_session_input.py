"""Invalid input to sessions: ids and cursors of others, of deleted objects, or malformed ones."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from actors._context.turns import NOT_OF_USERS
from actors._kernel.agent.message import ContentBlock
from actors.errors import ContractError, UnknownRunError
from actors.sessions import (
    AgentRuntime,
    CursorError,
    UnknownNodeError,
    UnknownSessionError,
    UserMessage,
)
from tests.behaviour.bed import LIMIT_S
from tests.behaviour.talks import Echo, all_of, past_of, sessions_on, types_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.behaviour.bed import Bed

ODD = ("a\0b", "x" * 300, "x\ud800", "", "~", "%00", "a/b")
"""Ids that no object has."""


@pytest.fixture
async def talks(bed: Bed) -> AsyncIterator[AgentRuntime]:
    """Yield sessions, one of which, ``s``, has two runs."""
    async with sessions_on(bed, Echo().agent(), app=bed.name().type) as talks:
        for text in ("1", "2"):
            await (await talks.start(text, session_id="s")).result()
        yield talks


async def refused(call: Callable[[], Any], *errors: type[Exception]) -> None:
    """Assert that the call, or its first step, raises one of these errors, or another error of the caller."""

    async def answer() -> Any:
        awaitable = call()
        return await (anext(awaitable) if hasattr(awaitable, "__anext__") else awaitable)

    async with asyncio.timeout(LIMIT_S):
        with pytest.raises((*errors, ContractError)):
            await answer()


@pytest.mark.item(381, 385)
async def test_sessions_of_another_tenant_are_separate(bed: Bed, talks: AgentRuntime) -> None:
    """It neither reads nor changes any of these sessions, and none of their runs is its own."""
    run = await talks.start("3", session_id="s")
    await run.result()
    node = (await talks.path("s"))[0].id
    stored = await past_of(talks, "s")
    async with AgentRuntime(runtime=bed.runtime, app=talks.app, tenant="acme") as theirs:
        assert await theirs.sessions() == []
        assert await theirs.path("s") == []
        assert await past_of(theirs, "s") == []
        await refused(lambda: theirs.session("s"), UnknownSessionError)
        await refused(lambda: theirs.switch_context("s", node), UnknownSessionError)
        await refused(lambda: theirs.delete_session("s"), UnknownSessionError)
        await refused(lambda: theirs.start("x", session_id="s", parent_node=node), UnknownNodeError)
        await refused(lambda: theirs.run(run.run_id), UnknownRunError)
        await refused(lambda: theirs.replay_run(run.run_id), UnknownRunError)
        await refused(lambda: theirs.replay_session("s", cursor=stored[3].event_id), CursorError)
        await refused(lambda: theirs.tail_session("s", cursor=stored[3].event_id), CursorError)
    async with AgentRuntime(runtime=bed.runtime, app=bed.name().type) as other_app:
        await refused(lambda: other_app.run(run.run_id), UnknownRunError)
    assert await past_of(talks, "s") == stored


@pytest.mark.item(375)
async def test_a_cursor_that_cannot_be_of_this_session_is_refused(talks: AgentRuntime) -> None:
    """Of a longer session, or within a shorter run, or without an active run."""
    stored = await past_of(talks, "s")
    await (await talks.start("x", session_id="t")).result()
    beyond = [event.event_id for event in stored if event.run_id == stored[-1].run_id]
    for cursor in (
        *beyond,
        "0:0",
        "1:0",
        "3:0",
        "2:9",
        "2:-1.0",
        "2:-1.5",
        "2:4\0",
        "2:" + "1" * 300,
    ):
        await refused(partial(talks.replay_session, "t", cursor=cursor), CursorError)
        await refused(partial(talks.tail_session, "t", cursor=cursor), CursorError)


@pytest.mark.item(375, 382)
async def test_a_cursor_of_before_a_deletion_is_refused(talks: AgentRuntime) -> None:
    """Also if the session was created again: its own cursors are accepted, and its runs are read completely."""
    old = await past_of(talks, "s")
    await talks.delete_session("s")
    for cursor in (event.event_id for event in old):
        await refused(partial(talks.replay_session, "s", cursor=cursor), CursorError)
    runs = [await talks.start(text, session_id="s") for text in ("3", "4")]
    for run in runs:
        await run.result()
    for cursor in (event.event_id for event in old):
        await refused(partial(talks.replay_session, "s", cursor=cursor), CursorError)
    stored = await past_of(talks, "s")
    for n, event in enumerate(stored):
        assert await past_of(talks, "s", event.event_id) == stored[n + 1 :]
    for run in runs:
        assert types_of(await all_of(run))[-3:] == ["message", "message", "run_completed"]
        assert [event async for event in talks.replay_run(run.run_id)][-1].type == "run_completed"


@pytest.mark.item(382, 385)
async def test_deleted_sessions_runs_and_nodes_are_unknown(talks: AgentRuntime) -> None:
    """Its nodes, its runs, and the session. A reader of a run of it gets nothing, and does not wait."""
    run = await talks.start("3", session_id="s")
    await run.result()
    node = (await talks.path("s"))[0].id
    await talks.delete_session("s")
    await refused(lambda: talks.run(run.run_id), UnknownRunError)
    await refused(lambda: talks.switch_context("s", node), UnknownSessionError)
    await refused(lambda: talks.start("x", session_id="s", parent_node=node), UnknownNodeError)
    await refused(run.cancel, UnknownRunError)
    assert await all_of(run) == []


@pytest.mark.item(382)
async def test_a_deleted_message_is_not_sent_again(talks: AgentRuntime) -> None:
    """Its id is still known: a repeated send raises that the run is deleted, and creates no session."""
    message = UserMessage(content=(ContentBlock(type="text", text="once"),), id="m")
    run = await talks.start(message, session_id="u")
    await run.result()
    await talks.delete_session("u")
    again = await talks.start(message, session_id="u")
    assert again.run_id == run.run_id
    await refused(again.result, UnknownRunError)
    assert await all_of(again) == await past_of(talks, "u") == []
    await refused(lambda: talks.session("u"), UnknownSessionError)


@pytest.mark.parametrize("odd", ODD)
async def test_odd_ids_of_runs_nodes_and_messages_are_refused(
    talks: AgentRuntime, odd: str
) -> None:
    """At the call, by an error of the caller; nothing is written."""
    stored = await past_of(talks, "s")
    await refused(lambda: talks.run(odd), UnknownRunError)
    await refused(lambda: talks.replay_run(odd), UnknownRunError)
    await refused(lambda: talks.switch_context("s", odd), UnknownNodeError)
    await refused(lambda: talks.start("x", session_id="s", parent_node=odd), UnknownNodeError)
    await refused(lambda: talks.replay_session("s", cursor=odd), CursorError)
    if odd in {"a\0b", "x\ud800"}:
        await refused(lambda: talks.start(UserMessage(content=UserMessage.of("x").content, id=odd)))
    assert await past_of(talks, "s") == stored


@pytest.mark.parametrize("kind", sorted(NOT_OF_USERS))
async def test_blocks_that_only_models_and_tools_make_are_refused(
    talks: AgentRuntime, kind: str
) -> None:
    """A user's block would stand for a call or a result of theirs; nothing is written."""
    stored = await past_of(talks, "s")
    blocks = [ContentBlock(type="text", text="x"), ContentBlock(type=kind)]

    with pytest.raises(ValueError, match=f"no block of type '{kind}'"):
        await talks.start(blocks, session_id="s")

    assert await past_of(talks, "s") == stored


@pytest.mark.parametrize("odd", ["a\0b", "x" * 300, "x\ud800"])
async def test_invalid_session_ids_are_refused(talks: AgentRuntime, odd: str) -> None:
    """Each call with the id of a session raises the error."""
    await refused(lambda: talks.session(odd))
    await refused(lambda: talks.path(odd))
    await refused(lambda: talks.switch_context(odd, "n"))
    await refused(lambda: talks.delete_session(odd))
    with pytest.raises(ContractError):
        talks.replay_session(odd)
    with pytest.raises(ContractError):
        talks.tail_session(odd)
