"""PostgresHistoryProvider: the history of programs without a runtime, which is that of the runs, too."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from actors import ContextConfig, Runtime
from actors._kernel.agent.message import ChatMessage
from actors._kernel.runtime.ids import AgentId, HostIncarnation
from actors.testing import ScriptedModel
from persistence.errors import DatabaseUnreachableError, DatabaseUrlError, MigrationError
from persistence.postgres import open_postgres_history, open_postgres_store
from tests.unit.documents import blocks

if TYPE_CHECKING:
    from tests.harness.servers import OwnPostgres, TestPostgres

DESK, ACME = AgentId("desk", "1"), AgentId("desk", "1", "acme")


def say(text: str, turn: str) -> ChatMessage:
    """A turn of the user with an id."""
    return ChatMessage.of("user", text).model_copy(update={"metadata": {"turn": turn}})


@pytest.mark.item(285)
async def test_turns_survive_the_server(own_postgres: OwnPostgres) -> None:
    """A killed one: the open provider goes on, a turn that comes again is known, another process reads all."""
    server = own_postgres(durable=True)
    async with open_postgres_history(server.url) as history:
        for agent in (DESK, ACME):
            await history.append_many(agent, [say(f"{agent}", "a")], session_id="s", run_id="r")
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await history.append_many(DESK, [say("again", "a"), say("b", "b")], session_id="s")

    async with open_postgres_history(server.url) as history:
        sessions = [await history.get_messages(agent, session_id="s") for agent in (DESK, ACME)]
        assert [[turn.text for turn in session] for session in sessions] == [
            ["desk/1", "b"],
            ["acme:desk/1"],
        ]
        await history.clear_run(ACME, session_id="s", run_id="r")
        assert await history.count_messages(DESK, session_id="s") == 2
        assert await history.count_messages(ACME, session_id="s") == 0


@pytest.mark.item(285)
async def test_a_new_schema_is_made_and_is_that_of_the_hosts(
    postgres_server: TestPostgres, new_schema: str
) -> None:
    """A host finds what was said before it came; and the provider what its store has written."""
    url = postgres_server.url
    async with open_postgres_history(url, schema=new_schema) as history:
        await history.append(DESK, say("before", "a"), session_id="s")
        owner = HostIncarnation("h1")
        async with open_postgres_store(url, owner=owner, schema=new_schema) as store:
            [row] = await store.data.transcripts.page(DESK, "s")
            assert (row.ordinal, row.id, row.message.text) == (0, "a", "before")
            assert [session.name for session in await store.data.transcripts.sessions(DESK)] == [
                "s"
            ]
        assert await history.count_messages(DESK, session_id="s") == 1


@pytest.mark.item(285)
async def test_operators_read_sessions_by_the_sql_of_the_document(
    postgres_server: TestPostgres, schema: str
) -> None:
    """Its statements run as they stand, and show each turn once."""
    url = postgres_server.url
    async with open_postgres_history(url, schema=schema) as history:
        turns = [say("What is 2 + 2?", "a"), say("And then?", "b")]
        await history.append_many(DESK, turns, session_id="main", run_id="r")
    connection = await asyncpg.connect(url, server_settings={"search_path": schema})
    try:
        [text] = blocks("docs/context.md", "sql")
        lists, shows = [await connection.fetch(statement) for statement in text.split(";")]
    finally:
        await connection.close()

    assert [(row["agent"], row["session"], row["turns"]) for row in lists] == [
        ("desk/1", "main", 2)
    ]
    assert [(row["ordinal"], row["id"], row["run_id"], row["role"]) for row in shows] == [
        (0, "a", "r", "user"),
        (1, "b", "r", "user"),
    ]


async def test_an_agent_may_have_it_beside_another_store(
    postgres_server: TestPostgres, schema: str
) -> None:
    """It is not taken for the history of the runtime's own store, which stays empty."""

    async def turns_of(history: Any) -> list[str]:
        return [turn.text for turn in await history.get_messages(DESK, session_id="s")]

    async with open_postgres_history(postgres_server.url, schema=schema) as history:

        class Desk:
            id = DESK
            model = ScriptedModel("hello")
            context = ContextConfig(history)
            session = "s"

            async def run(self, ctx: Any, inbox: Any) -> str:
                return str((await ctx.generate(inbox[0].payload)).text)

        async with Runtime() as runtime:
            await runtime.register(Desk())
            await runtime.result(await runtime.submit(DESK, "hi"))
            assert await turns_of(runtime.history) == []

        assert await turns_of(history) == ["hi", "hello"]


async def test_the_error_of_an_unavailable_history_has_the_remedy(
    postgres_server: TestPostgres, new_schema: str
) -> None:
    """As for a store: a wrong URL, no server, and a schema that other files made."""
    for url, error, remedy in (
        ("postgres//x", DatabaseUrlError, "Write postgresql://"),
        ("postgresql://me@127.0.0.1:1/db", DatabaseUnreachableError, "Check that the server runs"),
    ):
        with pytest.raises(error, match=remedy):
            async with open_postgres_history(url, start_wait_s=0):
                pass
    async with open_postgres_history(postgres_server.url, schema=new_schema):
        pass
    connection = await asyncpg.connect(postgres_server.url)
    try:
        await connection.execute(f"update {new_schema}.schema_migrations set checksum = 'x'")
    finally:
        await connection.close()
    with pytest.raises(MigrationError, match="use another schema"):
        async with open_postgres_history(postgres_server.url, schema=new_schema):
            pass
