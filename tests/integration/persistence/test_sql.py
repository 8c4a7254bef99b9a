"""Every statement of ours against the migrated schema, and JSON that comes back as it went."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

import asyncpg
import pytest
from pydantic_core import from_json, to_json

import persistence
from persistence.postgres.reads import SQL_LIST_RUNS
from tests.conformance.bed import DESK, result
from tests.integration.persistence.hosts import host, sql

if TYPE_CHECKING:
    from collections.abc import Iterator


ENDED_RUNS = """
insert into runs (run_id, agent, tenant, shard, hash, status, priority, depth, open, ended_at)
  select n::text, 'desk/' || n, 'default', 'p:desk:' || n % 16, n, 'COMPLETED', 5, 0, false, now()
    from generate_series(1, 20000) n
"""


def statements() -> Iterator[tuple[str, str]]:
    """Name and text of every SQL_ constant in the package."""
    for module in pkgutil.walk_packages(persistence.__path__, "persistence."):
        if "postgres" not in module.name and not module.name.endswith("migrate"):
            continue
        found = importlib.import_module(module.name)
        for name, text in vars(found).items():
            if name.startswith("SQL_"):
                yield f"{module.name}.{name}", text


async def test_every_statement_prepares(postgres_dsn: str, schema: str) -> None:
    """On the schema that the migrations make."""
    async with host(postgres_dsn, schema):
        connection = await asyncpg.connect(postgres_dsn, server_settings={"search_path": schema})
        try:
            prepared = []
            for name, text in statements():
                await connection.prepare(text)
                prepared.append(name)
        finally:
            await connection.close()

    assert len(prepared) > 25


async def test_open_runs_are_listed_by_their_index(postgres_dsn: str, schema: str) -> None:
    """Of many runs few are open: whoever lists those reads no others."""
    types = "text[],text,boolean,text,text,timestamptz,timestamptz,text,text,int,boolean"
    async with host(postgres_dsn, schema):
        await sql(postgres_dsn, schema, ENDED_RUNS)
        connection = await asyncpg.connect(postgres_dsn, server_settings={"search_path": schema})
        try:
            await connection.execute("analyze runs")
            await connection.execute(f"prepare listing({types}) as {SQL_LIST_RUNS}")
            asked = "'{RUNNING}',null,null,null,null,null,null,null,null,100,true"
            # After five times the server may plan it once for all.
            plans = [await connection.fetch(f"explain execute listing({asked})") for _ in range(8)]
        finally:
            await connection.close()

    text = "\n".join(row[0] for row in plans[-1])
    assert "runs_open" in text
    assert "Seq Scan on runs" not in text


async def test_functions_find_their_schema_from_anywhere(postgres_dsn: str, schema: str) -> None:
    """No function depends on the caller's search path, and none names the schema."""
    async with host(postgres_dsn, schema) as bed:
        await bed.begin()
        connection = await asyncpg.connect(postgres_dsn, server_settings={"search_path": "public"})
        try:
            await connection.fetch(f"select * from {schema}.heartbeat('h1', interval '1 s')")
            await connection.fetch(f"select * from {schema}.request_cancel('h1', 'nobody', 'x')")
        finally:
            await connection.close()


VALUES = [
    1e22,
    1e-7,
    1.0,
    -0.0,
    2**63,
    2**200,
    {"b": 1, "a": {"z": 1, "y": [1.0, 1]}},
    '\u00e9\U0001f600"\\\u2028',
    [],
    {},
    None,
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
async def test_a_recorded_value_comes_back_as_it_was(
    postgres_dsn: str, schema: str, value: object
) -> None:
    """Same type, same order of keys, same notation: what replay returns is what was live (ADR 2)."""
    async with host(postgres_dsn, schema) as bed:
        run = await bed.begin()
        await run.append(result("0", value))  # type: ignore[arg-type]
        await run.commit(run.turn(state={"k": value}))  # type: ignore[dict-item]

        (loaded,) = await bed.store.load([run.run_id])
        state = await bed.store.state(DESK)

    assert repr(loaded.entries[-1].payload["value"]) == repr(value)
    assert repr(state["k"]) == repr(value)


async def test_jsonb_would_not_give_it_back(postgres_dsn: str, schema: str) -> None:
    """The reason of ADR 2, so that nobody has to believe it."""
    value = {"b": 1e22, "a": 1.0}
    async with host(postgres_dsn, schema):
        (row,) = await sql(
            postgres_dsn,
            schema,
            "select $1::text::jsonb::text as jsonb, $1::text::json::text as json",
            to_json(value).decode(),
        )

    assert repr(from_json(row["json"])) == repr(value)
    assert list(from_json(row["jsonb"])) == ["a", "b"]
    assert isinstance(from_json(row["jsonb"])["b"], int)
