"""Every statement of ours against the migrated schema, and JSON that comes back as it went."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Final, get_args

import pytest
from pydantic_core import from_json, to_json

import persistence
from persistence._postgres.data.first_use import StoreName, first_use
from tests.conformance.bed import DESK, result
from tests.integration.persistence.hosts import connected, host, sql

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA_MODULES: Final = ("persistence._migrate", "persistence._migrate")


def statements() -> Iterator[tuple[str, str]]:
    """Name and text of every SQL_ constant in the package."""
    for module in pkgutil.walk_packages(persistence.__path__, "persistence."):
        if "postgres" not in module.name and module.name not in SCHEMA_MODULES:
            continue
        loaded_module = importlib.import_module(module.name)
        for name, text in vars(loaded_module).items():
            if name.startswith("SQL_"):
                yield f"{module.name}.{name}", text


async def test_every_statement_prepares(postgres_dsn: str, schema: str) -> None:
    """On the schema that the migrations make, with the tables of stores."""
    async with host(postgres_dsn, schema), connected(postgres_dsn, schema) as connection:
        for name in get_args(StoreName):
            await connection.execute(first_use(name))
        prepared_names = []
        for name, text in statements():
            await connection.prepare(text)
            prepared_names.append(name)

    assert len(prepared_names) > 25


async def test_functions_find_their_schema_from_anywhere(postgres_dsn: str, schema: str) -> None:
    """No function depends on the caller's search path, and none names the schema."""
    async with host(postgres_dsn, schema) as bed:
        await bed.begin()
        async with connected(postgres_dsn, "public") as connection:
            await connection.fetch(f"select * from {schema}.heartbeat('h1', interval '1 s')")
            await connection.fetch(f"select * from {schema}.request_cancel('h1', 'nobody', 'x')")


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

        (loaded_run,) = await bed.store.reads.load([run.run_id])
        state = await bed.store.reads.state(DESK)

    assert repr(loaded_run.entries[-1].payload["value"]) == repr(value)
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
