"""`callboard erase` on a real server: after it a text that was everywhere is nowhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from actors._kernel.agent.message import ChatMessage
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.data import Entity, Relationship, Task, VectorDocument
from actors._kernel.stores.memory import NewMemory
from actors._kernel.stores.runs import agent_scope
from actors.agents import ReActAgent
from actors.sessions import AgentRuntime
from actors.testing import FunctionModel
from persistence._postgres.opening import open_search_indexes
from persistence.postgres import (
    PostgresStore,
    open_postgres_files,
    open_postgres_graph,
    open_postgres_vectors,
)
from tests.integration.compose.commandline import Cli
from tests.integration.persistence.hosts import sql

if TYPE_CHECKING:
    from actors._runtime import Runtime
    from tests.harness.servers import TestPostgres

pytestmark = pytest.mark.postgres
CANARY: Final = "canary-7f3a"
OURS, FAILING = AgentId("waiter", "a", "acme"), AgentId("failing", "a", "acme")
THEIRS, FOREIGN = AgentId("waiter", "a"), AgentId("waiter", "a", "zoo")
HOLDERS: Final = frozenset(
    {
        *("agent_state", "artifact_chunks", "artifact_pins", "dead_letters", "event_log", "files"),
        *("follows", "graph_entities", "graph_relationships", "inbox", "memories", "pg_indexes"),
        *("runs", "schedules", "search_indexes", "session_facts", "sessions", "task_boards"),
        *("transcript_branches", "transcript_cuts", "transcript_turns", "transcripts"),
        *("vector_collections", "vector_documents"),
    }
)
"""Tables that have the text before the erase; `pg_indexes` are the definitions of the schema's indexes."""
OF_TENANT: Final = HOLDERS & {
    *("artifact_chunks", "artifact_pins", "files", "graph_entities", "graph_relationships"),
    *("memories", "pg_indexes", "search_indexes", "vector_collections", "vector_documents"),
}
"""Those that have it of the tenant, beside its agents: files, documents, the graph, memories about it."""
STAY: Final = frozenset({"usage_totals"})
"""They have the id of a session's agent, in which is the session's: see docs/memory.md, "Erase"."""


async def tables_with(url: str, schema: str, text: str) -> set[str]:
    """Tables of which a column of any type has the text, and `pg_indexes`; bytes are searched as such."""
    columns = await sql(
        url,
        schema,
        "select c.relname as name, a.attname as col, a.atttypid = 'bytea'::regtype as is_bytes"
        " from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped"
        " where c.relkind = 'r' and c.relnamespace = $1::regnamespace",
        schema,
    )
    in_bytes, in_text = "position($1::bytea in {})", "strpos({}::text, convert_from($1, 'UTF8'))"
    conditions: dict[str, list[str]] = {}
    for name, col, is_bytes in columns:
        condition = (in_bytes if is_bytes else in_text).format(col)
        conditions.setdefault(name, []).append(f"{condition} > 0")
    parts = [
        f"select '{name}' as name where exists (select from {name} where {' or '.join(any_of)})"
        for name, any_of in conditions.items()
    ]
    indexes = (
        f"select from pg_indexes where schemaname = '{schema}' and {in_text.format('indexdef')} > 0"
    )
    parts.append(f"select 'pg_indexes' where exists ({indexes})")
    rows = await sql(url, schema, " union all ".join(parts), text.encode())
    return {row["name"] for row in rows}


async def spread(runtime: Runtime, agent: AgentId, text: str) -> None:
    """Bring the text into every store of the agent's tenant; no run stays open."""
    tenant, store = agent.tenant, runtime.store
    assert isinstance(store, PostgresStore)
    url, schema = store.settings.url, store.settings.schema
    run = await runtime.submit(agent, text)
    await runtime.signal(run, "go", text)
    await runtime.wait(run)
    for turn in (ChatMessage.of("user", text), ChatMessage.of("user", text * 30_000)):
        await runtime.history.append(agent, turn, session_id=f"{text} session", run_id=run)
    await sql(
        url,
        schema,
        "update transcripts set cut_upto = 0, cut_summary = to_json($2::text) where agent = $1",
        *(str(agent), text),
    )
    await sql(
        url, schema, "insert into agent_state select $1, 'key', to_json($2::text)", str(agent), text
    )
    await store.data.artifacts.of(tenant, agent_scope(agent)).store(text.encode() * 30_000)
    await store.boards.of(tenant).create_task_list(
        f"{text} session", agent, [Task(id="1", title=text)]
    )
    await runtime.follow(agent, "news", text)
    await runtime.schedules.create(f"daily-{tenant}", agent, {"say": text}, delay_s=86_400.0)
    await converse(runtime, tenant, text)
    for n, scope in enumerate((f"agent:{agent}", text)):
        for sentence in (f"{text} once", text):
            memory = NewMemory(id=f"{sentence} {n}", about=scope, key=text, text=sentence)
            await runtime.memory(tenant).put(memory, embedding=(1.0, 0.5))
    async with open_postgres_vectors(url, tenant=tenant, schema=schema) as vectors:
        about = {"about": text}
        document = VectorDocument(id=text, content=text, embedding=(1.0, 0.5), metadata=about)
        await vectors.add([document], collection=text)
    async with open_postgres_graph(url, tenant=tenant, schema=schema) as graph:
        for name in (text, "other"):
            await graph.add_entity(Entity(id=name, type="person", properties={"about": text}))
        ends = {"source_id": text, "target_id": "other"}
        edge = Relationship(id=text, type="knows", properties={"why": text}, **ends)
        await graph.add_relationship(edge)
    async with open_postgres_files(url, tenant=tenant, schema=schema) as files:
        await files.upload(f"{text}.txt", text.encode())
    async with open_search_indexes(url, schema=schema) as indexes:
        are_built = [
            await indexes.build(index_scope)
            for index_scope in await indexes.scopes(tenant=tenant, rows=0)
        ]
        assert are_built == [True] * 3


async def converse(runtime: Runtime, tenant: str, text: str) -> None:
    """Have a session of the text's name: two branches, a cut, and artifacts of a run and of its own."""
    store = runtime.store
    assert isinstance(store, PostgresStore)
    model = FunctionModel(lambda messages, _: f"You said {messages[-1].text}.")
    async with AgentRuntime(
        agents=ReActAgent("echo", model=model), runtime=runtime, app="talk", tenant=tenant
    ) as talks:
        await (await talks.start(text, session_id=text)).result()
        first = (await talks.path(text))[0].id
        run = await talks.start(text, session_id=text, parent_node=first)
        await run.result()
        await talks.artifacts(text).put(f"{text}.txt", text.encode(), run_id=run.run_id)
        await talks.artifacts(text).put(text, text.encode(), kind="debug")
        agent = str(talks.agent_id(text))
    await sql(
        store.settings.url,
        store.settings.schema,
        "insert into transcript_cuts (agent, session, upto, strategy, summary, at)"
        " select agent, session, 0, 'Cut', to_json($2::text), now() from transcripts where agent = $1",
        *(agent, text),
    )


@pytest.mark.parametrize("scope", ["tenant", "agent"])
async def test_a_canary_is_nowhere_after_an_erase(
    postgres_server: TestPostgres, schema: str, capsys: pytest.CaptureFixture[str], scope: str
) -> None:
    """In no column of any type of any table, and no index; what two other tenants have stays row by row."""
    url, cli = postgres_server.url, Cli(postgres_server.url, schema, capsys)
    async with cli.host("waiter", "failing") as runtime:
        for agent, text in ((OURS, CANARY), (THEIRS, "stays-1"), (FOREIGN, "stays-2")):
            await spread(runtime, agent, text)
        await runtime.wait(await runtime.submit(FAILING, CANARY))
        before = await tables_with(url, schema, CANARY)
        others = [await tables_with(url, schema, text) for text in ("stays-1", "stays-2")]
        selection = (
            ("--tenant", "acme")
            if scope == "tenant"
            else ("--tenant", "acme", "--agent", "waiter/a")
        )
        dry = await cli.call("erase", *selection, "--dry-run", "--json")
        unchanged_tables = await tables_with(url, schema, CANARY)
        erase_output = await cli.call("erase", *selection, "--yes", "--json")
        if scope == "agent":
            for other in ("failing/a", f"talk/{CANARY}"):
                await cli.call("erase", "--tenant", "acme", "--agent", f"acme:{other}", "--yes")
        after = await tables_with(url, schema, CANARY)
        output = await cli.call("erase", *selection, "--yes")

    assert before >= HOLDERS - {"inbox"}
    assert unchanged_tables == before
    assert after == STAY | (OF_TENANT if scope == "agent" else set())
    assert [await tables_with(url, schema, text) for text in ("stays-1", "stays-2")] == others
    turns = 2 if scope == "agent" else 6
    assert dry.data["counts"]["conversations"]["turns"] == turns
    assert erase_output.data["counts"]["conversations"]["turns"] == turns
    assert {"stream EDGE", "back-ups, replicas, WAL"} <= {
        holder["name"] for holder in erase_output.data["unreached"]
    }
    assert output.code == 0
    assert "erased 0 row(s)" in output.out
    assert "stream EDGE" in output.out


async def test_open_runs_are_refused_or_cancelled(
    postgres_server: TestPostgres, schema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refusal names the run; `--cancel` stops it, and the message behind it begins nothing."""
    cli = Cli(postgres_server.url, schema, capsys)
    async with cli.host("waiter") as runtime:
        held_run = await runtime.submit(OURS, CANARY)
        queued = await runtime.submit(OURS, CANARY)
        other_run = await runtime.submit(THEIRS, "stays")
        refusal = await cli.call("erase", "--tenant", "acme", "--agent", "waiter/a", "--yes")
        erase_output = await cli.call("erase", "--tenant", "acme", "--cancel", "--yes", "--json")
        again = await runtime.submit(OURS, "anew")
        await runtime.signal(again, "go", "well")
        async with asyncio.timeout(20):
            assert await runtime.result(again) == "well"
        await runtime.signal(other_run, "go", "there")
        async with asyncio.timeout(20):
            assert await runtime.result(other_run) == "there"

    assert refusal.code == 2
    assert held_run in refusal.err
    assert "--cancel" in refusal.err
    assert set(erase_output.data["cancelled"]) == {held_run, queued}


async def test_what_nobody_confirmed_or_means_nothing_is_refused(
    postgres_server: TestPostgres, schema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the way out, before anything is asked of the server."""
    cli = Cli(postgres_server.url, schema, capsys)
    unsure = await cli.call("erase", "--tenant", "acme")
    odd = await cli.call("erase", "--tenant", "acme", "--session", "s", "--yes")
    foreign = await cli.call("erase", "--tenant", "acme", "--agent", "zoo:waiter/a", "--yes")

    assert [output.code for output in (unsure, odd, foreign)] == [2, 2, 2]
    assert "--yes" in unsure.err
    assert "agent=" in odd.err
    assert "tenant='zoo'" in foreign.err
