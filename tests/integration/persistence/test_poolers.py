"""A pooler between a host and PostgreSQL, which takes from a session what it asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import pytest

from actors._kernel.runtime.ids import HostIncarnation
from persistence.errors import DatabaseUnreachableError, DatabaseUrlError
from persistence.postgres import open_postgres_store
from tests.harness.pooler import Pooler
from tests.integration.persistence.hosts import host, sql

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OWNER: Final = HostIncarnation("h1")
SQL_TABLES: Final = (
    "select schemaname, tablename from pg_tables where schemaname = 'public' order by 1, 2"
)


@pytest.fixture
async def pooler(postgres_dsn: str) -> AsyncIterator[Pooler]:
    """A pooler in front of the session's server."""
    async with Pooler.to(postgres_dsn) as pooler:
        yield pooler


@pytest.mark.parametrize("others", ["refuses", "drops"])
async def test_a_pooler_is_refused_at_once_and_nothing_is_made(
    postgres_dsn: str, schema: str, pooler: Pooler, others: Literal["refuses", "drops"]
) -> None:
    """The error names the setting, the pooler and the way out; no table is made, in no schema."""
    pooler.others = others
    before = await sql(postgres_dsn, "public", SQL_TABLES)

    with pytest.raises(DatabaseUrlError, match=r"search_path.*pgbouncer") as exc_info:
        async with open_postgres_store(
            pooler.through(postgres_dsn), schema=schema, owner=OWNER, start_wait_s=5
        ):
            pass

    assert "Name PostgreSQL itself" in exc_info.value.remedy
    assert await sql(postgres_dsn, "public", SQL_TABLES) == before


async def test_a_pooler_that_comes_between_later_is_an_outage(
    postgres_dsn: str, schema: str, pooler: Pooler
) -> None:
    """A running host executes nothing through it, says why, and goes on when it is gone."""
    pooler.others = "passes"
    async with host(pooler.through(postgres_dsn), schema, outage_s=0.5) as bed:
        pooler.others = "drops"
        pooler.reset()
        with pytest.raises(DatabaseUnreachableError, match="pgbouncer"):
            await bed.store.lists.runs()
        pooler.others = "passes"

        assert await bed.store.lists.runs() == []
