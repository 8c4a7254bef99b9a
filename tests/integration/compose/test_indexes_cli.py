"""`callboard indexes`: large collections and memory scopes, and how these are searched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors._kernel.stores.data import VectorDocument
from actors._kernel.stores.memory import NewMemory
from compose._commands.output import Exit
from persistence.postgres import open_postgres_vectors
from tests.integration.compose.commandline import Cli

if TYPE_CHECKING:
    from tests.harness.servers import TestPostgres

pytestmark = pytest.mark.postgres
DOCUMENTS = [
    VectorDocument(id=f"{n}", content="text", embedding=(1.0, float(n))) for n in range(12)
]


@pytest.fixture
def cli(postgres_server: TestPostgres, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands on this test's schema."""
    return Cli(postgres_server.url, schema, capsys)


async def test_indexes_are_listed_built_and_dropped(cli: Cli) -> None:
    """Of what is large, by tenant; those whose rows are gone go with the next build."""
    empty = await cli.call("indexes", "list")
    assert empty.out == "no large collection, and no index\n"
    async with (
        cli.host() as runtime,
        open_postgres_vectors(cli.url, schema=cli.schema, tenant="acme") as documents,
    ):
        await documents.add(DOCUMENTS, collection="news")
        await documents.add(DOCUMENTS[:5], collection="small")
        for n in range(11):
            memory = NewMemory(id=f"{n}", about="user:7", text=f"{n}")
            await runtime.memory("acme").put(memory, embedding=(1.0, float(n)))
        list_output = await cli.call("indexes", "list", "--rows", "10", "--json")
        none = await cli.call("indexes", "list", "--rows", "10", "--tenant", "bolt", "--json")
        build_output = await cli.call("indexes", "build", "--rows", "10", "--json")
        again = await cli.call("indexes", "build", "--rows", "10", "--memory-mb", "64")
        await documents.delete([document.id for document in DOCUMENTS], collection="news")
        rebuild_output = await cli.call("indexes", "build", "--json")
        drop_output = await cli.call("indexes", "drop", "memories", "user:7", "--tenant", "acme")
        unknown = await cli.call("indexes", "drop", "memories", "user:7", "--tenant", "acme")

    assert [(row["store"], row["name"], row["rows"], row["state"]) for row in list_output.data] == [
        ("documents", "news", 12, "none"),
        ("memories", "user:7", 11, "none"),
    ]
    assert none.data == []
    assert {row["state"] for row in build_output.data} == {"ready"}
    assert "ready" in again.out
    assert [row["name"] for row in rebuild_output.data] == ["user:7"]
    assert drop_output.code == Exit.OK
    assert unknown.code == Exit.NOT_FOUND
    assert "have no index" in unknown.err


def test_a_wrong_size_is_refused(cli: Cli) -> None:
    """Before anything happens."""
    output = cli("indexes", "build", "--memory-mb", "0")
    assert output.code == Exit.USAGE
    assert "Give MiB, 1 to 1048576." in output.err
