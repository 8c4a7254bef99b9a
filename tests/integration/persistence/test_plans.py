"""How PostgreSQL finds the rows of a statement: by a key, whether its tables are young or large."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._kernel.agent.agent import SpawnBudget
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import NewTurn
from actors._kernel.runtime.ids import AgentId, RunId, partition_hash
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.stores.conversations import SessionFilter
from actors._kernel.stores.runs import RunFilter
from tests.conformance.bed import child_spawned, result
from tests.conformance.talk import ask_wait, join_wait, rest, terms
from tests.harness.plans import MODES, faults
from tests.integration.persistence.grown_tables import ENDED_RUNS, MAILBOX, ROWS
from tests.integration.persistence.hosts import sql, write
from tests.integration.persistence.mailing import post_office
from tests.integration.persistence.test_sql import statements
from tests.integration.persistence.workday import Workday

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.harness.plans import PlanBook
    from tests.integration.persistence.hosts import Counted

YOUNG, LARGE = 1_000, 200_000
BY_CHOICE: Final[Mapping[str, str]] = {
    "SQL_SELECT_ZONED": "once for every shard that is new",
    "SQL_DELETE_DONE": "now and then; the table is read while it is small",
    "SQL_SELECT_USAGE": "a person asks; it is a sum of all, or of much",
}
"""Statements and functions that read more than they are about, and when."""

BY_COMMITS: Final = ("commit_runs", "commit_fast")

SELDOM: Final = frozenset(
    {
        # when a host starts, stops, connects, or takes shards over
        "all_cycles",
        "cycles_among",
        "declare_agents",
        "meet_stream",
        "move_follows",
        "next_arrival",
        "next_stream_epoch",
        "release_shards",
        "same_kind_of_mail",
        "SQL_BLOCKERS",
        "SQL_CREATE_FUNCTIONS",
        "SQL_CREATE_TABLE",
        "SQL_DECLARE_AGENTS",
        "SQL_DEPLOYMENT",
        "SQL_END_PREDECESSOR",
        "SQL_HAS_FUNCTIONS",
        "SQL_HAS_SCHEMA",
        "SQL_HAS_TABLE",
        "SQL_IS_INVALID",
        "SQL_LIMIT_WAITS",
        "SQL_SESSION",
        "SQL_INSERT_APPLIED",
        "SQL_KEEP_FUNCTIONS",
        "SQL_LOCK",
        "SQL_MEET_STREAM",
        "SQL_NEXT_STREAM_EPOCH",
        "SQL_OPEN_RUNS",
        "SQL_READERS",
        "SQL_READ_CLOCK",
        "SQL_AWAKE_RUNS",
        "SQL_SLEEPERS",
        "SQL_RELEASE_SHARDS",
        "SQL_SELECT_APPLIED",
        "SQL_SELECT_FUNCTIONS",
        "SQL_SIGNATURES",
        "SQL_UNLOCK",
        # when code blocks a host, or the answer to a chunk of followers was lost
        "give_up_blocked",
        "SQL_FIND_EXPANDED",
        "SQL_GIVE_UP_BLOCKED",
        # of rows that no host can read
        "SQL_OUTBOX_KEYS",
        # by hosts of the release before
        "expand_fanout",
        # by one host for all: totals read what is open and what waits
        "SQL_CLAIM_COUNT",
        "SQL_COUNT_NOW",
        "SQL_KEEP_TOTALS",
        "SQL_KNOWN_TOTALS",
        # of the memories, which are made on first use: see test_memory_tables.py
        "SQL_FORGET_MEMORY",
        "SQL_LIST_MEMORIES",
        "SQL_LIST_SCOPE",
        "SQL_PUT_MEMORY",
        "SQL_SEARCH_MEMORIES",
        "SQL_SELECT_VERSIONS",
        # of tables that are made on first use: see test_store_plans.py
        "SQL_DELETE_DOCUMENTS",
        "SQL_DELETE_ENTITY",
        "SQL_DELETE_RELATIONSHIP",
        "SQL_KEEP_DOCUMENTS",
        "SQL_KEEP_ENTITY",
        "SQL_KEEP_RELATIONSHIP",
        "SQL_SEARCH_DOCUMENTS",
        "SQL_SELECT_ENTITY",
        "SQL_SELECT_NEIGHBORS",
        "SQL_SELECT_RELATIONSHIP",
        # of no table: hints to processes that follow a log
        "SQL_SAY",
        # of artifacts in a bucket: a row for each upload under way, see test_artifact_objects.py
        "SQL_BEGIN_OBJECT",
        "SQL_FORGET_OBJECTS",
        "SQL_TAKE_OBJECTS",
        # of search indexes, which operators build: see test_search_indexes.py
        "erase_indexes",
        "nearest_indexed",
        "search_documents",
        "search_index",
        "search_memories",
        "SQL_BUILD_LIMITS",
        "SQL_DOCUMENT_SCOPES",
        "SQL_ERASE_INDEXES",
        "SQL_FORGET_INDEX",
        "SQL_HAS_TABLES",
        "SQL_INDEX_STATES",
        "SQL_KNOWN_INDEXES",
        "SQL_LOCK_INDEXES",
        "SQL_MEMORY_SCOPES",
        "SQL_NOTE_INDEX",
        "SQL_PGVECTOR",
        "SQL_UNLOCK_INDEXES",
        # of graphs of Apache AGE: see test_age_plans.py
        "SQL_MAKE_CYPHER_GRAPH",
        "SQL_RUN_CYPHER",
        # of tables that are made on first use: see test_board_plans.py
        "SQL_ADD_TASKS",
        "SQL_CHANGE_TASK",
        "SQL_COUNT_RETRY",
        "SQL_DELETE_FILE",
        "SQL_PUT_BOARD",
        "SQL_PUT_FILE",
        "SQL_SELECT_BOARD",
        "SQL_SELECT_BOARDS",
        "SQL_SELECT_FILE",
        "SQL_SETTLE",
        # by operators
        "drop_runs",
        "forget_agent",
        "agents_to_erase",
        "erase_artifacts",
        "erase_audit",
        "erase_boards",
        "erase_memories",
        "erase_documents",
        "erase_files",
        "erase_graph",
        "erase_mail",
        "erase_runs",
        "erase_sessions",
        "erase_snapshots",
        "erase_turns",
        "preview_erase",
        "SQL_AGENTS_TO_ERASE",
        "SQL_ERASE_ARTIFACTS",
        "SQL_ERASE_AUDIT",
        "SQL_ERASE_BOARDS",
        "SQL_ERASE_DOCUMENTS",
        "SQL_ERASE_FILES",
        "SQL_ERASE_GRAPH",
        "SQL_ERASE_MAIL",
        "SQL_ERASE_MEMORIES",
        "SQL_ERASE_RUNS",
        "SQL_ERASE_SESSIONS",
        "SQL_ERASE_TOKENS",
        "SQL_COUNT_TOKENS",
        "SQL_ERASE_FLOWS",
        "SQL_COUNT_FLOWS",
        "SQL_ERASE_SNAPSHOTS",
        "SQL_ERASE_TURNS",
        "SQL_OPEN_RUNS_TO_ERASE",
        "SQL_PREVIEW_ERASE",
        "SQL_FORGET_AGENT",
        "delete_limit",
        "fork_run",
        "redrive_dead_letters",
        "redrive_run",
        "to_decide",
        "SQL_AGENTS",
        "SQL_DEAD_LETTERS",
        "SQL_DELETE_LIMIT",
        "SQL_DELETE_SCHEDULE",
        "SQL_DISCARD_LETTERS",
        "SQL_FIRST_MESSAGES",
        "SQL_FOLLOWERS",
        "SQL_FOLLOWING",
        "SQL_FORK_RUN",
        "SQL_HOSTS",
        "SQL_INBOX",
        "SQL_REDRIVE_LETTERS",
        "SQL_REDRIVE_RUN",
        "SQL_SELECT_LETTERS",
        "SQL_SELECT_SCHEDULE",
        "SQL_SELECT_SCHEDULES",
        "SQL_SHARDS_OF",
        "SQL_TOTALS",
        "SQL_PAGE_OF_SESSIONS",
        "SQL_LIST_TOKENS",
        "SQL_PUT_FLOW",
        "SQL_LIST_FLOWS",
        "SQL_LIST_VERSIONS",
        "SQL_REMOVE_FLOW",
        "SQL_PUT_SNAPSHOT",
        "SQL_GET_SNAPSHOT",
        "SQL_LIST_SNAPSHOTS",
        "SQL_LIST_SNAPSHOTS_OF_RUN",
        "SQL_REMOVE_SNAPSHOT",
        "SQL_SWEEP_THESE",
        "SQL_TASKS",
    }
)
"""What runs neither per message, nor per commit, nor by the clock."""


@pytest.fixture
def schema(new_schema: str) -> str:
    """One that is not there: its tables were never counted."""
    return new_schema


async def fill(url: str, schema: str, count: int, counted: Counted) -> None:
    """Write so many rows of each kind; nobody but the test analyses them, if and when `counted` says."""
    tables = await sql(url, schema, "select tablename from pg_tables where schemaname = $1", schema)
    for (table,) in tables:
        await sql(url, schema, f"alter table {table} set (autovacuum_enabled = off)")
    await write(url, schema, dict.fromkeys(ROWS, (count,)), counted)


def list_faults(book: PlanBook) -> list[str]:
    """The statements that read in vain, each with what."""
    chosen_queries = {text for name, text in statements() if name.rpartition(".")[2] in BY_CHOICE}
    return sorted(
        {
            f"{plan.name}: {fault}"
            for plan in book.plans
            if plan.query not in chosen_queries and plan.function not in BY_CHOICE
            for fault in faults(plan)
        }
    )


async def not_seen(url: str, schema: str, book: PlanBook) -> list[str]:
    """Statements and functions of ours that no plan was told of."""
    queries = {plan.query for plan in book.plans}
    functions = {plan.function for plan in book.plans}
    rows = await sql(
        url,
        schema,
        "select p.proname as name from pg_proc p join pg_language l on l.oid = p.prolang"
        " where l.lanname = 'plpgsql' and p.pronamespace = $1::regnamespace",
        schema,
    )
    return sorted(
        {name.rpartition(".")[2] for name, text in statements() if text not in queries} - SELDOM
        | {row["name"] for row in rows} - functions - SELDOM
    )


@pytest.mark.costly
@pytest.mark.parametrize("counted", ["never", "too early"])
async def test_while_tables_are_young(
    postgres_dsn: str, schema: str, book: PlanBook, counted: Counted
) -> None:
    """Plans that were made before there was a row find theirs among a thousand that nobody analysed.

    So do those made when autovacuum saw no row: it came while they were written, and noted empty pages.
    All that is executed per message, per commit or by the clock is looked at.
    """
    async with post_office(postgres_dsn, schema) as post:
        if counted == "never":
            await Workday(post, "first").work()
        await fill(postgres_dsn, schema, YOUNG, counted)
        book.clear()
        await Workday(post, "second").work()

    assert list_faults(book) == []
    assert await not_seen(postgres_dsn, schema, book) == []


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("CALLBOARD_TEST_SLOW"), reason="fills tables for minutes")
@pytest.mark.timeout(900)
async def test_when_tables_are_large(postgres_dsn: str, schema: str, book: PlanBook) -> None:
    """Of hundreds of thousands of rows no more are read, whether plans are kept or made each time."""
    async with post_office(postgres_dsn, schema):
        await fill(postgres_dsn, schema, LARGE, "well")
    for mode in MODES:
        book.mode = mode
        async with post_office(postgres_dsn, schema) as post:
            book.clear()
            await Workday(post, mode).work()
        assert list_faults(book) == [], mode


@pytest.mark.parametrize("counted", ["never", "too early", "well"])
async def test_a_long_mailbox_costs_a_commit_no_more(
    postgres_dsn: str, schema: str, book: PlanBook, counted: Counted
) -> None:
    """Where ten thousand messages wait, a commit that takes one looks at no more pages than where five do."""
    costs = []
    async with post_office(postgres_dsn, schema) as post:
        day = Workday(post, "day")
        await day.mailboxes()
        for count in (0, 10_000):
            await write(postgres_dsn, schema, {MAILBOX: (count,)}, counted)
            book.clear()
            await day.mailboxes()
            costs.append(sum(plan.pages for plan in book.plans if plan.function in BY_COMMITS))

    assert max(costs) < 2 * costs[0], costs


TALK: Final = AgentId("clerk", "talk")
SHORT_TALKS: Final = """
insert into transcript_turns (agent, session, ordinal, id, run_id, body)
  select 'clerk/o' || n, 's', k, md5(n || ' ' || k), '', '{"role": "user"}'
    from generate_series(1, 300) n, generate_series(1, 20) k
"""
LONG_TALK: Final = """
insert into transcript_turns (agent, session, ordinal, id, run_id, body)
  select 'clerk/talk', 'talk', n, md5(n::text), '', '{"role": "user"}'
    from generate_series(1000, 999 + $1::int) n
"""
"""So many more turns of a session: the index of their ids gets higher than that of their ordinals."""


@pytest.mark.parametrize("mode", MODES)
async def test_a_turn_costs_the_same_in_a_long_conversation(
    postgres_dsn: str, schema: str, book: PlanBook, mode: str
) -> None:
    """To write it, and to read it by its id or in a page, also where the planner knows of short ones only."""
    costs: list[int] = []
    book.mode = mode
    async with post_office(postgres_dsn, schema) as post:
        await write(postgres_dsn, schema, {SHORT_TALKS: ()}, "well")
        store = post.bed.store

        async def talk(n: int) -> None:
            turns = [NewTurn(TALK.key, f"{n}.{k}", ChatMessage.of("user", "hi")) for k in range(3)]
            await store.data.transcripts.append(TALK, turns)
            ids = [turn.id for turn in turns]
            [first, *_] = await store.data.sessions.nodes(TALK, ids)
            for branches in (False, True):
                page = await store.data.sessions.path(
                    TALK, after=first.ordinal - 1, limit=3, branches=branches
                )
                assert [node.id for node in page] == ids

        for n, count in enumerate((0, 20_000)):
            await talk(10 * n)
            await write(postgres_dsn, schema, {LONG_TALK: (count,)}, "never")
            book.clear()
            await talk(10 * n + 1)
            costs.append(sum(plan.pages for plan in book.plans if not plan.function))

    assert costs[1] < 3 * costs[0], costs


async def test_a_child_costs_the_same_however_many_there_are(
    postgres_dsn: str, schema: str, book: PlanBook
) -> None:
    """To spawn it and to wait for it, its own rest, its end, and to take its answer: so many pages each.

    Of a parent that a thousand keep waiting no commit reads, writes or locks the others.
    """
    costs: dict[int, list[float]] = {}
    async with post_office(postgres_dsn, schema) as post:
        for count in (10, 10, 1000):  # the first time reads what later ones have in memory
            run = await post.bed.begin(
                agent=AgentId("desk", f"of-{count}-{len(costs)}"),
                supervision=terms(spawn=SpawnBudget(max_runs=count)),
            )
            children = [
                run.child(f"{n}", AgentId("clerk", f"{run.run_id}-{n}"), boot=n)
                for n in range(count)
            ]
            below = [run.of_child(child) for child in children]
            joins = tuple(
                replace(join_wait(child, must=n == 0), position=f"{n}")
                for n, child in enumerate(below)
            )
            remaining_joins = (replace(joins[1], must=True), *joins[2:])
            first, last = below[0], below[-1]

            def read_pages() -> int:
                pages = sum(plan.pages for plan in book.plans if not plan.function)
                book.clear()
                return pages

            book.clear()
            entries = [child_spawned(child) for child in children]
            await run.commit(run.turn(*entries, spawned=tuple(children)))
            spawns = read_pages() / count
            await run.commit(run.turn(waits=joins, known_waits=()))
            waits = read_pages() / count
            await first.start()
            await last.start()
            book.clear()
            await rest(last, ask_wait("q", AgentId("clerk", "nobody")))
            rests = read_pages()
            await first.complete(1)
            ends = read_pages()
            taken_keys = (first.run_id,)
            await run.commit(
                run.turn(
                    result("x"), take_answers=taken_keys, waits=remaining_joins, known_waits=joins
                )
            )
            costs[count] = [spawns, waits, rests, ends, read_pages()]

    assert all(many < 1.5 * few for few, many in zip(costs[10], costs[1000], strict=True)), costs


RARE: Final = AgentId("rare", "1", "acme")
LISTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "all": {},
    "status": {"status": [RunStatus.FAILED]},
    "open": {"status": [RunStatus.RUNNING]},
    "parked": {"parked": True},
    "agent": {"agent": RARE},
    "type": {"among": RunFilter(type="rare")},
    "tenant": {"among": RunFilter(tenant="acme")},
    "time": {"among": RunFilter(until=datetime(2020, 1, 1, tzinfo=UTC))},
    "page": {"among": RunFilter(after=RunId("ended-19990"))},
}
RARE_RUNS: Final = """
insert into runs (run_id, agent, tenant, shard, hash, status, priority, depth, open, ended_at, ended_as,
    created_at)
  select 'rare-' || n, 'acme:rare/1', 'acme', 'i:', $1, 'FAILED', 5, 0, false, now(), 'FAILED',
      now() - interval '1 year' from generate_series(1, 3) n
"""


async def test_a_list_reads_what_it_shows(postgres_dsn: str, schema: str, book: PlanBook) -> None:
    """By whatever it chooses: the runs wanted are three of twenty thousand, and older than the others."""
    counts: dict[str, int] = {}
    in_vain: dict[str, list[str]] = {}
    book.mode = "auto"  # after five times the server may plan it once for all
    async with post_office(postgres_dsn, schema) as post:
        await sql(postgres_dsn, schema, ENDED_RUNS, 20_000)
        await sql(postgres_dsn, schema, RARE_RUNS, partition_hash(RARE))
        await sql(postgres_dsn, schema, "analyze runs")
        for name, filters in LISTS.items():
            for _ in range(7):
                book.clear()
                counts[name] = len(await post.store.lists.runs(limit=10, **filters))
            in_vain[name] = [fault for fault in list_faults(book) if ": all of " not in fault]

    assert counts == {
        "all": 10,
        "status": 3,
        "open": 0,
        "parked": 0,
        "agent": 3,
        "type": 3,
        "tenant": 3,
        "time": 0,
        "page": 10,
    }
    assert not any(in_vain.values()), in_vain


TITLED: Final = """
insert into sessions (agent, tenant, type, owner, title, title_folded, created_at, last_at)
  select 'desk/t' || n, 'default', 'desk', 'ada', 'fish', 'fish', now(), now() - n * interval '1 s'
    from generate_series(1, 3000) n
"""


@pytest.mark.parametrize("mode", MODES)
async def test_a_search_reads_as_many_sessions_as_it_may(
    postgres_dsn: str, schema: str, book: PlanBook, mode: str
) -> None:
    """Of thousands, none of which has the title or the state: of an app, of an owner, and of a later page."""
    book.mode = mode
    async with post_office(postgres_dsn, schema) as post:
        await write(postgres_dsn, schema, {TITLED: ()}, "never")
        directory, cost = post.store.data.directory, list[int]()
        desk = SessionFilter(tenant="default", app="desk")
        for conditions in (
            {"title": "whale"},
            {"title": "whale", "owner": "ada"},
            {"is_active": True},
        ):
            session_filter: SessionFilter = replace(desk, **conditions)
            for _ in range(2):
                book.clear()
                page = await directory.find(session_filter, limit=10, most_read=100)
                assert (page.rows, page.read_until is None) == ([], False)
                session_filter = replace(session_filter, after=page.read_until)
                cost += [
                    plan.read(node)
                    for plan in book.plans
                    for node in plan.nodes
                    if node.get("Relation Name") == "sessions"
                ]

    assert len(cost) >= 12
    assert max(cost) <= 101, cost
