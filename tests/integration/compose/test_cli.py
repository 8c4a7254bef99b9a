"""Every command on a real PostgreSQL: what it prints for people and for programs, and what it refuses."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import MAX_PAYLOAD_BYTES
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.scheduler import RunStatus
from tests.integration.compose.commandline import Cli
from tests.integration.persistence.hosts import sql

if TYPE_CHECKING:
    import io
    from pathlib import Path

    from actors._kernel.runtime.ids import RunId
    from actors._runtime import Runtime

TEN, WAITER = AgentId("ten", "a"), AgentId("waiter", "a")


@pytest.fixture
def cli(postgres_dsn: str, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line on the test's schema."""
    return Cli(postgres_dsn, schema, capsys)


@pytest.fixture
def new_cli(postgres_dsn: str, new_schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line on a schema that is not there."""
    return Cli(postgres_dsn, new_schema, capsys)


async def until_suspended(runtime: Runtime, run_id: RunId) -> None:
    """Return once the run waits as rows."""
    async for entry in runtime.tail(run_id):
        if entry.kind == "run.suspended":
            return


async def test_send_prints_the_run_and_wait_prints_its_output(cli: Cli, tmp_path: Path) -> None:
    """For people the bare id or the bare output, for programs an object."""
    job = json.dumps({"ledger": str(tmp_path / "ledger")})
    async with cli.host("ten"):
        send_output = await cli.call("send", "ten/a", job)
        as_json = await cli.call("send", "ten/a", job, "--json")
        wait_output = await cli.call("send", "ten/a", job, "--wait")
        end_output = await cli.call("send", "ten/a", job, "--wait", "--json")

    assert send_output.code == as_json.code == wait_output.code == end_output.code == 0
    assert len(send_output.out.strip()) == 32
    assert set(as_json.data) == {"run"}
    assert wait_output.data == [f"value-{n}" for n in range(10)]
    assert end_output.data["status"] == "COMPLETED"
    assert end_output.data["result"] == wait_output.data


async def test_send_with_wait_ends_with_1_when_the_run_fails(cli: Cli) -> None:
    """The error is printed as the agent raised it."""
    async with cli.host("failing"):
        output = await cli.call("send", "failing/a", '"no such customer"', "--wait")
        as_json = await cli.call("send", "failing/a", '"no"', "--wait", "--json")

    assert output.code == as_json.code == 1
    assert "FAILED: no such customer" in output.out
    assert as_json.data["error"]["message"] == "no"


def test_send_with_a_known_message_id_gives_the_first_run(cli: Cli) -> None:
    """So a script may be run again."""
    runs = [cli("send", "ten/a", "{}", "--message-id", "m1").out for _ in range(2)]

    assert runs[0] == runs[1]


def test_send_gives_up_waiting_and_says_how_to_look(cli: Cli) -> None:
    """The run goes on; the exit code is 1."""
    output = cli("send", "ten/a", "{}", "--wait", "--timeout-s", "0.2")

    assert output.code == 1
    assert "has not ended within 0.2 s and goes on" in output.err


def test_send_reads_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` is what is piped in."""
    stdin: io.StringIO = __import__("io").StringIO('{"a": 1}')
    monkeypatch.setattr(sys, "stdin", stdin)

    assert cli("send", "ten/a", "-").code == 0


async def test_runs_are_listed_shown_and_their_log_printed(cli: Cli) -> None:
    """A waiting run says what it waits for."""
    async with cli.host("waiter", suspend_after=0) as runtime:
        run_id = await runtime.submit(WAITER, None)
        await until_suspended(runtime, run_id)
        list_output = await cli.call("runs", "list", "--status", "suspended")
        none = await cli.call("runs", "list", "--status", "failed", "--agent", "waiter/a")
        as_json = await cli.call("runs", "list", "--json")
        show_output = await cli.call("runs", "show", run_id)
        facts = await cli.call("runs", "show", run_id, "--json")
        log = await cli.call("runs", "log", run_id)
        lines = await cli.call("runs", "log", run_id, "--json", "--from-seq", "1")

    assert run_id in list_output.out
    assert "signal go" in list_output.out
    assert none.out.strip() == "no runs"
    assert [row["run"] for row in as_json.data] == [run_id]
    assert "signal go" in show_output.out
    assert facts.data["wake"] == {"signals": ["go"]}
    assert facts.data["in_doubt"] == facts.data["failed_attempts"] == []
    assert "run.started" in log.out
    assert [json.loads(line)["seq"] for line in lines.out.splitlines()] == [1, 2]


async def test_a_log_is_followed_to_the_end_of_its_run(cli: Cli) -> None:
    """`--follow` ends after the terminal entry."""
    async with cli.host("waiter") as runtime:
        run_id = await runtime.submit(WAITER, None)
        await runtime.signal(run_id, "go", 1)
        log_output = await cli.call("runs", "log", run_id, "--follow", "--json")
        plain = await cli.call("runs", "log", run_id, "--follow")

    assert json.loads(log_output.out.splitlines()[-1])["kind"] == "run.completed"
    assert "run.completed" in plain.out


async def test_a_signal_wakes_a_run(cli: Cli) -> None:
    """A message id makes it safe to send twice."""
    async with cli.host("waiter", suspend_after=0) as runtime:
        run_id = await runtime.submit(WAITER, None)
        first = await cli.call("runs", "signal", run_id, "go", "[1]", "--message-id", "s", "--json")
        result = await runtime.result(run_id)
        late = await cli.call("runs", "signal", run_id, "go")

    assert first.data["accepted"] is True
    assert result == [1]
    assert late.code == 2
    assert "has ended COMPLETED" in late.err


async def test_a_cancelled_run_ends_with_the_reason(cli: Cli) -> None:
    """Cancelling it again changes nothing and says so."""
    async with cli.host("waiter", suspend_after=0) as runtime:
        run_id = await runtime.submit(WAITER, None)
        await until_suspended(runtime, run_id)
        cancel_output = await cli.call("runs", "cancel", run_id, "--reason", "wrong one")
        row = await runtime.wait(run_id)
        again = await cli.call("runs", "cancel", run_id)

    assert cancel_output.out.strip() == "asked 1 run(s) to stop"
    assert row.status is RunStatus.CANCELLED
    assert row.cancel_requested == "wrong one"
    assert "ended CANCELLED already" in again.out


async def test_only_effects_in_doubt_are_resolved(cli: Cli) -> None:
    """A run that is not parked has nothing to decide; the three decisions exclude each other."""
    async with cli.host("waiter") as runtime:
        run_id = await runtime.submit(WAITER, None)
        none = await cli.call("runs", "resolve", run_id, "0", "--retry")
        many = await cli.call("runs", "resolve", run_id, "0", "--retry", "--fail")
        nothing = await cli.call("runs", "resolve", run_id, "0")

    assert none.code == many.code == nothing.code == 2
    assert "not parked" in none.err
    assert "one of --value JSON, --retry and --fail" in many.err
    assert many.err == nothing.err


async def test_dead_letters_are_listed_and_redriven_once(cli: Cli) -> None:
    """A redriven letter is a new message; its number is gone."""
    async with cli.host("failing") as runtime:
        run_id = await runtime.submit(AgentId("failing", "a"), "broken")
        await runtime.wait(run_id)
        list_output = await cli.call("dlq", "list")
        (letter,) = (await cli.call("dlq", "list", "--agent", "failing/a", "--json")).data
        redrive_output = await cli.call("dlq", "redrive", str(letter["id"]), "--json")
        again = await cli.call("dlq", "redrive", str(letter["id"]))
        neither = await cli.call("dlq", "redrive")

    assert "broken" in list_output.out
    assert letter["run"] == run_id
    assert redrive_output.data["redriven"][0]["agent"] == "failing/a"
    assert again.code == 4
    assert neither.code == 2
    assert "or give --all" in neither.err


def test_there_is_nothing_to_redrive_at_first(cli: Cli) -> None:
    """All of nothing is no error."""
    assert cli("dlq", "redrive", "--all").code == 0
    assert cli("dlq", "list").out.strip() == "no dead letters"
    assert cli("dlq", "list", "--json").data == []


def test_migrate_makes_the_tables_once(new_cli: Cli) -> None:
    """The second time there is nothing to do."""
    first = new_cli("migrate", "--json").data
    second = new_cli("migrate")

    assert first["applied"][0] == "0001_tables"
    assert "is up to date" in second.out


def test_doctor_reports_missing_tables_with_the_remedy(new_cli: Cli) -> None:
    """It makes none itself."""
    output = new_cli("doctor")
    checks = {check["check"]: check for check in new_cli("doctor", "--json").data["checks"]}

    assert output.code == 1
    assert checks["schema"]["remedy"] == "callboard migrate"
    assert checks["server"]["version"]


async def test_doctor_names_work_that_waits_for_a_host(cli: Cli) -> None:
    """A type without a host is found by its waiting runs, a served one is well."""
    async with cli.host("waiter") as runtime:
        before = {
            check["check"]: check for check in (await cli.call("doctor", "--json")).data["checks"]
        }
        await cli.call("send", "nobody/a", "{}")
        output = await cli.call("doctor")
        after = {
            check["check"]: check for check in (await cli.call("doctor", "--json")).data["checks"]
        }

    assert before["unserved"]["unserved"] == {}
    assert before["shards"]["ownerless"] == {}
    assert before["hosts"]["hosts"][0]["host"] == runtime.owner
    assert output.code == 1
    assert after["unserved"]["unserved"] == {"nobody": 1}
    assert "start a host that serves these types" in output.out


async def test_doctor_sees_a_server_that_may_lose_commits(
    cli: Cli, postgres_server: object
) -> None:
    """The session's own server runs without fsync, which no production may."""
    if getattr(postgres_server, "source", "") != "embedded":
        pytest.skip("only a server of our own is known to run without fsync")
    checks = {
        check["check"]: check for check in (await cli.call("doctor", "--json")).data["checks"]
    }

    assert checks["durability"]["level"] == "wrong"
    assert checks["durability"]["fsync"] == "off"


def test_nothing_to_discard_is_json_for_programs(cli: Cli, tmp_path: Path) -> None:
    """With no letters there is no file either."""
    output = cli("dlq", "discard", "--all", "--export", str(tmp_path / "letters.jsonl"), "--json")

    assert output.data == {"discarded": 0, "export": None}
    assert not list(tmp_path.iterdir())


async def test_behind_the_logs_end_there_is_nothing_and_the_run_has_begun(
    cli: Cli, tmp_path: Path
) -> None:
    """It is not told that it has not."""
    async with cli.host("ten"):
        await cli.call("send", "ten/a", json.dumps({"ledger": str(tmp_path / "l")}), "--wait")
        run = (await cli.call("runs", "list", "--json")).data[0]
        output = await cli.call("runs", "log", run["run"], "--from-seq", "999")

    assert output.out == f"the log ends at {run['last_seq']}\n"


def test_a_key_is_shown_in_the_tree_as_it_is(cli: Cli) -> None:
    """It is no markup, and no name of a picture."""
    run = cli("send", "ten/:smile:[red]x", "{}").out.strip()

    assert "ten/:smile:[red]x  PENDING" in cli("runs", "tree", run).out


def test_an_export_is_for_its_owner_alone(cli: Cli, tmp_path: Path) -> None:
    """It holds what the database keeps from others."""
    file = tmp_path / "run.jsonl"
    run = cli("send", "ten/a", "{}").out.strip()
    output = cli("export", run, "--output", str(file))

    assert output.code == 0, output
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["send", "desk", "{}"], 2, "type/key"),
        (["send", "desk/a", "{x}"], 2, "the message is not JSON"),
        (["send", "desk/a", "NaN"], 2, "NaN is not a JSON number"),
        (["send", "desk/a"], 2, "requires an argument"),
        (["send", "desk/a", "1", "--on-conflict", "fight"], 2, "queue"),
        (["runs", "list", "--status", "dead"], 2, "one of pending, running"),
        (["runs", "list", "--limit", "0"], 2, "Give 1 to 1000000"),
        (["runs", "show", "nix"], 4, "no run 'nix'"),
        (["runs", "log", "nix"], 4, "no run 'nix'"),
        (["runs", "cancel", "nix"], 4, "no run 'nix'"),
        (["runs", "signal", "nix", "go"], 4, "no run 'nix'"),
        (["runs", "signal", "nix", "~resolve:0"], 2, "callboard runs resolve"),
        (["runs", "resolve", "nix", "0", "--retry"], 4, "no run 'nix'"),
        (["dlq", "redrive", "99"], 4, "no such dead letter"),
        (["runs", "resolve", "nix", "--retry"], 2, "POSITION requires an argument"),
        (["dlq", "redrive", "x"], 2, "x"),
        (["doctor", "--jsn"], 2, "Did you mean --json"),
    ],
)
def test_bad_input_is_one_sentence_with_the_remedy(
    cli: Cli, arguments: list[str], code: int, words: str
) -> None:
    """No traceback, nothing on standard output, and an exit code that says what kind of trouble."""
    output = cli(*arguments)

    assert output.code == code
    assert words in output.err
    assert output.out == ""
    assert "Traceback" not in output.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["send", "desk/a"],
        ["ask", "desk/a"],
        ["publish", "news/eu"],
        ["schedules", "create", "large", "desk/a", "--delay-s", "60"],
    ],
)
def test_a_too_large_message_is_refused_with_the_limit(cli: Cli, arguments: list[str]) -> None:
    """Each command that sends something says the size, the limit and what to do; nothing is sent."""
    text = '"' + "x" * (MAX_PAYLOAD_BYTES - 1) + '"'
    position = 4 if arguments[0] == "schedules" else 2
    output = cli(*arguments[:position], text, *arguments[position:])

    assert output.code == 2
    assert "has 262145 bytes as JSON, 262144 are the limit" in output.err
    assert "send its key or URL" in output.err
    assert cli("runs", "list", "--json").data == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["runs", "list"], 2, "give --postgres-url URL or --data DIR"),
        (
            ["runs", "list", "--postgres-url", "postgresql://h/d", "--data", "x"],
            2,
            "give one of them",
        ),
        (["runs", "list", "--data", "no-such-folder"], 4, "holds no Callboard data"),
        (
            ["runs", "list", "--postgres-url", "http://h/d"],
            2,
            "postgresql://user:password@host:port",
        ),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_a_place_to_connect_to_is_needed(  # noqa: PLR0917 - fixtures
    cli: Cli, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    """One place, and one that can be used."""
    for name in ("CALLBOARD_POSTGRES_URL", "CALLBOARD_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    output = cli.bare(*arguments)

    assert output.code == code
    assert words in output.err


def test_a_database_that_does_not_answer_ends_with_3(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client waits a moment, not for ever."""
    monkeypatch.setenv("CALLBOARD_START_WAIT_S", "0.2")
    output = cli.bare("runs", "list", "--postgres-url", "postgresql://u@127.0.0.1:1/d")

    assert output.code == 3
    assert "Check that the server runs" in output.err


def test_a_wrong_setting_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its variable, with the value and the rule."""
    monkeypatch.setenv("CALLBOARD_LEASE_S", "soon")
    output = cli("runs", "list")

    assert output.code == 2
    assert "CALLBOARD_LEASE_S='soon'" in output.err


@pytest.mark.parametrize(
    "command", [[], ["runs"], ["dlq"], ["send"], ["runs", "resolve"], ["demo"]]
)
def test_help_is_printed_for_every_command(cli: Cli, command: list[str]) -> None:
    """On standard output, with 0, and with the exit codes."""
    output = cli.bare(*command, "--help")

    assert output.code == 0
    assert "Usage: callboard" in output.out
    assert "Exit codes" in output.out


async def test_runs_that_cannot_be_read_are_listed_shown_and_cancelled(cli: Cli) -> None:
    """Damage of the log or of the run's own row; the other runs are listed with them."""
    damage = {
        "log": "update event_log set payload = $2::text::json where run_id = $1 and seq = 1",
        "row": "update runs set supervision = $2::text::json where run_id = $1",
        "wake": "update runs set wake = $2::text::json where run_id = $1",
    }
    async with cli.host("waiter", suspend_after=0) as runtime:
        runs = {key: await runtime.submit(AgentId("waiter", key), None) for key in damage}
        whole = await runtime.submit(WAITER, None)
        for run_id in (*runs.values(), whole):
            await until_suspended(runtime, run_id)
        for key, statement in damage.items():
            await sql(cli.url, cli.schema, statement, runs[key], "[1" + "0" * 5_000 + "]")
        list_output = await cli.call("runs", "list")
        as_json = await cli.call("runs", "list", "--json")
        views = [
            await cli.call("runs", verb, run_id, *form)
            for run_id in runs.values()
            for verb in ("show", "log")
            for form in ((), ("--json",))
        ]
        cancel_outputs = [await cli.call("runs", "cancel", run_id) for run_id in runs.values()]
        rows = [await runtime.wait(run_id) for run_id in runs.values()]

    assert list_output.code == as_json.code == 0, list_output.err + as_json.err
    assert {row["run"] for row in as_json.data} == {*runs.values(), whole}
    for view in (*views, *cancel_outputs):
        assert view.code == 0, view.err
    assert "cannot be read" in as_json.out
    assert {row.status for row in rows} == {RunStatus.CANCELLED}
