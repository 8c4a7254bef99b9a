"""A command over a server and over the database: the same text, JSON, exit code and audit row."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._workflow.hosted.runs import FlowRuns
from compose._commands.output import Exit
from compose._web.process import serve_web
from compose.web import app
from tests.behaviour.test_http_graphs import flows_at
from tests.behaviour.test_http_installs import REFUND
from tests.integration.compose.commandline import Cli, Said
from tests.system.web.test_flows_server import saved

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import RunId
    from tests.harness.servers import TestPostgres

pytestmark = pytest.mark.postgres

COMMANDS: Final = (
    ("graphs", "list", "billing"),
    ("graphs", "list", "billing", "--flow", "refund", "--json", "--limit", "1"),
    ("graphs", "list", "billing", "--status", "suspended", "--status", "failed"),
    ("graphs", "list", "billing", "--status", "odd"),
    ("graphs", "list", "none"),
    ("graphs", "show", "RUN"),
    ("graphs", "show", "RUN", "--json"),
    ("graphs", "show", "none"),
    ("graphs", "ledger", "RUN"),
    ("graphs", "ledger", "RUN", "--json"),
    ("graphs", "verify", "RUN"),
    ("graphs", "verify", "RUN", "--head", "0" * 64, "--json"),
    ("graphs", "pause", "RUN", "--reason", "look"),
    ("graphs", "steer", "RUN", "be careful", "--json"),
    ("graphs", "limits", "RUN", '{"max_iterations": 50}'),
    ("graphs", "limits", "RUN", '{"max_iterations": -1}', "--json"),
    ("graphs", "resume-run", "RUN", "--json"),
    ("graphs", "snapshot", "RUN", "before", "--tag", "x"),
    ("graphs", "snapshot", "RUN", "before", "--print"),
    ("graphs", "snapshots", "billing", "--run", "RUN"),
    ("graphs", "snapshots", "billing", "--run", "RUN", "--json"),
    ("graphs", "restore", "billing", "none"),
    ("graphs", "delete-snapshot", "billing", "none", "--json"),
    ("graphs", "resume", "RUN", "other", "1"),
    ("graphs", "resume", "RUN", "ok/1", '{"response": "no"}', "--json"),
    ("graphs", "resume", "RUN", "ok/1", '{"response": "no"}'),
    ("graphs", "emit", "nothing", "5", "--scope", "session", "--key", "s9", "--id", "e"),
    ("graphs", "cancel", "RUN", "--reason", "enough", "--json"),
    ("graphs", "cancel", "none"),
    ("flows", "install", "FILE", "--json"),
    ("flows", "install", "OTHER"),
    ("flows", "check", "OTHER", "--json"),
    ("flows", "list", "--json"),
    ("flows", "show", "refund", "--json"),
    ("flows", "show", "none"),
    ("graphs", "start", "installed", "refund", '{"order": 7}', "--id", "same"),
    ("flows", "remove", "refund", "--json"),
    ("flows", "remove", "none"),
)
"""RUN is a run of the side, FILE and OTHER are flow documents of one id and version."""


@pytest.fixture
def cli(postgres_server: TestPostgres, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands on this test's schema."""
    return Cli(postgres_server.url, schema, capsys)


class Side:
    """One way to the deployment: its options and a run of its own."""

    def __init__(self, cli: Cli, *options: str) -> None:
        self.cli, self.options = cli, options
        self.run = ""

    async def call(self, *words: str) -> Said:
        """Run a command on this side."""
        return await asyncio.to_thread(self.cli.bare, *words, *self.options)

    def normal(self, output: str) -> str:
        """Return an output without ids, times and the options that name the side."""
        output = output.replace(self.run, "RUN").replace(f" {' '.join(self.options)}", "")
        # The place of an installed flow: its address at the server, or the database.
        output = re.sub(rf"{self.options[1]}(/v1/flows/[\w@.]+/bundle)?", "PLACE", output)
        output = re.sub("the database|tenant default", "PLACE", output)
        output = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?", "TIME", output)
        output = re.sub(r"\b[0-9a-f]{16,64}\b", "ID", output)
        output = re.sub(r"\b\d+ (s|ms|min)( |\b)", "SPAN ", output)
        return re.sub(r" +", " ", output)


async def audit_rows(runtime: Any) -> list[tuple[str, str, str]]:
    """Return action, outcome and kind of thing of all audit rows, oldest first."""
    rows = await runtime.store.data.audit.list("default", limit=500)
    return [(row.action, row.outcome, row.thing.partition(":")[0]) for row in reversed(rows)]


async def wait_for_person(runs: FlowRuns, run: RunId) -> None:
    """Return when the run waits."""
    async with asyncio.timeout(30):
        while not await runs.waits(run):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_command_is_the_same_over_a_server_and_over_the_database(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for what is refused, and for what is not there."""
    monkeypatch.delenv("CALLBOARD_API_TOKEN", raising=False)
    files = {
        "FILE": str(saved(tmp_path, "refund.json")),
        "OTHER": str(saved(tmp_path, "other.json", title="Other")),
    }
    outputs: list[list[tuple[int, str, str]]] = []
    rows: list[list[tuple[str, str, str]]] = []
    async with cli.host() as runtime:
        await flows_at("billing").register(runtime)
        runs = FlowRuns(runtime, "billing")
        application = app(runtime, is_loopback=True)
        async with serve_web(
            "127.0.0.1:0", application, before_stop=application.end_streams
        ) as url:
            database = ("--postgres-url", cli.url, "--schema", cli.schema)
            for options in (("--server", url), database):
                side, count = Side(cli, *options), len(await audit_rows(runtime))
                side.run = await runs.start("refund", vars={"order": 7}, session_id="s1")
                await wait_for_person(runs, side.run)
                outputs.append([])
                for words in COMMANDS:
                    answer = await side.call(*[{**files, "RUN": side.run}.get(w, w) for w in words])
                    outputs[-1].append(
                        (answer.code, side.normal(answer.out), side.normal(answer.err))
                    )
                await runs.cancel(side.run, reason="the end")
                rows.append((await audit_rows(runtime))[count:])
    for words, *answers in zip(COMMANDS, *outputs, strict=True):
        assert answers[0] == answers[1], words
    assert rows[0] == rows[1]
    assert {action for action, _, _ in rows[0]} >= {
        "run.pause", "run.resume", "run.steer", "run.limits", "run.cancel", "wait.answer",
        "snapshot.create", "flow.install", "flow.remove",
    }  # fmt: skip
    codes = {code for code, _, _ in outputs[0]}
    assert codes == {Exit.OK, Exit.FAILED, Exit.USAGE, Exit.NOT_FOUND}
    assert REFUND["id"] == "refund"
