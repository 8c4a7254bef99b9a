"""A production conversation whose host was killed is replayed from its export without a server."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId
from compose._cli import run
from tests.system.agents import STEP_COUNT, executed
from tests.system.waiting import until_executing

if TYPE_CHECKING:
    from pathlib import Path

    from actors._runtime import Runtime
    from tests.integration.compose.commandline import Cli
    from tests.system.processes import Hosts

TEN = AgentId("ten", "a")


@pytest.mark.item(68, 74)
async def test_a_conversation_is_exported_and_replayed_on_a_laptop(
    hosts: Hosts, client: Runtime, cli: Cli, tmp_path: Path
) -> None:
    """It was taken over in the middle. Nothing is executed, and changed code is reported with its place."""
    ledger, file = tmp_path / "ledger", tmp_path / "run.jsonl"
    first = await hosts.serving()
    run_id = await client.submit(TEN, {"ledger": str(ledger), "pace_s": 2, "slow": 3})
    await until_executing(ledger, 3)
    first.send(signal.SIGKILL)
    await hosts.serving()
    await client.result(run_id)
    done = executed(ledger)
    exported = await cli.call("export", run_id, "--tree", "--output", str(file))
    same = await asyncio.to_thread(
        cli.bare, "replay", str(file), "tests.system.agents:TYPES", "--json"
    )
    other = await asyncio.to_thread(
        cli.bare, "replay", str(file), "tests.system.operations.test_replay_command:CHANGED"
    )
    unserved = await asyncio.to_thread(
        cli.bare, "replay", str(file), "compose.demo.desk:AGENTS", "--json"
    )
    lines = [json.loads(line) for line in file.read_text().splitlines()]

    assert exported.code == 0, exported
    assert "content is included" in exported.err
    assert lines[0]["callboard_export"] == 2
    assert lines[-1]["line"] == "end"
    assert same.code == 0
    assert [run["outcome"] for run in same.data["runs"]] == ["reproduced"]
    assert other.code == 1
    assert "DIVERGED" in other.out
    assert "position 0" in other.out
    assert unserved.data["runs"][0]["outcome"] == "unserved"
    assert executed(ledger) == done
    assert len({number for number, _ in done}) == STEP_COUNT


class Changed:
    """Calls another step first."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx, inbox):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        """Call a step that the log does not have."""
        return await ctx.step("something-else", lambda: inbox)


CHANGED = {"ten": Changed}


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("replay", "nowhere.jsonl", "tests.system.agents:TYPES"), 2, "cannot read nowhere.jsonl"),
        (("replay", "pyproject.toml", "tests.system.agents:TYPES"), 2, "pyproject.toml, line 1"),
        (("describe", "tests.system.agents:nobody"), 2, "has no 'nobody'"),
        (("dev", "shop"), 2, "MODULE:ATTR"),
        (("dev", "shop:app", "--watch", "nowhere"), 2, "there is no such folder"),
        (("tap",), 2, "no broker was named"),
        (("tap", "a..b", "--nats-url", "nats://127.0.0.1:1"), 2, "not a subject pattern"),
        (("tap", "--nats-url", "nats://127.0.0.1:1"), 3, "Start nats-server there"),
        (("ask", "desk/a", "{}", "--nats-url", "nats://127.0.0.1:1", "--timeout", "1"), 3, "Start"),
        (
            ("ask", "desk/a", "@nowhere", "--nats-url", "nats://127.0.0.1:1"),
            2,
            "cannot read nowhere",
        ),
        (("ask", "desk/a", "{}", "--timeout", "0"), 2, "--timeout. Give seconds, 0.001 to"),
    ],
)
def test_errors_of_replay_are_one_sentence(
    words: tuple[str, ...], code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the thing and the remedy, with its exit code; no stack trace."""
    exit_code = run(list(words))
    err = capsys.readouterr().err

    assert (exit_code, "Traceback" in err) == (code, False), err
    assert complaint in err


async def test_the_export_of_an_unknown_run_fails(cli: Cli) -> None:
    """An unknown run has an exit code of its own, and no file is written."""
    output = await cli.call("export", "nobody")

    assert output.code == 4
    assert "nobody" in output.err
