"""How PostgreSQL finds what an erase removes: by keys, a batch at a time, however much others have."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest

from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId
from actors._kernel.stores.administration import EraseRequest
from actors._kernel.stores.flows import SnapshotFilter
from persistence._postgres.administration import erasure
from persistence._postgres.data.memories import PostgresLongTermMemories
from persistence.postgres import StoreSettings, open_store
from tests.conformance.stores.places import Place, links_to, make
from tests.harness.plans import faults
from tests.integration.persistence import grown_tables, test_board_plans, test_store_plans
from tests.integration.persistence.hosts import write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persistence.postgres import PostgresStore
    from tests.harness.plans import PlanBook
    from tests.integration.persistence.hosts import Counted

FEW, LARGE = 2_000, 1_000_000
USER: Final = "user:10"
MEMORIES: Final = """
insert into memories (tenant, about, slot, version, id, text, source, run_id, turn, metadata, dimensions,
    created_at, updated_at)
  select case n % 10 when 0 then 'acme' else 'other' end, 'user:' || n, 's', 1, 'i' || n, 'text', 'user',
      '', '', '{}', 0, now(), now()
    from generate_series(1, $1::int) n
"""
ROWS: Final = (*grown_tables.ROWS, *test_board_plans.ROWS, *test_store_plans.ROWS, MEMORIES)
DESK: Final = AgentId("desk", "10", "acme")
REQUESTS: Final = (
    EraseRequest(tenant="acme", agent=DESK, session="c10"),
    EraseRequest(tenant="acme", agent=DESK),
    EraseRequest(tenant="acme", about=USER),
)
WALKS: Final[Mapping[str, frozenset[str]]] = {
    # A subject is in metadata and properties: all of the tenant's are looked at, a page in a statement.
    "erase_documents": frozenset({"vector_documents"}),
    "erase_graph": frozenset({"graph_entities", "graph_relationships"}),
    # What is on its way is little; dead letters are walked by number.
    "erase_mail": frozenset({"outbox", "dead_letters"}),
    "forget_agent": frozenset({"dead_letters"}),
    # A dry run counts what an erase walks.
    "preview_erase": frozenset(
        {"dead_letters", "vector_documents", "graph_entities", "graph_relationships"}
    ),
}
"""Tables that a function reads beyond what it takes away."""
STATEMENTS: Final = frozenset(
    text for name, text in vars(erasure).items() if name.startswith(("SQL_ERASE_", "SQL_PREVIEW_"))
)


async def erase(store: PostgresStore, what: EraseRequest) -> int:
    """Count all of a scope, and take it away; return the number of batches."""
    batches = 0
    for part in store.data.erasure.parts:
        await part.count(what)
        cursor, is_done = None, False
        while not is_done:
            batch = await part.erase(what, cursor=cursor)
            cursor, is_done = batch.cursor, batch.cursor is None
            batches += 1
    return batches


def list_faults(book: PlanBook) -> list[str]:
    """The statements that read in vain, each with what."""
    return sorted(
        {
            f"{plan.name}: {fault}"
            for plan in book.plans
            for fault in faults(plan)
            if fault.rpartition(" ")[2] not in WALKS.get(plan.function, ())
        }
    )


async def make_tables(url: str, schema: str) -> None:
    """Use each store once."""
    database = Place(url, schema)
    await test_board_plans.work(url, schema)
    await make(database)
    async with links_to(database) as links:
        await PostgresLongTermMemories(links).of("acme").page()


@pytest.mark.parametrize("counted", ["never", "too early", "well"])
async def test_an_erase_finds_its_rows_by_keys(
    postgres_dsn: str, new_schema: str, book: PlanBook, counted: Counted
) -> None:
    """Whatever the planner knows, in an erase and in a dry run: of a conversation, an agent and a subject."""
    settings = StoreSettings(url=postgres_dsn, owner=HostIncarnation("h"), schema=new_schema)
    await make_tables(postgres_dsn, new_schema)
    async with open_store(settings) as store:
        await write(postgres_dsn, new_schema, dict.fromkeys(ROWS, (FEW,)), counted)
        book.clear()
        batches = [await erase(store, what) for what in REQUESTS]

    assert list_faults(book) == []
    assert {plan.query for plan in book.plans} >= STATEMENTS - {erasure.SQL_ERASE_FILES}
    assert max(batches) < 22, batches


@pytest.mark.parametrize("counted", ["never", "too early", "well"])
async def test_a_removal_of_flows_finds_rows_and_runs_by_keys(
    postgres_dsn: str, new_schema: str, book: PlanBook, counted: Counted
) -> None:
    """Whatever the planner knows: a removal of one version, and a list of all."""
    settings = StoreSettings(url=postgres_dsn, owner=HostIncarnation("h"), schema=new_schema)
    async with open_store(settings) as store:
        await write(postgres_dsn, new_schema, dict.fromkeys(grown_tables.ROWS, (FEW,)), counted)
        book.clear()
        rows = store.data.flow_bundles
        assert await rows.remove("default", "b1", "1", run_keys=["desk/o1:", "desk/none:"]) == 0
        assert len(await rows.list("default", "b2")) == FEW // 100

    assert list_faults(book) == []


@pytest.mark.parametrize("counted", ["never", "too early", "well"])
async def test_snapshots_are_found_by_keys(
    postgres_dsn: str, new_schema: str, book: PlanBook, counted: Counted
) -> None:
    """Whatever the planner knows: a page of a tenant's, those of a run, and one."""
    settings = StoreSettings(url=postgres_dsn, owner=HostIncarnation("h"), schema=new_schema)
    async with open_store(settings) as store:
        await write(postgres_dsn, new_schema, dict.fromkeys(grown_tables.ROWS, (FEW,)), counted)
        book.clear()
        rows = store.data.run_snapshots
        page = await rows.list("default", SnapshotFilter(), limit=10)
        assert len(await rows.list("default", SnapshotFilter(after=page[-1]), limit=10)) == 10
        [snapshot] = await rows.list("default", SnapshotFilter(run=RunId("r7"), apps=["a"]))
        assert await rows.get("default", snapshot.id) is not None
        assert await rows.remove("default", snapshot.id)

    assert list_faults(book) == []


OF_ONE: Final = """
insert into memories (tenant, about, slot, version, id, text, source, run_id, turn, metadata, dimensions,
    created_at, updated_at)
  select 'acme', $2, 's' || n, 1, 'u' || n, 'text', 'user', '', '', '{}', 0, now(), now()
    from generate_series(1, $1::int) n
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("CALLBOARD_TEST_SLOW"), reason="fills a table for minutes")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("counted", ["too early", "well"])
async def test_a_user_among_a_million_memories(
    postgres_dsn: str, new_schema: str, book: PlanBook, counted: Counted
) -> None:
    """Their memories go in one statement for each 500; none looks at more rows than it takes."""
    settings = StoreSettings(url=postgres_dsn, owner=HostIncarnation("h"), schema=new_schema)
    await make_tables(postgres_dsn, new_schema)
    what = EraseRequest(tenant="acme", about="user:x")
    async with open_store(settings) as store:
        changes = {MEMORIES: (LARGE,), OF_ONE: (10_000, "user:x")}
        await write(postgres_dsn, new_schema, changes, counted)
        [memories] = [part for part in store.data.erasure.parts if part.erased_as == "memories"]
        book.clear()
        batch = await memories.erase(what)
        batches, removed_rows = 1, batch.rows["versions"]
        while batch.cursor is not None:
            batch = await memories.erase(what, cursor=batch.cursor)
            batches, removed_rows = batches + 1, removed_rows + batch.rows["versions"]
        remaining = await store.data.memories.of("acme").page(about="user:10")

    deletes = [plan for plan in book.plans if plan.function == "erase_memories"]
    read_counts = [
        plan.read(node) for plan in deletes for node in plan.nodes if "Relation Name" in node
    ]
    assert (removed_rows, batches, len(remaining)) == (10_000, 21, 1)
    assert max(read_counts) <= 501
    assert [plan.query for plan in book.plans].count(erasure.SQL_ERASE_MEMORIES) == batches
