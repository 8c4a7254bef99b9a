"""Boards and files on PostgreSQL: lost answers, tables that two programs make at once, and openings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId, HostIncarnation
from actors._kernel.stores.data import Task, TaskStatus
from actors.errors import InvalidTextError
from persistence._postgres.connection.link import Links, ServerOutage, StoreSettings
from persistence._postgres.data.boards import PgTaskBoards
from persistence.postgres import open_postgres_files
from tests.harness.proxy import FaultProxy
from tests.integration.persistence.hosts import host

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors._kernel.stores.data import TaskStore

DESK, CLERK = AgentId("desk", "1"), AgentId("clerk", "1")
BUSY = TaskStatus.IN_PROGRESS
CALLS: dict[str, Callable[[TaskStore], Awaitable[object]]] = {
    "retry": lambda store: store.increment_retry("lost", DESK, "a"),
    "status": lambda store: store.update_status("lost", DESK, "a", status=BUSY, note="x"),
    "add": lambda store: store.add_tasks("lost", DESK, [Task(id="new", title="new")]),
    "settle": lambda store: store.settle_conversation("lost"),
    "create": lambda store: store.create_task_list("lost", DESK, [Task(id="n", title="n")]),
}


@pytest.mark.item(333)
async def test_a_call_whose_answer_is_lost_counts_once(postgres_dsn: str, schema: str) -> None:
    """It is sent again, and returns what the first try has done; two programs make the tables at once."""
    async with FaultProxy.to(postgres_dsn) as proxy, host(postgres_dsn, schema):
        settings = StoreSettings(
            url=proxy.through(postgres_dsn), owner=HostIncarnation("test"), schema=schema
        )
        links = Links(settings, ServerOutage(settings), 2)
        first, other = PgTaskBoards(links).of("default"), PgTaskBoards(links).of("default")
        busy = [Task(id="a", title="a", status=BUSY)]
        try:
            await asyncio.gather(
                first.create_task_list("known", DESK, []),
                other.create_task_list("known", CLERK, []),
            )
            counts = []
            for name, call in CALLS.items():
                await other.create_task_list("lost", DESK, busy)
                loss = proxy.lose_response(request_has=b"lost")
                outcome = await call(first)
                board = await other.get_task_list("lost", DESK)
                assert board is not None
                assert loss.happened.is_set(), name
                counts.append((board.tasks[0].retry_count, len(board.tasks)))
                if name == "settle":
                    assert outcome == [board]
        finally:
            await links.close()

    assert counts == [(1, 1), (0, 1), (0, 2), (0, 1), (0, 1)]


@pytest.mark.item(307, 310)
async def test_files_are_kept_without_a_runtime(postgres_dsn: str, schema: str) -> None:
    """Another program that opens the schema later finds them, each tenant its own."""
    key, contents = "x" * 1_024, list[bytes | None]()
    async with open_postgres_files(
        postgres_dsn, tenant="acme", scope="s" * 1_000, schema=schema
    ) as files:
        await files.upload(key, b"All is well.")
    for tenant, scope in (("acme", "s" * 1_000), ("bolt", "s" * 1_000), ("acme", "main")):
        async with open_postgres_files(
            postgres_dsn, tenant=tenant, scope=scope, schema=schema
        ) as files:
            try:
                contents.append(await files.download(key))
            except KeyError:
                contents.append(None)

    assert contents == [b"All is well.", None, None]
    with pytest.raises(InvalidTextError, match="scope of files"):
        async with open_postgres_files(postgres_dsn, scope="\x00", schema=schema):
            pass
