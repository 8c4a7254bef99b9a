"""A database of its own, whose user may create tables in it and no extension."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.servers.postgres import TestPostgres


@contextlib.contextmanager
def age_database(server: TestPostgres) -> Iterator[str]:
    """Like `plain_database`, with Apache AGE as an operator sets it up for this user."""
    with plain_database(server) as url:
        parts = urlsplit(url)
        operator = urlunsplit(urlsplit(server.url)._replace(path=parts.path))
        grant = f"grant usage on schema ag_catalog to {parts.username}"
        asyncio.run(_execute(operator, "create extension age", grant))
        yield url


@contextlib.contextmanager
def plain_database(postgres: TestPostgres) -> Iterator[str]:
    """Yield the URL of a new database, dropped with its user at the end. Not within an event loop."""
    name, password = f"plain_{secrets.token_hex(6)}", secrets.token_hex(8)
    try:
        asyncio.run(
            _execute(
                postgres.url,
                f"create role {name} login password '{password}'",
                f"create database {name} owner {name}",
            )
        )
    except asyncpg.InsufficientPrivilegeError as exc:
        pytest.skip(f"{exc}: give the tests a superuser")
    try:
        yield _as_user(postgres.url, name, password)
    finally:
        asyncio.run(
            _execute(postgres.url, f"drop database {name} with (force)", f"drop role {name}")
        )


def _as_user(url: str, name: str, password: str) -> str:
    parts = urlsplit(url)
    _, _, where = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{name}:{password}@{where}", path=f"/{name}"))


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()
