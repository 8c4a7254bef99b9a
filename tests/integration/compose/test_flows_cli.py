"""`callboard flows` on a database: one registry for all hosts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from actors._workflow.installed import InstalledFlows
from compose._commands.output import Exit
from tests.integration.compose.commandline import Cli
from tests.integration.compose.test_graphs_cli import write
from tests.integration.compose.test_unreachable import FLOW

if TYPE_CHECKING:
    from tests.harness.servers import TestPostgres

pytestmark = [pytest.mark.postgres, pytest.mark.item(469)]


@pytest.fixture
def cli(postgres_server: TestPostgres, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands on this test's schema."""
    return Cli(postgres_server.url, schema, capsys)


def text_of(file: str) -> str:
    """Return the text of a file."""
    return Path(file).read_text(encoding="utf-8")


async def test_a_flow_is_installed_for_all_hosts(cli: Cli, tmp_path: Path) -> None:
    """Installed, listed, shown and removed, as text and as JSON; a run holds it."""
    other = tmp_path / "other.json"
    write(str(other), text_of(FLOW).replace("3d", "2d"))
    async with cli.host() as runtime:
        await InstalledFlows().register(runtime)
        empty = await cli.call("flows", "list")
        install_output = await cli.call("flows", "install", FLOW)
        again = await cli.call("flows", "install", FLOW, "--json")
        odd = await cli.call("flows", "install", str(other))
        overwrite_output = await cli.call("flows", "install", str(other), "--overwrite")
        directory_output = await cli.call("flows", "list", "--directory", str(tmp_path))
        [row] = (await cli.call("flows", "list", "--json")).data
        show_output = await cli.call("flows", "show", "refund", "--json")
        far = await cli.call("flows", "list", "--tenant", "acme", "--json")
        run = (await cli.call("graphs", "start", "installed", "refund@1.2", "--json")).data["run"]
        refusal = await cli.call("flows", "remove", "refund@1.2")
        await cli.call("graphs", "cancel", run)
        await runtime.wait(run)
        remove_output = await cli.call("flows", "remove", "refund", "--json")
        gone_output = await cli.call("flows", "remove", "refund")

    assert "no bundles in tenant default" in empty.out
    assert install_output.out.strip() == "refund@1.2 is in tenant default"
    assert again.data["hash"] == row["hash"] == show_output.data["hash"]
    assert row["installed_by"] == "cli"
    assert (odd.code, "other content" in odd.err) == (Exit.USAGE, True)
    assert (overwrite_output.code, "never changes" in overwrite_output.err) == (Exit.USAGE, True)
    assert (directory_output.code, "two registries" in directory_output.err) == (Exit.USAGE, True)
    assert far.data == []
    assert (refusal.code, "1 of its runs is open" in refusal.err) == (Exit.USAGE, True)
    assert remove_output.data == {"removed": 1}
    assert gone_output.code == Exit.NOT_FOUND
