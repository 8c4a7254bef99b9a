"""A command over a server and over the database: the same text, JSON, exit code and audit row."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import pytest

from actors._workflow.hosted.runs import FlowRuns
from compose._commands.output import Exit
from compose._web.process import serve_web
from compose.web import app
from tests.behaviour.test_http_graphs import flows_at
from tests.integration.compose.commandline import Cli, Said
from tests.system.web.test_flows_server import saved

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import RunId
    from tests.harness.servers import Schemas, TestPostgres

pytestmark = pytest.mark.postgres

Transcript: TypeAlias = "tuple[list[tuple[int, str, str]], list[tuple[str, str, str]]]"
"""Exit codes, outputs and errors of the commands, and the audit rows."""
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
    ("graphs", "cancel", "SECOND", "--reason", "enough", "--json"),
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
"""RUN and SECOND are runs of the side, FILE and OTHER flow documents of one id and version."""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Return the files of the commands by their names."""
    return {
        "FILE": str(saved(tmp_path, "refund.json")),
        "OTHER": str(saved(tmp_path, "other.json", title="Other")),
    }


class Side:
    """One way to the deployment: its options and a run of its own."""

    def __init__(self, cli: Cli, *options: str) -> None:
        self.cli, self.options = cli, options
        self.runs: dict[str, RunId] = {}

    async def call(self, *words: str) -> Said:
        """Run a command on this side."""
        return await asyncio.to_thread(self.cli.bare, *words, *self.options)

    def normal(self, output: str) -> str:
        """Return an output without ids, times and the options that name the side."""
        output = output.replace(f" {' '.join(self.options)}", "")
        for name, run in self.runs.items():
            output = output.replace(run, name)
        output = re.sub(r'"seq": \d+', "SEQ", output)  # a host may write an entry more
        output = re.sub(r'"(created|installed)_by": "(local|cli)"', "PRINCIPAL", output)
        # A client over the database has not the flow's code, whose hash this is.
        output = re.sub(r'"spec_hash": (null|"[0-9a-f]+")', "HASH", output)
        # The place of an installed flow: its address at the server, or the database.
        output = re.sub(rf"{self.options[1]}(/v1/flows/[\w@.]+/bundle)?", "PLACE", output)
        output = re.sub("the database|tenant default", "PLACE", output)
        output = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?", "TIME", output)
        output = re.sub(r"\b[0-9a-f]{16,64}\b", "ID", output)
        output = re.sub(r"\b\d+ (s|ms|min)( |\b)", "SPAN ", output)
        return re.sub(r" +", " ", output)


async def wait_for_person(runs: FlowRuns, run: RunId) -> None:
    """Return when the run waits."""
    async with asyncio.timeout(30):
        while not await runs.waits(run):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def run_commands(cli: Cli, *, over_server: bool, **files: str) -> Transcript:
    """Run all commands one way, in a deployment of its own."""
    async with cli.host() as runtime:
        await flows_at("billing").register(runtime)
        runs = FlowRuns(runtime, "billing")
        application = app(runtime, is_loopback=True)
        async with serve_web(
            "127.0.0.1:0", application, before_stop=application.end_streams
        ) as url:
            database = ("--postgres-url", cli.url, "--schema", cli.schema)
            side = Side(cli, *(("--server", url) if over_server else database))
            for name in ("RUN", "SECOND"):
                run = await runs.start("refund", vars={"order": 7}, session_id=name)
                await wait_for_person(runs, run)
                side.runs[name] = run
            names = {**files, **side.runs}
            outputs = []
            for words in COMMANDS:
                answer = await side.call(*[names.get(word, word) for word in words])
                texts = side.normal(answer.out), side.normal(answer.err)
                outputs.append((answer.code, *texts))
        rows = await runtime.store.data.audit.list("default", limit=500)
    return outputs, [(row.action, row.outcome, row.thing.partition(":")[0]) for row in rows]


async def test_a_command_is_the_same_over_a_server_and_over_the_database(
    postgres_server: TestPostgres,
    schemas: Schemas,
    capsys: pytest.CaptureFixture[str],
    files: dict[str, str],
) -> None:
    """Also for what is refused, and for what is not there."""
    transcripts = []
    for over_server in (True, False):
        async with schemas.lent() as schema:
            cli = Cli(postgres_server.url, schema, capsys)
            transcripts.append(await run_commands(cli, over_server=over_server, **files))
    (outputs, rows), (other_outputs, other_rows) = transcripts
    for words, output, other_output in zip(COMMANDS, outputs, other_outputs, strict=True):
        assert output == other_output, words
    assert rows == other_rows
    assert {action for action, _, _ in rows} >= {
        "run.pause", "run.resume", "run.steer", "run.limits", "run.cancel", "wait.answer",
        "snapshot.create", "flow.install", "flow.remove",
    }  # fmt: skip
    assert {code for code, _, _ in outputs} == {
        Exit.OK, Exit.FAILED, Exit.USAGE, Exit.NOT_FOUND
    }  # fmt: skip
