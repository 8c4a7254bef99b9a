"""What a process knows of the types of PostgreSQL it asks for once."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from actors._kernel.runtime.ids import HostIncarnation
from persistence._postgres.connection import link
from persistence._postgres.connection.link import StoreSettings, connect

ARRAYS = "select $1::int[] as numbers, $2::timestamptz[] as instants, $3::bool[] as flags"


async def test_a_second_connection_asks_for_no_type_that_the_first_was_told_of(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A type of the database's own has another number elsewhere, and is asked for each time."""
    asked_oids: list[int] = []
    ask = asyncpg.Connection._introspect_types  # type: ignore[attr-defined]

    async def introspect_and_record(self: object, oids: Any, timeout: float | None) -> Any:
        asked_oids.extend(oids)
        return await ask(self, oids, timeout)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", introspect_and_record)
    monkeypatch.setattr(link, "_known_types", {})
    settings = StoreSettings(url=postgres_dsn, owner=HostIncarnation("one"), schema=schema)
    counts = []
    for _ in range(2):
        connection = await connect(settings)
        try:
            row = await connection.fetchrow(ARRAYS, [1, 2], [], [True, None])
            assert row is not None
            assert (row["numbers"], row["instants"], row["flags"]) == ([1, 2], [], [True, None])
            counts.append(len(asked_oids))
            await connection.execute("create type pg_temp.mood as enum ('calm')")
            assert await connection.fetchval("select array['calm']::pg_temp.mood[]") == ["calm"]
        finally:
            await connection.close()

    assert counts[0] == 3
    assert len([oid for oid in asked_oids if oid < link.FIRST_UNSTABLE_OID]) == 3
    assert len(asked_oids) > 4, "each connection asks for what is the database's own"
