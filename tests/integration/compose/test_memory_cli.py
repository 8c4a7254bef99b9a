"""`callboard memory`: what agents keep, for an operator to read and to remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors import AgentId
from actors._kernel.stores.memory import NewMemory
from compose._commands.output import Exit
from tests.integration.compose.commandline import Cli

if TYPE_CHECKING:
    from tests.harness.servers import TestPostgres

pytestmark = pytest.mark.postgres


@pytest.fixture
def cli(postgres_server: TestPostgres, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands on this test's schema."""
    return Cli(postgres_server.url, schema, capsys)


def new(text: str, **parts: Any) -> NewMemory:
    """A text about a user."""
    return NewMemory(**{"id": f"id-{text[:4]}", "about": "user:7", "text": text, **parts})


async def test_memories_are_listed_shown_and_forgotten(cli: Cli) -> None:
    """By tenant and scope, with versions; control characters of a text do nothing to the terminal."""
    async with cli.host() as runtime:
        memory = runtime.memory()
        await memory.put(new("metric\x1b[2J", key="units"))
        await memory.put(new("imperial", key="units", source="model", run_id="r1"))
        await memory.put(new("likes tea", about=f"agent:{AgentId('helper', 'main')}"))
        await runtime.memory("acme").put(new("theirs"))
        list_output = await cli.call("memory", "list", "--json")
        table = await cli.call("memory", "list", "user:7", "--limit", "1")
        foreign = await cli.call("memory", "list", "--tenant", "acme", "--json")
        show_output = await cli.call("memory", "show", "units", "--about", "user:7")
        data = await cli.call("memory", "show", "id-metr", "--about", "user:7", "--json")
        forget_output = await cli.call("memory", "forget", "units", "--about", "user:7")
        again = await cli.call("memory", "forget", "units", "--about", "user:7")
        unknown = await cli.call("memory", "show", "units", "--about", "user:7")
        remaining = await memory.page()

    assert [row["text"] for row in list_output.data] == ["likes tea", "imperial"]
    assert "imperial" in table.out
    assert "likes tea" not in table.out
    assert [row["text"] for row in foreign.data] == ["theirs"]
    assert "imperial" in show_output.out
    assert "metric" in show_output.out
    assert "\x1b[2J" not in show_output.out
    assert [(row["version"], row["source"]) for row in data.data] == [(2, "model"), (1, "user")]
    assert forget_output.code in (None, Exit.OK)
    assert (again.code, unknown.code) == (Exit.NOT_FOUND, Exit.NOT_FOUND)
    assert "callboard memory list user:7" in unknown.err
    assert [entry.text for entry in remaining] == ["likes tea"]
