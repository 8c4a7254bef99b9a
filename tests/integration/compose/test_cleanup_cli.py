"""`callboard cleanup`: what sessions leave behind is shown, and removed if it is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import AgentId
from actors.sessions import AgentRuntime
from tests.integration.compose.commandline import Cli

if TYPE_CHECKING:
    from pathlib import Path

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.harness.servers import TestPostgres

pytestmark = pytest.mark.postgres


@pytest.fixture
def cli(postgres_server: TestPostgres, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands on this test's schema."""
    return Cli(postgres_server.url, schema, capsys)


class Worker:
    """Does a task."""

    id = AgentId("worker", "1")

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Answer at once."""
        return "done"


class Boss:
    """Has its message done as a task."""

    id = AgentId("boss", "1")

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Wait for the task's end."""
        return (await ctx.join(await ctx.spawn(Worker.id, "do it", task="7"))).output


@pytest.mark.item(383, 384, 389)
async def test_what_is_shown_is_removed_if_it_is_said(cli: Cli, tmp_path: Path) -> None:
    """With its bytes and reasons, as a table or as JSON."""
    async with cli.host() as runtime:
        await runtime.register(Worker())
        async with AgentRuntime(tmp_path, agents=Boss(), runtime=runtime) as talks:
            await (await talks.start("go", session_id="s1")).result()
            await talks.artifacts("s1").put("trace", b"12345", kind="debug")
            await talks.artifacts("s1").put("report", b"123")

            for command, count in (
                (["artifacts"], 1),
                (["artifacts", "--session", "s1", "--include-all"], 2),
                (["tasks", str(tmp_path)], 1),
                (["tasks", str(tmp_path), "--older-than", "1d"], 0),
            ):
                for _ in range(2):
                    report = (await cli.call("cleanup", *command, "--json")).data
                    assert (report["dry_run"], len(report["candidates"])) == (True, count)
            output = await cli.call("cleanup", "artifacts")
            assert "trace" in output.out
            assert "would be removed: give --apply" in output.out + output.err

            removal = (await cli.call("cleanup", "artifacts", "--apply", "--json")).data
            assert (removal["dry_run"], removal["bytes"]) == (False, 5)
            assert [artifact.name for artifact in await talks.artifacts("s1").list()] == ["report"]
            removal = (await cli.call("cleanup", "tasks", str(tmp_path), "--yes", "--json")).data
            assert [
                (candidate["task"], candidate["status"]) for candidate in removal["candidates"]
            ] == [("7", "COMPLETED")]
            row = await runtime.store.reads.run(removal["candidates"][0]["run_id"])
            assert row is not None
            assert row.swept
            output = await cli.call("cleanup", "tasks", str(tmp_path))
            assert "nothing to remove" in output.out + output.err
