"""Fixture wiring only; what the fixtures do is in `processes.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compose.runtime import build_postgres_runtime
from compose.settings import Settings
from tests.integration.compose.commandline import Cli
from tests.system.processes import Hosts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from actors.runtime import Runtime

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.system)


@pytest.fixture
def hosts(postgres_dsn: str, schema: str, tmp_path: Path) -> Iterator[Hosts]:
    """Starts host processes on the test's schema."""
    started = Hosts(postgres_dsn, schema, tmp_path)
    yield started
    started.end()


@pytest.fixture
def cli(postgres_dsn: str, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line on the test's schema."""
    return Cli(postgres_dsn, schema, capsys)


@pytest.fixture
async def client(postgres_dsn: str, schema: str) -> AsyncIterator[Runtime]:
    """A client on the test's schema."""
    settings = Settings(postgres_url=postgres_dsn, db_schema=schema)
    async with build_postgres_runtime(postgres_dsn, settings=settings, serve=False) as runtime:
        yield runtime
