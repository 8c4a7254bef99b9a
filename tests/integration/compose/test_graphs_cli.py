"""`callboard graphs`: runs of flows are started, looked at, answered and checked at the terminal."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from actors._kernel.runtime.ids import RunId
from compose._commands.output import Exit
from tests.behaviour.test_http_graphs import flows_at
from tests.integration.compose.commandline import Cli
from tests.integration.compose.test_unreachable import BUNDLE

if TYPE_CHECKING:
    from tests.harness.servers import TestPostgres

pytestmark = pytest.mark.postgres


@pytest.fixture
def cli(postgres_server: TestPostgres, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands on this test's schema."""
    return Cli(postgres_server.url, schema, capsys)


async def waiting(cli: Cli, run: str) -> Any:
    """A run as `show` shows it when it waits."""
    async with asyncio.timeout(20):
        while not (view := (await cli.call("graphs", "show", run, "--json")).data)["waits"]:
            pass
    return view


def write(file: str, text: str) -> None:
    """Put it in place of what is there."""
    Path(file).write_text(text, encoding="utf-8")


async def tampered(cli: Cli, run: str) -> None:
    """Change what was paid, in the log."""
    connection = await asyncpg.connect(cli.url, server_settings={"search_path": cli.schema})
    statement = """update event_log set payload = replace(payload::text, 'order 7', 'order 8')::json
      where run_id = $1 and kind = 'effect.result'"""
    assert await connection.execute(statement, run) != "UPDATE 0"
    await connection.close()


@pytest.mark.item(414, 447, 459)
async def test_a_run_is_started_answered_and_checked(cli: Cli) -> None:
    """Once by its id, also by another client; each command as text and as JSON."""
    async with cli.host() as runtime:
        await flows_at("billing").register(runtime)
        begin = ("graphs", "start", "billing", "refund", '{"order": 7}', "--id", "r-7")
        started = await cli.call(*begin, "--session", "s1", "--json")
        run = started.data["run"]
        again = await cli.call(*begin)
        assert (started.data["is_new"], again.out.strip()) == (True, run)
        view = await waiting(cli, run)
        assert (view["status"], view["node"]) == ("waiting", "ask")
        assert (view["waits"][0]["prompt"], view["session"]) == ("Refund?", "s1")
        text = (await cli.call("graphs", "show", run)).out
        assert "waits for user ok/1: Refund? (yes / no)" in text
        odd = await cli.call("graphs", "resume", run, "other", "1")
        assert (odd.code, "not 'other'" in odd.err) == (Exit.FAILED, True)
        resume_output = await cli.call("graphs", "resume", run, "ok/1", '"yes"')
        late = await cli.call("graphs", "resume", run, "ok/1", '"no"', "--json")
        assert (resume_output.code, late.code) == (Exit.OK, Exit.FAILED)
        assert await runtime.result(RunId(run)) == "order 7 paid"

        list_output = await cli.call("graphs", "list", "billing", "--flow", "refund", "--json")
        assert [(row["run"], row["flow"]) for row in list_output.data] == [(run, "refund")]
        none = await cli.call("graphs", "list", "billing", "--status", "running")
        assert none.out.startswith("there is no such run")
        lines = (await cli.call("graphs", "ledger", run, "--follow", "--json")).out.splitlines()
        verdict = await cli.call("graphs", "verify", run, "--json")
        assert (verdict.data["ok"], verdict.data["count"]) == (True, len(lines))
        followed_lines = (await cli.call(*begin, "--follow", "--json")).out.splitlines()
        assert followed_lines[1:-1] == lines
        assert json.loads(followed_lines[-1]) == {"run": run, "status": "completed"}
        assert (await cli.call(*begin, "-f")).out.splitlines()[-1] == f"{run} is completed"
        table = (await cli.call("graphs", "ledger", run)).out
        assert ("ask_user" in table, "order 7 paid" in table) == (True, True)
        await tampered(cli, run)
        verify_output = await cli.call("graphs", "verify", run)
        assert (verify_output.code, "record_hash_mismatch" in verify_output.out) == (
            Exit.FAILED,
            True,
        )
        cut = await cli.call("graphs", "verify", run, "--head", "0" * 64)
        assert (cut.code, "THE CHAIN IS BROKEN at record" in cut.out) == (Exit.FAILED, True)


@pytest.mark.item(458)
async def test_an_event_and_a_cancel_reach_a_run(cli: Cli) -> None:
    """What is no run of a flow is not found."""
    async with cli.host() as runtime:
        await flows_at("billing").register(runtime)
        begin = ("graphs", "start", "billing", "heard", '{"scope": "session"}')
        runs = [
            (await cli.call(*begin, "--session", f"s{n}", "--json")).data["run"] for n in (1, 2)
        ]
        for run in runs:
            await waiting(cli, run)
        event = ("graphs", "emit", "paid", "5", "--scope", "session", "--key", "s1", "--id", "e")
        receipt = (await cli.call(*event, "--json")).data
        assert (receipt["delivered"], receipt["resumed"]) == (1, runs[:1])
        assert (await cli.call(*event)).out.strip() == "answered 0 wait(s) for paid"
        cancel_output = await cli.call("graphs", "cancel", runs[1], "--reason", "not needed")
        assert cancel_output.out.strip() == f"asked {runs[1]} to stop"
        await runtime.wait(RunId(runs[1]))
        over = await cli.call("graphs", "cancel", runs[1])
        assert "has ended CANCELLED already" in over.out
        assert "not needed" in (await cli.call("graphs", "show", runs[1])).out

        refusal = await cli.call("graphs", "emit", "paid", "--key", "s1")
        assert (refusal.code, "--key goes with" in refusal.err) == (Exit.USAGE, True)
        refusal = await cli.call("graphs", "start", "billing", "heard", "[1]")
        assert (refusal.code, "give a JSON object" in refusal.err) == (Exit.USAGE, True)
        for words in (["show"], ["ledger"], ["verify"], ["cancel"]):
            output = await cli.call("graphs", *words, "nowhere")
            assert output.code == Exit.NOT_FOUND, words


@pytest.mark.item(416, 417, 427)
async def test_a_run_is_paused_told_and_begun_again(cli: Cli, tmp_path: Path) -> None:
    """Its snapshot begins another one, at the wait that it had."""
    async with cli.host() as runtime:
        await flows_at("billing").register(runtime)
        begin = ("graphs", "start", "billing", "refund", '{"order": 7}', "--json")
        run = (await cli.call(*begin)).data["run"]
        await waiting(cli, run)
        saved = tmp_path / "saved.json"
        saved.write_text((await cli.call("graphs", "snapshot", run, "asked", "--print")).out)
        for words in (
            ["pause", run],
            ["steer", run, "quick"],
            ["limits", run, '{"max_tokens": 9}'],
        ):
            assert (await cli.call("graphs", *words)).code == Exit.OK
        await cli.call("graphs", "resume", run, "ok/1", '"yes"')
        view = (await cli.call("graphs", "show", run, "--json")).data
        assert view["vars"]["_runtime"]["control"]["paused"]
        assert (await cli.call("graphs", "resume-run", run)).out.strip() == f"{run} continues"
        assert await runtime.result(RunId(run)) == "order 7 paid"
        other = (await cli.call("graphs", "restore", "billing", f"@{saved}", "--json")).data["run"]
        await waiting(cli, other)
        await cli.call("graphs", "resume", other, "ok/1", '"yes"')
        assert await runtime.result(RunId(other)) == "order 7 paid"
        odd = await cli.call("graphs", "restore", "billing", '{"x": 1}')
        assert (odd.code, "not a snapshot" in odd.err) == (Exit.USAGE, True)
        over = await cli.call("graphs", "pause", run)
        assert "it is completed" in over.err


@pytest.mark.item(416, 417)
async def test_snapshots_are_kept_listed_restored_and_deleted(cli: Cli) -> None:
    """By id; one that is not there is named."""
    async with cli.host() as runtime:
        await flows_at("billing").register(runtime)
        begin = ("graphs", "start", "billing", "refund", '{"order": 7}', "--json")
        run = (await cli.call(*begin)).data["run"]
        await waiting(cli, run)
        keep = ("graphs", "snapshot", run, "asked", "--tag", "t", "--tag", "u", "--by", "ada")
        snapshot = (await cli.call(*keep)).out.strip()
        more = (await cli.call("graphs", "snapshot", run, "more", "--json")).data["snapshot"]
        list_output = await cli.call("graphs", "snapshots", "billing", "--run", run, "--json")
        assert [row["snapshot"] for row in list_output.data] == [more, snapshot]
        assert (list_output.data[1]["tags"], list_output.data[1]["created_by"]) == (
            ["t", "u"],
            "ada",
        )
        page = await cli.call("graphs", "snapshots", "billing", "--limit", "1")
        assert (snapshot in page.out, f"--after {more}" in page.out + page.err) == (False, True)
        tagged_output = await cli.call(
            "graphs", "snapshots", "billing", "--tag", "u", "--query", "ASK"
        )
        assert (snapshot in tagged_output.out, more in tagged_output.out) == (True, False)
        other = (await cli.call("graphs", "restore", "billing", snapshot)).out.strip()
        await waiting(cli, other)
        assert (await cli.call("graphs", "delete-snapshot", "billing", snapshot)).code == Exit.OK
        for words in (["delete-snapshot"], ["restore"]):
            output = await cli.call("graphs", *words, "billing", snapshot)
            assert (output.code, snapshot in output.err) == (Exit.NOT_FOUND, True)


@pytest.mark.item(447, 452, 463)
async def test_a_run_is_taken_away_and_begun_again(cli: Cli, tmp_path: Path) -> None:
    """From a file that is checked as a whole; one of another release's day can be read."""
    async with cli.host() as runtime:
        await flows_at("billing").register(runtime)
        begin = ("graphs", "start", "billing", "refund", '{"order": 7}', "--json")
        run = (await cli.call(*begin)).data["run"]
        await waiting(cli, run)
        file = str(tmp_path / "run.json")
        export_output = await cli.call("graphs", "export", run, "-o", file)
        assert (export_output.code, export_output.out) == (Exit.OK, "")
        assert "1 run(s), 3 records; content is included" in export_output.err
        check_report = (
            await cli.call("graphs", "import", "billing", file, "--check", "--json")
        ).data
        assert (check_report["exported"], check_report["status"], check_report["records"]) == (
            run,
            "waiting",
            3,
        )
        verdict = (await cli.call("graphs", "verify", run, "--json")).data
        assert check_report["head"] == verdict["head_hash"]
        other = ""
        for bundle in (file, BUNDLE):
            order = ("graphs", "import", "billing", bundle, "--id", Path(bundle).stem)
            other = (await cli.call(*order)).out.strip()
            assert (await cli.call(*order)).out.strip() == other != run
            await waiting(cli, other)
            await cli.call("graphs", "resume", other, "ok/1", '"yes"')
            assert await runtime.result(RunId(other)) == "order 7 paid"
        ended_export = (await cli.call("graphs", "export", other, "--no-subruns")).out
        write(file, ended_export)
        over = await cli.call("graphs", "import", "billing", file)
        assert (over.code, "its run is completed: --check" in over.err) == (Exit.USAGE, True)
        assert (await cli.call("graphs", "import", "billing", file, "--check")).code == Exit.OK
        write(file, ended_export.replace("order 7", "order 8"))
        lie = await cli.call("graphs", "import", "billing", file, "--check")
        assert lie.code == Exit.USAGE
        assert f"{file}: ledgers.{other}.items[" in lie.err
        assert "record hash mismatch. Export the run again" in lie.err
        output = await cli.call("graphs", "import", "billing", str(tmp_path / "none.json"))
        assert (output.code, "cannot read" in output.err) == (Exit.USAGE, True)


async def test_flows_alone_cannot_be_talked_to(cli: Cli) -> None:
    """`callboard chat` says so; a message would wait for ever."""
    output = await cli.call("chat", "tests.system.web.conversing:FLOWS", "--message", "hi")

    assert (output.code, "it has flows, and no sessions" in output.err) == (Exit.USAGE, True)
