"""`callboard schedules` on a real PostgreSQL: what it prints, what it does, and what it refuses."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest

from actors._kernel.runtime.ids import AgentId
from actors._runtime.loop.clock import SystemClock
from tests.integration.compose.commandline import Cli

if TYPE_CHECKING:
    from pathlib import Path

BERLIN: Final = ("--cron", "30 8 * * MON-FRI", "--timezone", "Europe/Berlin")


@pytest.fixture
def cli(postgres_dsn: str, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line on the test's schema."""
    return Cli(postgres_dsn, schema, capsys)


def test_a_schedule_is_created_listed_shown_and_deleted(cli: Cli) -> None:
    """For people words, for programs the whole of it."""
    create_output = cli("schedules", "create", "report", "desk/main", '{"a": 1}', *BERLIN)
    view = cli("schedules", "show", "report", "--json").data
    list_output = cli("schedules", "list")
    as_json = cli("schedules", "list", "--json").data
    delete_output = cli("schedules", "delete", "report")
    empty = cli("schedules", "list")

    assert create_output.code == list_output.code == delete_output.code == empty.code == 0
    assert "30 8 * * MON-FRI Europe/Berlin" in create_output.out
    assert "report" in list_output.out
    assert "desk/main" in list_output.out
    assert as_json == [view]
    assert {k: view[k] for k in ("name", "agent", "payload", "state", "catch_up", "at")} == {
        "name": "report",
        "agent": "desk/main",
        "payload": {"a": 1},
        "state": "active",
        "catch_up": "one",
        "at": None,
    }
    at = datetime.fromisoformat(view["next_at"])
    assert (at.hour in (6, 7), at.minute, at.tzinfo) == (True, 30, UTC)
    assert (delete_output.out.strip(), empty.out.strip()) == ("deleted report", "no schedules")


def test_a_schedule_may_start_a_flow(cli: Cli) -> None:
    """Its runs are those of one agent of the flow, and of the tenant that is named."""
    words = ("schedules", "create", "nightly", "--flow", "billing/refund", "--tenant", "acme")
    schedule = cli(*words, "--vars", '{"order": 7}', *BERLIN, "--json").data

    assert schedule["agent"] == "acme:billing/refund:schedule:nightly"
    assert schedule["payload"] == {"vars": {"order": 7}, "actor_id": None, "session_id": None}
    assert cli("schedules", "show", "nightly", "--tenant", "acme", "--json").data == schedule


def test_create_can_be_repeated_and_prints_the_differences(cli: Cli) -> None:
    """Exit code 2 for other values, until --replace is said."""
    first = cli("schedules", "create", "report", "desk/main", "1", *BERLIN, "--json").data
    again = cli("schedules", "create", "report", "desk/main", "1", *BERLIN, "--json").data
    other = cli("schedules", "create", "report", "desk/main", "2", *BERLIN)
    new = cli("schedules", "create", "report", "desk/main", "2", *BERLIN, "--replace", "--json")

    assert again == first
    assert other.code == 2
    assert "payload: 1 there / 2 wanted" in other.err
    assert new.data == {**first, "payload": 2}


def test_pause_and_resume(cli: Cli) -> None:
    """The state says so, and what is paused has no next time for people."""
    cli("schedules", "create", "report", "acme:desk/main", *BERLIN)
    states = [
        cli("schedules", verb, "report", "--tenant", "acme", "--json").data["state"]
        for verb in ("pause", "show", "resume", "resume")
    ]

    assert states == ["paused", "paused", "active", "active"]
    assert cli("schedules", "list", "--tenant", "acme", "--json").data[0]["tenant"] == "acme"
    assert cli("schedules", "list", "--tenant", "default", "--json").data == []


async def test_messages_reach_the_agent(cli: Cli, tmp_path: Path) -> None:
    """One by a delay, one by hand, and the same request not again."""
    job = json.dumps({"ledger": str(tmp_path / "ledger")})
    async with cli.host("ten") as host:
        create_output = await cli.call(
            "schedules", "create", "soon", "ten/a", job, "--delay-s", "0.2"
        )
        await cli.call("schedules", "create", "rare", "ten/b", job, "--cron", "0 0 29 2 *")
        sent_flags = [
            (await cli.call("schedules", "trigger", "rare", "--request-id", "r1", "--json")).data[
                "sent"
            ]
            for _ in range(2)
        ]
        for key in ("a", "b"):
            while not (runs := await host.store.lists.runs(agent=AgentId("ten", key))):
                pass
            assert await host.result(runs[0].run_id)

    assert create_output.code == 0
    assert sent_flags == [True, False]
    show_output = await cli.call("schedules", "show", "soon", "--json")
    assert show_output.data["state"] == "done"


def test_a_single_message_at_an_instant(cli: Cli) -> None:
    """With its own offset; it is told in UTC."""
    at = (SystemClock().now() + timedelta(days=400)).replace(microsecond=0)
    local_time = at.astimezone(tz=None).isoformat()
    schedule = cli(
        "schedules", "create", "once", "desk/main", '"call"', "--at", local_time, "--json"
    ).data

    assert schedule["next_at"] == schedule["at"] == at.isoformat()


REFUSED: Final[list[tuple[list[str], int, str]]] = [
    (
        ["create", "x", "desk/a", "1", "--cron", "61 * * * *"],
        2,
        "'61 * * * *' is not valid (bad minute)",
    ),
    (
        ["create", "x", "desk/a", "1", "--cron", "* * * * *", "--timezone", "Mars/X"],
        2,
        "'Mars/X' is not known",
    ),
    (["create", "x", "desk/a", "1", "--at", "2001-01-01T00:00:00+00:00"], 2, "has passed"),
    (["create", "x", "desk/a", "1", "--at", "2101-01-01T00:00:00"], 2, "no offset from UTC"),
    (["create", "x", "desk/a", "1", "--at", "tomorrow"], 2, "'tomorrow' is not an instant"),
    (["create", "x", "desk/a", "1", "--delay-s", "-1"], 2, "give 0 or more"),
    (["create", "x", "desk/a", "1"], 2, "one of cron, at and delay_s"),
    (["create", "x", "--delay-s", "1"], 2, "name an agent, or a flow with --flow APP/FLOW"),
    (["create", "x", "desk/a", "--flow", "a/b", "--delay-s", "1"], 2, "one of both"),
    (["create", "x", "--flow", "billing", "--delay-s", "1"], 2, "give APP/FLOW"),
    (["create", "x", "--flow", "a/b:c", "--delay-s", "1"], 2, "give APP/FLOW"),
    (["create", "x", "--flow", "a/b", "--vars", "[1]", "--delay-s", "1"], 2, "give a JSON object"),
    (["create", "x", "--flow", "a/b", "--vars", '{"_x": 1}', "--delay-s", "1"], 2, "_x"),
    (["create", "x y", "desk/a", "1", "--delay-s", "1"], 2, "schedule name 'x y' is not valid"),
    (["create", "x", "desk", "1", "--delay-s", "1"], 2, "agent id 'desk' is not valid"),
    (["create", "x", "desk/a", "{", "--delay-s", "1"], 2, "the message"),
    (["show", "nothing"], 4, "tenant 'default' has no schedule 'nothing'"),
    (["pause", "nothing"], 4, "has no schedule 'nothing'"),
    (["resume", "nothing"], 4, "has no schedule 'nothing'"),
    (["trigger", "nothing"], 4, "has no schedule 'nothing'"),
    (["delete", "nothing", "--tenant", "acme"], 4, "tenant 'acme' has no schedule 'nothing'"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), REFUSED)
def test_what_cannot_be_done_is_said_in_one_sentence(
    cli: Cli, arguments: list[str], code: int, words: str
) -> None:
    """On stderr, with an exit code that says what kind of no it is."""
    output = cli("schedules", *arguments)

    assert (output.code, output.out) == (code, "")
    assert words in output.err
    assert output.err.count("\n") == 1
    assert cli("schedules", "list", "--json").data == []


def test_every_command_has_help_with_an_example(cli: Cli) -> None:
    """`--help` shows a line that can be copied."""
    for verb in ("create", "list", "show", "pause", "resume", "trigger", "delete"):
        output = cli.bare("schedules", verb, "--help")
        assert output.code == 0
        assert f"callboard schedules {verb}" in output.out.replace("\n", " ")
