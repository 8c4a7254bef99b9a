"""Rows that no host can read: each fails alone, its run is parked, and lists show it with the others."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

from actors._kernel.agent.message import ChatMessage, Message
from actors._kernel.agent.transcript import NewTurn
from actors._kernel.json import Unreadable
from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId, ShardId, TopicId
from actors._kernel.runtime.scheduler import RunStatus, ShardLease
from actors._kernel.stores.administration import NewAuditRow
from actors._kernel.stores.conversations import SessionFilter, SessionLabel
from actors._kernel.stores.data import Entity, Relationship, Task, VectorDocument
from actors._kernel.stores.flows import NewRunSnapshot, SnapshotFilter
from actors._kernel.stores.memory import NewMemory
from actors._runtime import Runtime
from actors._runtime.journal import amendments
from persistence._postgres.commits.encode import message_text
from persistence.postgres import open_postgres_graph, open_postgres_store, open_postgres_vectors
from tests.behaviour.agents import Acting
from tests.integration.persistence.hosts import sql

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from actors._kernel.runtime.rows import RunRow
    from actors._runtime import RunContext

DAMAGE: Final = "[1" + "0" * 5_000 + "]"
"""JSON for PostgreSQL, whose numbers have no limit; no decoder of a host reads it."""
LIMIT_S: Final = 20.0
_T = TypeVar("_T")
GOOD: Final = AgentId("damaged", "good", "acme")
"""An agent of another tenant; its shard is that of all these agents."""


def bad(key: str) -> AgentId:
    """Return an agent whose rows the test damages."""
    return AgentId("damaged", key)


class Stage:
    """A schema with a host that can be replaced, and the statements that damage its rows."""

    def __init__(self, url: str, schema: str) -> None:
        self.url, self.schema, self._hosts = url, schema, 0

    @asynccontextmanager
    async def runtime(self, *, serve: bool = True) -> AsyncIterator[Runtime]:
        """Yield a runtime that serves the agents, or only writes and reads."""
        self._hosts += 1
        owner = HostIncarnation(f"damaged-{self._hosts}")
        async with (
            open_postgres_store(self.url, schema=self.schema, owner=owner) as store,
            Runtime(store=store, owner=owner, suspend_after=0.0, serve=serve) as runtime,
        ):
            if serve:
                await runtime.register_type("damaged", lambda agent_id: Acting(agent_id, act))
            yield runtime

    async def damage(self, table: str, column: str, where: str, *args: object) -> None:
        """Make a column unreadable in all rows that a condition selects: at least one."""
        statement = f"update {table} set {column} = '{DAMAGE}' where {where} returning 1"
        assert await sql(self.url, self.schema, statement, *args), f"no row of {table}"


async def act(ctx: RunContext, inbox: list[Message]) -> Any:
    """Do what the first message says, and wait for a signal."""
    command = inbox[0].payload
    if command == "set":
        return await ctx.state.set("k", 1)
    if command == "state":
        await ctx.sleep_until_signal("go")
        return await ctx.state.get("k")
    if command == "fail":
        raise ValueError("no")
    if command == "approval":
        return str(await ctx.approval("pay", {"sum": 1}, timeout=600))
    await ctx.step("s", lambda: 1)
    return await ctx.sleep_until_signal("go")


@pytest.fixture
def stage(postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A schema; runs that cannot be read are loaded again at once."""
    monkeypatch.setattr(amendments, "FIRST_PAUSE_S", 0.01)
    return Stage(postgres_dsn, schema)


async def wait_for(find: Callable[[], Awaitable[_T | None]]) -> _T:
    """Return what `find` returns as soon as there is something."""
    async with asyncio.timeout(LIMIT_S):
        while not (match := await find()):  # noqa: ASYNC110 - rows of another session
            await asyncio.sleep(0.01)
    return match


async def rest(runtime: Runtime, run_id: RunId) -> RunRow:
    """Return the run's row once it is parked, has ended, or waits."""

    async def find_row() -> RunRow | None:
        row = await runtime.store.reads.run(run_id)
        is_at_rest = row is not None and (
            row.status.is_terminal or row.status is RunStatus.SUSPENDED
        )
        return row if is_at_rest else None

    return await wait_for(find_row)


async def wait_until_parked(runtime: Runtime, run_id: RunId) -> RunRow:
    """Return the run's row once it is parked as unreadable."""

    async def find_row() -> RunRow | None:
        row = await runtime.store.reads.run(run_id)
        assert row is None or not row.status.is_terminal, row
        return row if row is not None and row.parked == "unreadable" else None

    return await wait_for(find_row)


async def wait_for_end(runtime: Runtime, run_id: RunId) -> RunStatus:
    """Return the status with which the run ended."""
    return (await asyncio.wait_for(runtime.wait(run_id), LIMIT_S)).status


LOGGED: Final = {
    "log": ("event_log", "payload", "run_id = $1 and seq = 1"),
    "wake set": ("runs", "wake", "run_id = $1"),
    "policy": ("runs", "retry_policy", "run_id = $1"),
    "terms": ("runs", "supervision", "run_id = $1"),
}


async def test_a_run_that_cannot_be_read_is_parked_and_the_others_go_on(stage: Stage) -> None:
    """Its log or its row; a run of another tenant in the same batch completes, and lists show all."""
    async with stage.runtime() as runtime:
        good = await runtime.submit(GOOD, "wait", tenant="acme")
        runs = {
            name: await runtime.submit(bad(name), "wait", max_retries=2, session_id="s")
            for name in LOGGED
        }
        for run_id in (good, *runs.values()):
            await rest(runtime, run_id)
    for name, (table, column, where) in LOGGED.items():
        await stage.damage(table, column, where, runs[name])
    async with stage.runtime() as runtime:
        for run_id in (*runs.values(), good):
            await runtime.signal(run_id, "go", 1)
        assert await asyncio.wait_for(runtime.result(good), LIMIT_S) == 1
        for run_id in runs.values():
            await wait_until_parked(runtime, run_id)
        rows = {row.run_id: row for row in await runtime.store.lists.runs()}
        assert {good, *runs.values()} <= set(rows)
        assert "number out of range" in str(rows[runs["policy"]].unreadable)
        entries = [entry async for entry in runtime.entries(runs["log"])]
        assert isinstance(entries[1].payload["unreadable"], Unreadable)
        assert "Restore or cancel the run" in str(entries[-1].payload["detail"])

        await sql(
            stage.url,
            stage.schema,
            "update runs set retry_policy = null where run_id = $1",
            runs["policy"],
        )
        await runtime.resolve(runs["policy"])
        assert await asyncio.wait_for(runtime.result(runs["policy"]), LIMIT_S) == 1
        for name in ("log", "wake set", "terms"):
            await runtime.cancel(runs[name])
            assert await wait_for_end(runtime, runs[name]) is RunStatus.CANCELLED


async def test_a_message_that_cannot_be_read_is_parked_with_a_run_of_its_own(stage: Stage) -> None:
    """Queued or waiting; messages before and after it, of the same agent and of others, are processed."""
    async with stage.runtime(serve=False) as runtime:
        queued = await runtime.submit(bad("queued"), "wait")
        for n in (1, 2, 3):
            await runtime.send(bad("mail"), Message(f"m-{n}", bad("mail"), "wait"))
        good = await runtime.submit(GOOD, "wait", tenant="acme")
        await runtime.signal(good, "go", 1)
    await stage.damage("inbox", "body", "run_id = $1", queued)
    await stage.damage("inbox", "body", "message_id = 'm-2'")
    async with stage.runtime() as runtime:
        assert await asyncio.wait_for(runtime.result(good), LIMIT_S) == 1
        row = await wait_until_parked(runtime, queued)
        assert row.last_seq == 0
        lists = runtime.store.lists
        [first] = await wait_for(lambda: lists.runs(agent=bad("mail")))
        await rest(runtime, first.run_id)
        payloads = [row.message.payload for row in await runtime.store.insight.inbox(bad("mail"))]
        assert sum(isinstance(payload, Unreadable) for payload in payloads) == 1
        await runtime.signal(first.run_id, "go")
        second = await wait_for(partial(open_run, runtime, first.run_id))
        await wait_until_parked(runtime, second)
        for run_id in (second, queued):
            await runtime.cancel(run_id)
            assert await wait_for_end(runtime, run_id) is RunStatus.CANCELLED
        third = await wait_for(partial(open_run, runtime, first.run_id, second))
        await runtime.signal(third, "go", 3)
        assert await asyncio.wait_for(runtime.result(third), LIMIT_S) == 3


async def open_run(runtime: Runtime, *known_ids: RunId) -> RunId | None:
    """Return a run of the agent with mail that is not one of these."""
    rows = await runtime.store.lists.runs(agent=bad("mail"))
    return next((row.run_id for row in rows if row.run_id not in known_ids), None)


async def test_what_a_run_reads_within_its_code_parks_it(stage: Stage) -> None:
    """A signal, an answer, a value of its state; other signals and values are read."""
    names = ("signal", "state", "approval")
    async with stage.runtime() as runtime:
        await runtime.result(await runtime.submit(bad("state"), "set"))
        runs = {name: await runtime.submit(bad(name), name) for name in names}
        for run_id in runs.values():
            await rest(runtime, run_id)
        [wait] = await runtime.store.lists.waits(runs["approval"])
    async with stage.runtime(serve=False) as runtime:
        await runtime.signal(runs["signal"], "go", 1)
        await runtime.signal(runs["state"], "go", 1)
        await runtime.approvals.decide(wait.wait.key, approve=True, by="me")
    await stage.damage("signals", "payload", "run_id = $1", runs["signal"])
    await stage.damage("agent_state", "value", "agent = $1", str(bad("state")))
    await stage.damage("completions", "result", "parent = $1", runs["approval"])
    async with stage.runtime() as runtime:
        for run_id in runs.values():
            await wait_until_parked(runtime, run_id)
        await sql(
            stage.url,
            stage.schema,
            "update signals set payload = '7' where run_id = $1",
            runs["signal"],
        )
        await runtime.resolve(runs["signal"])
        assert await asyncio.wait_for(runtime.result(runs["signal"]), LIMIT_S) == 7


async def filled(runtime: Runtime) -> None:
    """Write two rows of each list."""
    store: Any = runtime.store
    for n in (1, 2):
        agent = bad(f"list-{n}")
        await runtime.schedules.create(f"s{n}", agent, {"n": n}, delay_s=3_600)
        await rest(runtime, await runtime.submit(agent, "approval"))
        await rest(runtime, await runtime.submit(bad(f"dead-{n}"), "fail", max_retries=0))
        label = SessionLabel(title=f"t{n}", metadata={"n": n})
        assert await store.data.directory.create(agent, label)
        turns = [
            NewTurn("s", f"turn-{i}", ChatMessage.of("assistant", f"text {i}")) for i in (1, 2)
        ]
        await store.data.transcripts.append(agent, turns)
        new = NewAuditRow(
            tenant="default", principal="me", action="a", thing=f"run:{n}", before={"n": n}
        )
        await store.data.audit.add(new)
        await store.data.memories.of("default").put(
            NewMemory(id=f"m{n}", text=f"text {n}", about="u", metadata={"n": n})
        )
        board = store.boards.of("default")
        await board.create_task_list("c", agent, [Task(id="t", title="do")], title=f"b{n}")
        [run] = await runtime.store.lists.runs(agent=agent)
        snapshot = NewRunSnapshot(id=f"n{n}", run_id=run.run_id, agent_id=agent, seq=1, name="n")
        assert await store.data.run_snapshots.put(snapshot, "{}")


DAMAGED: Final = {
    "schedules": ("payload", "name = 's1'"),
    "waits": ("request", "run_id in (select run_id from runs where agent = 'damaged/list-1')"),
    "dead_letters": ("body", "agent = 'damaged/dead-1'"),
    "sessions": ("metadata", "agent = 'damaged/list-1'"),
    "transcript_turns": ("body", "agent = 'damaged/list-1' and id = 'turn-1'"),
    "audit": ("before", "thing = 'run:1'"),
    "memories": ("metadata", "id = 'm1'"),
    "task_boards": ("tasks", "agent = 'damaged/list-1'"),
    "flow_bundles": ("manifest", "version = '1'"),
    "run_snapshots": ("state", "id = 'n1'"),
}


async def test_lists_show_the_others_and_name_the_damaged_row(stage: Stage) -> None:
    """Each list of each feature; what cannot be read is a text that says so."""
    async with stage.runtime() as runtime:
        await filled(runtime)
        for n in (1, 2):
            row = f"'default', 'b', '{n}', repeat('0', 64), 'a', 2, '{{}}', 'me'"
            columns = "tenant, bundle, version, hash, artifact, size_bytes, manifest, installed_by"
            await sql(
                stage.url, stage.schema, f"insert into flow_bundles ({columns}) values ({row})"
            )
        for table, (column, where) in DAMAGED.items():
            await stage.damage(table, column, where)
        store: Any = runtime.store
        schedules = await runtime.schedules.list()
        sessions = await store.data.directory.find(
            SessionFilter(tenant="default", app="damaged"), limit=9
        )
        audit = await store.data.audit.list("default")
        memories = await store.data.memories.of("default").page(limit=9)
        boards = await store.boards.of("default").get_boards("c")
        turns = await store.data.transcripts.page(bad("list-1"), "s")
        view = await store.data.transcripts.view(bad("list-1"), "s", limit=9)
        values: dict[str, list[Any]] = {
            "schedules": [schedule.payload for schedule in schedules],
            "waits": [approval.what for approval in await runtime.approvals.open()],
            "dead_letters": [
                dead_letter.message.payload for dead_letter in await store.lists.dead_letters()
            ],
            "sessions": [dict(row.metadata) for row in sessions.rows],
            "audit": [entry.before for entry in audit],
            "memories": [memory.metadata for memory in memories],
            "task_boards": [board.title for board in boards],
            "transcript_turns": [turn.message.text for turn in turns],
            "windows": [message.text for message in view.messages],
        }
        # A manifest and a state are texts for whoever decodes them: their lists need neither.
        assert len(await store.data.flow_bundles.list("default")) == 2
        assert len(await store.data.run_snapshots.list("default", SnapshotFilter())) == 2
    for name, entries in values.items():
        are_unreadable = ["cannot be read" in str(entry) for entry in entries]
        assert sorted(are_unreadable) == [False, True], (name, entries)


async def test_a_search_shows_the_others(stage: Stage) -> None:
    """Documents of vectors, and entities and relationships of a graph."""
    async with (
        open_postgres_vectors(stage.url, schema=stage.schema) as vectors,
        open_postgres_graph(stage.url, schema=stage.schema) as graph,
    ):
        documents = [VectorDocument(id=f"d{n}", content="text", embedding=[1.0]) for n in (1, 2)]
        await vectors.add(documents)
        for n in (0, 1, 2):
            await graph.add_entity(Entity(id=f"e{n}", type="t"))
        for n in (1, 2):
            await graph.add_relationship(
                Relationship(id=f"r{n}", type="t", source_id="e0", target_id=f"e{n}")
            )
        for table, column, id_ in (
            ("vector_documents", "metadata", "d1"),
            ("graph_entities", "properties", "e1"),
            ("graph_relationships", "properties", "r1"),
        ):
            await stage.damage(table, column, "id = $1", id_)
        hits = await vectors.search([1.0])
        around = await graph.get_neighbors("e0")

    for values in (
        [hit.metadata for hit in hits],
        [entity.properties for entity in around.entities if entity.id != "e0"],
        [edge.properties for edge in around.relationships],
    ):
        assert sorted("unreadable" in value for value in values) == [False, True], values


async def test_a_post_that_cannot_be_read_parks_a_run_of_its_own(stage: Stage) -> None:
    """Its followers get the posts before and after it, in order."""
    topic = TopicId("news")
    async with stage.runtime(serve=False) as runtime:
        await runtime.follow(bad("follower"), topic.type)
        for _ in range(3):
            await runtime.publish(topic.type, topic.source, "wait")
    second = "select seq from posts order by seq offset 1 limit 1"
    statement = f"update posts set body = replace(body, '\"wait\"', $1) where seq = ({second})"
    await sql(stage.url, stage.schema, statement, DAMAGE)
    async with stage.runtime() as runtime:
        lists, ends = runtime.store.lists, list[RunId]()
        for n in (1, 2, 3):
            [row] = await wait_for(partial(open_runs, runtime, bad("follower"), ends))
            ends.append(row.run_id)
            if n == 2:
                await wait_until_parked(runtime, row.run_id)
                await runtime.cancel(row.run_id)
                assert await wait_for_end(runtime, row.run_id) is RunStatus.CANCELLED
            else:
                await runtime.signal(row.run_id, "go", n)
                assert await asyncio.wait_for(runtime.result(row.run_id), LIMIT_S) == n
        assert len(await lists.runs(agent=bad("follower"))) == 3


async def test_a_message_on_its_way_that_cannot_be_read_is_named(stage: Stage) -> None:
    """With its sender, target and id, so that it becomes a dead letter; those beside it are published."""
    shard = ShardId("p:damaged:0")
    async with stage.runtime(serve=False) as runtime:
        for n, payload in enumerate(("1", DAMAGE, "3")):
            target, id_ = bad("target"), f"m-{n}"
            text = message_text(Message(id_, target, "wait"), "damaged/sender")
            body = text.replace('"wait"', payload)
            await sql(
                stage.url,
                stage.schema,
                "insert into outbox (sender, target, message_id, shard, target_hash, body)"
                " values ('damaged/sender', $1, $2, $3, 0, $4::text::json)",
                str(target),
                id_,
                shard,
                body,
            )
        store: Any = runtime.store
        lease = ShardLease(shard, HostIncarnation("damaged-1"), 1, datetime.now(tz=UTC))
        rows = await store.outbox.page([lease])
    assert [row.message.id for row in rows] == ["m-0", "m-1", "m-2"]
    assert [isinstance(row.message.payload, Unreadable) for row in rows] == [False, True, False]
    assert {str(row.message.target) for row in rows} == {"damaged/target"}


async def open_runs(runtime: Runtime, agent: AgentId, ends: list[RunId]) -> list[RunRow]:
    """Return the runs of an agent that are none of these."""
    rows = await runtime.store.lists.runs(agent=agent)
    return [row for row in rows if row.run_id not in ends]
