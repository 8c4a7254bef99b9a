"""How PostgreSQL finds boards and files: by their keys, whether anybody counted the rows or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from actors._kernel.runtime.ids import AgentId, HostIncarnation
from actors._kernel.stores.data import Task, TaskStatus
from persistence._postgres.data import artifacts, boards
from persistence.postgres import StoreSettings, open_postgres_files, open_store
from tests.harness.plans import faults
from tests.integration.persistence.hosts import write

if TYPE_CHECKING:
    from tests.harness.plans import PlanBook
    from tests.integration.persistence.hosts import Counted

FEW: Final = 3_000
# A tenth of each is of our tenant; thirty boards are of one conversation.
ROWS: Final = (
    """
    insert into task_boards (tenant, conversation, agent, title, tasks, calls)
      select case n % 10 when 0 then 'acme' else 'other' end, 'c' || n % 100, 'acme:desk/' || n, '', '{}', '{}'
        from generate_series(1, $1::int) n on conflict do nothing
    """,
    """
    insert into files (tenant, scope, key, artifact)
      select case n % 10 when 0 then 'acme' else 'other' end, 'files:main', 'k' || n, 'a'
        from generate_series(1, $1::int) n
    """,
)
STATEMENTS: Final = frozenset(
    text
    for module in (boards, artifacts)
    for name, text in vars(module).items()
    if name.startswith("SQL_") and (module is boards or name.endswith("_FILE"))
)
DESK: Final = AgentId("desk", "10", "acme")


async def work(url: str, schema: str) -> None:
    """Execute each statement of the stores."""
    settings = StoreSettings(url=url, owner=HostIncarnation("h"), schema=schema)
    async with (
        open_store(settings) as store,
        open_postgres_files(url, schema=schema, tenant="acme") as files,
    ):
        own = store.boards.of("acme")
        await own.create_task_list("c10", DESK, [Task(id="a", title="a")])
        await own.update_status("c10", DESK, "a", status=TaskStatus.IN_PROGRESS)
        await own.increment_retry("c10", DESK, "a")
        await own.add_tasks("c10", DESK, [Task(id="b", title="b")])
        assert len(await own.settle_conversation("c10")) == 1
        assert await own.get_task_list("c10", DESK)
        await own.get_boards("c10")
        for data in (b"one", b"two"):
            await files.upload("k", data)
        assert await files.download("k") == b"two"
        await files.delete("k")


@pytest.mark.item(324, 333)
@pytest.mark.parametrize("counted", ["never", "too early"])
async def test_boards_and_files_are_found_by_their_keys(
    postgres_dsn: str, new_schema: str, book: PlanBook, counted: Counted
) -> None:
    """Among many others."""
    await work(postgres_dsn, new_schema)
    await write(postgres_dsn, new_schema, dict.fromkeys(ROWS, (FEW,)), counted)
    book.clear()
    await work(postgres_dsn, new_schema)

    ours = [plan for plan in book.plans if plan.query in STATEMENTS]
    ours += [plan for plan in book.plans if plan.function in {"put_file", "delete_file"}]
    assert sorted({f"{plan.name}: {fault}" for plan in ours for fault in faults(plan)}) == []
    assert {plan.query for plan in ours} >= STATEMENTS
