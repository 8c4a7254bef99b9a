"""Turns over 256 KiB on Postgres: an artifact, which is stored before its row and goes with it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import new_turn
from actors._kernel.runtime.ids import AgentId, HostIncarnation
from persistence._postgres.commits.encode import json_text
from persistence._postgres.commits.unit import put_apart, turn_rows
from persistence._postgres.connection.link import Links, ServerOutage
from persistence._postgres.conversations.transcripts import SQL_APPEND
from persistence._postgres.data.artifacts import PostgresArtifacts
from persistence.errors import RefusedError
from persistence.postgres import open_postgres_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from persistence._postgres.store import PostgresStore
    from tests.harness.servers import TestPostgres

pytestmark = pytest.mark.postgres
DESK = AgentId("desk", "1", "acme")
LARGE = "é" * 400_000
TABLES = ("transcript_turns", "artifacts", "artifact_chunks", "artifact_uploads", "artifact_pins")


class Ground:
    """A store, its artifacts, and a look at its rows."""

    def __init__(self, store: PostgresStore, links: Links, rows: asyncpg.Connection) -> None:
        self.transcripts, self.retention = store.data.transcripts, store.retention
        self.sessions = store.data.sessions
        self.links, self.rows = links, rows
        self.artifacts = PostgresArtifacts(links)

    async def counts(self) -> list[int]:
        """Numbers of rows, table by table."""
        return [await self.rows.fetchval(f"select count(*) from {name}") for name in TABLES]

    async def texts(self) -> list[str]:
        """The texts of the session."""
        return [turn.message.text for turn in await self.transcripts.page(DESK, "s")]

    async def stored_apart(self) -> str:
        """What a process has stored that dies before it writes the row; its statement's argument."""
        rows: Any = {"turns": turn_rows([say(LARGE, "t1")], DESK.key)}
        await put_apart(rows, DESK, self.artifacts.of)
        return json_text({name: [{"t": 1, **row} for row in of] for name, of in rows.items()}, "")


def say(text: str, turn: str) -> Any:
    """A turn of the user with an id."""
    message = ChatMessage.of("user", text)
    return new_turn(message.model_copy(update={"metadata": {"turn": turn}}), "s")


@pytest.fixture
async def ground(postgres_server: TestPostgres, schema: str) -> AsyncIterator[Ground]:
    """An empty schema with a store on it."""

    @asynccontextmanager
    async def open_ground() -> AsyncIterator[Ground]:
        url, owner = postgres_server.url, HostIncarnation("h1")
        rows = await asyncpg.connect(url, server_settings={"search_path": schema})
        async with open_postgres_store(url, owner=owner, schema=schema) as store:
            links = Links(store.settings, ServerOutage(store.settings), 2)
            try:
                yield Ground(store, links, rows)
            finally:
                await links.close()
                await rows.close()

    async with open_ground() as new_ground:
        yield new_ground


@pytest.mark.item(285)
@pytest.mark.parametrize("way", ["clear", "clear_run", "forget_agent"])
async def test_a_large_turn_is_an_artifact_that_is_deleted_with_it(
    ground: Ground, way: str
) -> None:
    """Its row is short and says where it is; whatever takes the row takes all of it."""
    await ground.transcripts.append(DESK, [say("Hi", "t0"), say(LARGE, "t1")], run_id="r")
    [small, large] = await ground.rows.fetch(
        "select octet_length(body::text) as size, body ->> 'role' as role, artifact"
        " from transcript_turns order by ordinal"
    )

    assert (small["artifact"], large["role"]) == (None, "user")
    assert large["size"] < 400
    assert await ground.counts() == [2, 1, 4, 0, 1]
    assert await ground.texts() == ["Hi", LARGE]
    assert await ground.artifacts.collect(grace_s=0) == 0
    match way:
        case "clear":
            await ground.transcripts.clear(DESK, "s")
        case "clear_run":
            await ground.transcripts.clear_run(DESK, "s", "r")
        case _:
            await ground.retention.forget_agent(DESK)
    assert await ground.counts() == [0] * 5


@pytest.mark.item(285)
async def test_a_crash_before_the_row_leaves_an_orphan_that_is_collected(ground: Ground) -> None:
    """Not within a day, in which its row may come; the same turn written again is whole."""
    await ground.stored_apart()

    await ground.retention.forget_old(older_than_s=None)
    assert await ground.counts() == [0, 1, 4, 0, 0]
    await ground.transcripts.append(DESK, [say(LARGE, "t1")])
    assert await ground.counts() == [1, 1, 4, 0, 1]
    await ground.transcripts.clear(DESK, "s")
    await ground.stored_apart()
    await ground.rows.execute("update artifacts set at = at - interval '25 hours'")
    await ground.retention.forget_old(older_than_s=None)
    assert await ground.counts() == [0] * 5


@pytest.mark.item(285)
async def test_no_row_names_a_deleted_artifact(ground: Ground) -> None:
    """A row that comes after its artifact was collected is refused, and may be written anew."""
    argument = await ground.stored_apart()
    assert await ground.artifacts.collect(grace_s=0) == 1

    with pytest.raises(RefusedError, match="was collected before"):
        await ground.links.fetch("adding turns", SQL_APPEND, argument, ["r"], [str(DESK)])
    assert await ground.counts() == [0] * 5
    await ground.transcripts.append(DESK, [say(LARGE, "t1")])
    assert await ground.texts() == [LARGE]


@pytest.mark.item(285, 286)
async def test_a_large_turn_with_a_known_id_leaves_nothing_behind(ground: Ground) -> None:
    """The session keeps its turn; what was stored for the other one is nobody's."""
    await ground.transcripts.append(DESK, [say("Hi", "t1")])
    await ground.transcripts.append(DESK, [say(LARGE, "t1"), say(LARGE, "t1")])

    assert await ground.texts() == ["Hi"]
    assert await ground.artifacts.collect(grace_s=0) == 1
    assert await ground.counts() == [1, 0, 0, 0, 0]


@pytest.mark.item(285)
async def test_a_turn_without_its_bytes_does_not_end_a_list(ground: Ground) -> None:
    """Its page has the next turn in its place, which still follows it; another reader goes on behind that."""
    turns = [say(LARGE if n in (1, 2, 4) else "Hi", f"t{n}") for n in range(7)]
    await ground.transcripts.append(DESK, [replace(turn, session=DESK.key) for turn in turns])
    await ground.rows.execute("delete from artifact_pins")
    await ground.rows.execute("delete from artifacts")

    for branches in (False, True):
        read_page = partial(ground.sessions.path, DESK, limit=2, branches=branches)
        pages = [await read_page()]
        while len(pages[-1]) == 2:
            pages.append(await read_page(after=pages[-1][-1].ordinal))
        assert [[node.id for node in page] for page in pages] == [["t0", "t3"], ["t5", "t6"], []]
        assert [node.parent for page in pages for node in page] == [None, "t2", "t4", "t5"]
    page = await ground.transcripts.page(DESK, DESK.key, limit=2, offset=1)
    assert [turn.id for turn in page] == ["t3", "t5"]


@pytest.mark.item(285)
async def test_a_round_of_collecting_takes_no_more_than_it_can(ground: Ground) -> None:
    """The oldest first, 256 MiB and one more at most; later rounds take the others."""
    for n in range(4):
        await ground.artifacts.of("acme", "s").store(bytes([n]))
    await ground.rows.execute("update artifacts set size_bytes = 200 * 1024 * 1024")

    assert [await ground.artifacts.collect(grace_s=0) for _ in range(3)] == [2, 2, 0]
    assert await ground.counts() == [0] * 5
