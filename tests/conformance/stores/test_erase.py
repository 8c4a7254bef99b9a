"""Erase of a session, an agent, a tenant or a subject: all its data in batches, no data of others."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from actors._inmemory.boards import InMemoryTaskBoards
from actors._inmemory.knowledge import InMemoryGraphStore, InMemoryVectorStore
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import NO_CUT, NewCut, NewTurn
from actors._kernel.runtime.ids import AgentId, RunId, TopicId
from actors._kernel.stores.administration import EraseRequest, NewToken
from actors._kernel.stores.data import Entity, Relationship, Task, VectorDocument
from actors._kernel.stores.errors import OpenRunsError
from actors._kernel.stores.flows import FLOWS_SCOPE, NewFlowBundle, NewRunSnapshot, SnapshotFilter
from actors._kernel.stores.memory import NewMemory
from actors._kernel.stores.runs import agent_scope
from actors._runtime.sharding.retention import Erasing
from actors.errors import ContractError
from persistence.postgres import PostgresStore, open_postgres_graph, open_postgres_vectors
from tests.conformance.bed import DESK, message, result

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from actors._kernel.stores.administration import Erasable, EraseReport
    from actors._kernel.stores.data import GraphStore, TaskStores, VectorStore
    from actors._kernel.stores.run_store import RunStore
    from tests.conformance.bed import Bed

OTHER = AgentId("desk", "2")
FOREIGN = AgentId("desk", "1", "acme")
AGENTS = (DESK, OTHER, FOREIGN)
NOW = datetime(2030, 1, 1, tzinfo=UTC)
TENANTS = ("default", "acme")


@dataclass
class Home:
    """A store with data of two tenants, and the stores beside it."""

    bed: Bed
    boards: TaskStores
    vectors: Mapping[str, VectorStore]
    graphs: Mapping[str, GraphStore]
    also: tuple[Erasable, ...]

    async def erase(self, **conditions: Any) -> EraseReport:
        """Erase from all stores."""
        what = EraseRequest(**conditions)
        return await Erasing(self.bed.store, what, also=self.also).run(NOW)

    async def preview(self, **conditions: Any) -> EraseReport:
        """Count what `erase` would remove."""
        what = EraseRequest(**conditions)
        return await Erasing(self.bed.store, what, also=self.also).preview(NOW)

    async def live(self, agent: AgentId, *, session: str = "s", turns: int = 3) -> RunId:
        """Let a run of the agent add a turn to a session, keep state and end."""
        run = await self.bed.begin(agent=agent)
        turns_written = [
            NewTurn(session, f"{run.run_id}-{n}", ChatMessage.of("user", f"words {n}"))
            for n in range(turns)
        ]
        summary = ChatMessage.of("user", "all words")
        last = await self.bed.store.data.transcripts.page(agent, session)
        upto = last[-1].ordinal if last else NO_CUT
        cut = NewCut(session=session, previous=NO_CUT, upto=upto + 1, strategy="x", summary=summary)
        cuts = () if last else (cut,)
        await run.commit(
            run.turn(
                result("0", "words"), turns=tuple(turns_written), cuts=cuts, state={"key": "words"}
            )
        )
        await run.complete("words")
        return run.run_id

    async def furnish(self) -> dict[AgentId, RunId]:
        """Write data of each agent, and of each tenant, to every store."""
        runs, store = {}, self.bed.store
        for agent in AGENTS:
            runs[agent] = await self.live(agent)
            await store.follows.follow(agent, TopicId("news", tenant=agent.tenant))
            await store.data.artifacts.of(agent.tenant, agent_scope(agent)).store(b"words")
            await self.boards.of(agent.tenant).create_task_list(
                "s", agent, [Task(id="1", title="w")]
            )
        for tenant in TENANTS:
            await self.vectors[tenant].add(
                [
                    VectorDocument(
                        id=f"{n}",
                        content="w",
                        embedding=(1.0, 2.0),
                        metadata={"about": f"user:{n}"},
                    )
                    for n in range(3)
                ]
            )
            graph = self.graphs[tenant]
            for n in range(3):
                about = {"about": f"user:{n}"}
                await graph.add_entity(Entity(id=f"{n}", type="p", properties=about))
            for n in range(2):
                ends = {"source_id": f"{n}", "target_id": f"{n + 1}"}
                await graph.add_relationship(Relationship(id=f"{n}", type="knows", **ends))
        return runs

    async def count_rows_left(self, agent: AgentId, session: str = "s") -> tuple[int, ...]:
        """Return the counts of the agent's turns, state keys, follows, artifacts and boards."""
        store = self.bed.store
        boards = await self.boards.of(agent.tenant).get_boards(session)
        artifacts = store.data.artifacts.of(agent.tenant, agent_scope(agent))
        artifact = await artifacts.stat(WORDS)
        return (
            await store.data.transcripts.count(agent, session),
            len(await store.reads.state(agent)),
            len(await store.follows.following(agent)),
            int(artifact is not None),
            sum(board.agent_id == str(agent) for board in boards),
        )

    async def is_there(self, run_id: RunId) -> bool:
        """Return True if the run has a row."""
        return await self.bed.store.reads.run(run_id) is not None

    async def subjects(self, tenant: str) -> tuple[list[str], list[str], list[str]]:
        """Return ids of documents, entities and relationships."""
        hits = await self.vectors[tenant].search((1.0, 2.0), limit=100)
        graph, ids = self.graphs[tenant], [f"{n}" for n in range(3)]
        return (
            sorted(hit.id for hit in hits),
            [id_ for id_ in ids if await graph.get_entity(id_) is not None],
            [id_ for id_ in ids if await graph.get_relationship(id_) is not None],
        )


WORDS = hashlib.sha256(b"words").hexdigest()
WHOLE = (3, 1, 1, 1, 1)
NOTHING = (0, 0, 0, 0, 0)
ALL_SUBJECTS = (["0", "1", "2"], ["0", "1", "2"], ["0", "1"])


@asynccontextmanager
async def home_of(bed: Bed) -> AsyncIterator[Home]:
    """Return the stores beside the bed's store, of the same kind."""
    store = bed.store
    if not isinstance(store, PostgresStore):
        boards = InMemoryTaskBoards()
        vectors = {name: InMemoryVectorStore(tenant=name) for name in TENANTS}
        graphs = {name: InMemoryGraphStore(tenant=name) for name in TENANTS}
        yield Home(bed, boards, vectors, graphs, (boards, *vectors.values(), *graphs.values()))
        return
    url, schema = store.settings.url, store.settings.schema
    async with AsyncExitStack() as stack:
        opened = {
            name: (
                await stack.enter_async_context(
                    open_postgres_vectors(url, tenant=name, schema=schema)
                ),
                await stack.enter_async_context(
                    open_postgres_graph(url, tenant=name, schema=schema)
                ),
            )
            for name in TENANTS
        }
        documents = {name: pair[0] for name, pair in opened.items()}
        yield Home(bed, store.boards, documents, {n: pair[1] for n, pair in opened.items()}, ())


@pytest.fixture
async def home(bed: Bed) -> AsyncIterator[Home]:
    """A store with stores beside it, on each backend."""
    async with home_of(bed) as new_home:
        yield new_home


def new_token(id_: str, *, tenant: str, login_of: str | None = None) -> NewToken:
    """Return a token whose id is its name and the digest of its secret."""
    return NewToken(
        id=id_,
        digest=id_,
        name="" if login_of else id_,
        tenant=tenant,
        principal="ada",
        scopes=("sessions:own",),
        is_login=login_of is not None,
        parent=login_of,
    )


async def test_a_session_goes_with_the_runs_that_wrote_it(home: Home) -> None:
    """The agent's other session, state and artifacts stay. The next turn starts the session again."""
    runs = await home.furnish()
    other_run = await home.live(DESK, session="t")
    preview = await home.preview(tenant="default", agent=DESK, session="s")
    report = await home.erase(tenant="default", agent=DESK, session="s")

    assert await home.count_rows_left(DESK) == (0, 1, 1, 1, 0)
    assert await home.count_rows_left(DESK, "t") == (3, 1, 1, 1, 0)
    assert [await home.is_there(run_id) for run_id in (runs[DESK], other_run)] == [False, True]
    assert [await home.count_rows_left(agent) for agent in (OTHER, FOREIGN)] == [WHOLE, WHOLE]
    assert report.counts["conversations"]["turns"] == 3
    assert preview.counts["conversations"]["turns"] == 3
    view = await home.bed.store.data.transcripts.view(DESK, "s", limit=9)
    assert (view.cut, view.messages) == (None, ())
    await home.live(DESK, turns=1)
    assert [turn.ordinal for turn in await home.bed.store.data.transcripts.page(DESK, "s")] == [0]


async def test_an_agent_goes_whole(home: Home) -> None:
    """Its turns, state, follows, messages, artifacts, boards and ended runs.

    Other agents of both tenants stay.
    """
    runs = await home.furnish()
    await home.bed.store.arrivals.deliver([message("words", to=DESK, id="waits")])
    for agent in AGENTS:
        await snap(home.bed.store, runs[agent], agent)
    preview = await home.preview(tenant="default", agent=DESK)
    report = await home.erase(tenant="default", agent=DESK)
    assert preview.counts["snapshots"] == report.counts["snapshots"] == {"snapshots": 1}
    assert DESK not in await snapped(home.bed.store)
    again = await home.erase(tenant="default", agent=DESK)

    assert await home.count_rows_left(DESK) == NOTHING
    assert await home.bed.store.insight.inbox(DESK) == []
    assert [await home.is_there(run) for run in runs.values()] == [False, True, True]
    assert [await home.count_rows_left(agent) for agent in (OTHER, FOREIGN)] == [WHOLE, WHOLE]
    assert [await home.subjects(tenant) for tenant in TENANTS] == [ALL_SUBJECTS, ALL_SUBJECTS]
    assert again.total == 0


async def install(store: RunStore, tenant: str) -> None:
    """Install a bundle of flows with any content."""
    ref = await store.data.artifacts.of(tenant, FLOWS_SCOPE).store(b"bundle")
    facts = {"bundle": "b", "version": "1", "hash": "h", "manifest": "{}", "installed_by": "ada"}
    new = NewFlowBundle(**facts, artifact=ref.id, size_bytes=ref.size_bytes)
    assert await store.data.flow_bundles.put(tenant, new) is not None


async def snap(store: RunStore, run: RunId, agent: AgentId) -> None:
    """Store a snapshot of a run."""
    new = NewRunSnapshot(id=f"s-{run}", run_id=run, agent_id=agent, seq=1, name="n")
    assert await store.data.run_snapshots.put(new, "{}") is not None


async def snapped(store: RunStore) -> list[AgentId]:
    """Return the agents that have snapshots."""
    pages = [await store.data.run_snapshots.list(name, SnapshotFilter()) for name in TENANTS]
    return [row.agent_id for rows in pages for row in rows]


@pytest.mark.parametrize("tenant", TENANTS)
async def test_a_tenant_goes_and_the_other_one_stays(home: Home, tenant: str) -> None:
    """Ids of the default tenant's agents lie between those of other tenants, which stay."""
    runs, tokens = await home.furnish(), home.bed.store.data.tokens
    for name in TENANTS:
        for n in range(2):
            await tokens.create(new_token(f"{name}-{n}", tenant=name))
        await tokens.create(new_token(f"{name}-login", tenant=name, login_of=f"{name}-0"))
        await install(home.bed.store, name)
    for agent in AGENTS:
        await snap(home.bed.store, runs[agent], agent)
    preview = await home.preview(tenant=tenant)
    report = await home.erase(tenant=tenant)

    assert not any("token" in part.name for part in report.unreached)
    assert report.counts["tokens"] == {"tokens": 3}
    assert report.counts["flows"] == {"bundles": 1}
    ours = [agent for agent in AGENTS if agent.tenant == tenant]
    assert report.counts["snapshots"] == {"snapshots": len(ours)}
    assert {*await snapped(home.bed.store)} == {*AGENTS} - {*ours}
    late = NewRunSnapshot(id="late", run_id=runs[ours[0]], agent_id=ours[0], seq=1, name="n")
    assert await home.bed.store.data.run_snapshots.put(late, "{}") is None
    for name in TENANTS:
        assert (await home.bed.store.data.flow_bundles.list(name) == []) is (name == tenant)
    assert {t.tenant for t in await tokens.list()} == {*TENANTS} - {tenant}
    assert (await tokens.find(f"{tenant}-login")) is None
    assert set(await tokens.over([f"{tenant}-0", f"{tenant}-login"])) == {
        f"{tenant}-0",
        f"{tenant}-login",
    }
    for agent in AGENTS:
        is_ours = agent.tenant == tenant
        assert await home.count_rows_left(agent) == (NOTHING if is_ours else WHOLE)
        assert await home.is_there(runs[agent]) is not is_ours
    nothing: tuple[list[str], ...] = ([], [], [])
    for name in TENANTS:
        assert await home.subjects(name) == (nothing if name == tenant else ALL_SUBJECTS)
    for store, kinds in preview.counts.items():
        for kind, number in kinds.items():
            if (store, kind) != ("agents", "messages"):
                assert report.counts[store].get(kind, 0) == number, (store, kind)
    assert (await home.erase(tenant=tenant)).total == 0


async def test_a_subject_goes_from_documents_and_entities(home: Home) -> None:
    """A document with this metadata; an entity with its relationships. The other tenant's subject stays."""
    await home.furnish()
    report = await home.erase(tenant="acme", about="user:1")

    assert await home.subjects("acme") == (["0", "2"], ["0", "2"], [])
    assert await home.subjects("default") == ALL_SUBJECTS
    assert [await home.count_rows_left(agent) for agent in AGENTS] == [WHOLE] * 3
    counted = report.counts["documents"]["documents"], report.counts["graph"]["entities"]
    assert counted == (1, 1)
    assert any("conversations" in part.name for part in report.unreached)


async def test_memories_go_by_their_scopes(home: Home) -> None:
    """With all versions: a subject's, an agent's with its blocks, or a tenant's. The report names the rest."""
    memories = home.bed.store.data.memories
    own, scopes = agent_scope(DESK), ("user:1", "user:2", agent_scope(DESK), agent_scope(OTHER))
    for tenant in TENANTS:
        for about in (*scopes, f"blocks:{own}"):
            for n in range(3):
                new = NewMemory(id=f"{about}{n}", about=about, text=f"words {n}", key="k")
                await memories.of(tenant).put(new)

    async def scopes_of(tenant: str) -> set[str]:
        return {memory.about for memory in await memories.of(tenant).page()}

    session = await home.erase(tenant="default", agent=DESK, session="s")
    assert await scopes_of("default") == {*scopes, f"blocks:{own}"}
    subject = await home.erase(tenant="default", about="user:1")
    assert await scopes_of("default") == {*scopes[1:], f"blocks:{own}"}
    assert subject.counts["memories"] == {"versions": 3}
    preview = await home.preview(tenant="default", agent=DESK)
    agent = await home.erase(tenant="default", agent=DESK)
    assert await scopes_of("default") == {"user:2", agent_scope(OTHER)}
    assert agent.counts["memories"] == preview.counts["memories"] == {"versions": 6}
    whole = await home.erase(tenant="default")
    assert (await scopes_of("default"), len(await scopes_of("acme"))) == (set(), 5)
    reports = (session, subject, agent, whole)
    names = [[at.name for at in report.unreached if "memories" in at.name] for report in reports]
    assert names == [
        ["memories that its runs kept"],
        ["agents' own memories and blocks"],
        ["memories in shared scopes"],
        [],
    ]


async def test_batches_are_small(home: Home) -> None:
    """No batch removes more rows of a kind than requested, and the cursors lead to the end."""
    await home.furnish()
    what = EraseRequest(tenant="default")
    for part in (*home.bed.store.data.erasure.parts, *home.also):
        cursor, is_done, batches = None, False, 0
        while not is_done:
            done = await part.erase(what, cursor=cursor, limit=2)
            assert max(done.rows.values(), default=0) <= 2, part.erased_as
            cursor, is_done, batches = done.cursor, done.cursor is None, batches + 1
            assert batches < 100, part.erased_as

    assert [await home.count_rows_left(agent) for agent in AGENTS] == [NOTHING, NOTHING, WHOLE]
    assert (await home.erase(tenant="default")).total == 0


async def test_a_killed_erase_is_called_again(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a cancel between any two batches the removed data stays removed, and the next call completes."""
    monkeypatch.setattr("actors._runtime.sharding.retention.ERASE_BATCH", 2)
    for step in (1, 2, 4, 7):
        await home.furnish() if step == 1 else await home.live(DESK)
        batches = 0

        def die(_: int, last: int = step) -> None:
            nonlocal batches
            batches += 1
            if batches == last:
                raise asyncio.CancelledError

        what = EraseRequest(tenant="default")
        with pytest.raises(asyncio.CancelledError):
            await Erasing(home.bed.store, what, also=home.also, on_progress=die).run(NOW)
        await home.erase(tenant="default")
        assert [await home.count_rows_left(agent) for agent in AGENTS] == [NOTHING, NOTHING, WHOLE]


async def test_open_runs_are_named_and_refused(home: Home) -> None:
    """Nothing is removed before an agent's, or a tenant's, open runs have ended."""
    await home.furnish()
    run = await home.bed.begin(agent=DESK)
    for conditions in ({"agent": DESK}, {"agent": DESK, "session": "s"}, {}):
        with pytest.raises(OpenRunsError, match=run.run_id) as refused:
            await home.erase(tenant="default", **conditions)
        assert "cancel=True" in str(refused.value)
    assert await home.count_rows_left(DESK) == WHOLE

    await home.erase(tenant="default", agent=OTHER)
    await home.erase(tenant="default", about="user:0")
    await home.erase(tenant="acme")
    assert [await home.count_rows_left(agent) for agent in AGENTS] == [WHOLE, NOTHING, NOTHING]


@pytest.mark.parametrize(
    ("conditions", "remedy"),
    [
        ({"session": "s"}, "agent="),
        ({"about": "user:1", "agent": DESK}, "alone"),
        ({"agent": FOREIGN}, "tenant='acme'"),
        ({"agent": DESK, "session": ""}, "empty"),
        ({"about": "nul \x00"}, "NUL"),
        ({"tenant": "a:b"}, "letter"),
    ],
)
def test_requests_that_mean_nothing_are_refused(conditions: dict[str, Any], remedy: str) -> None:
    """The message says what to write instead."""
    with pytest.raises(ContractError, match="(?i)" + remedy):
        EraseRequest(**{"tenant": "default", **conditions})
