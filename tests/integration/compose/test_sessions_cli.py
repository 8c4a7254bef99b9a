"""`callboard sessions` and `callboard chat --message` on a real database."""

from __future__ import annotations

import io
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.conversations import SessionLabel
from actors._sessions.events import EVENTS
from actors.agents import ReActAgent
from actors.sessions import AgentRuntime, SessionAgent
from actors.testing import FunctionModel
from compose._commands.output import Exit
from tests.integration.compose.commandline import Cli

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.servers import TestPostgres

pytestmark = pytest.mark.postgres
ECHO = FunctionModel(lambda messages, _: f"You said {messages[-1].text}.")
AGENT = ReActAgent("echo", model=ECHO)
DESK = SessionAgent(AgentId("desk", "main"), {"normal": AGENT, "loud": AGENT})
HERE = f"{__name__}:"
NOBODY = "there is no terminal to ask at: give --yes to delete session s1 for good"


@pytest.fixture
def cli(postgres_server: TestPostgres, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands on this test's schema."""
    return Cli(postgres_server.url, schema, capsys)


@asynccontextmanager
async def branched(cli: Cli) -> AsyncIterator[AgentRuntime]:
    """Sessions `s1`, with a branch behind its first answer, and `s2`."""
    async with cli.host() as runtime, AgentRuntime(agents=AGENT, runtime=runtime) as agents:
        await (await agents.start("one", session_id="s1")).result()
        first = await agents.path("s1")
        await (await agents.start("two", session_id="s1")).result()
        run = await agents.start("three", session_id="s1", parent_node=first[-1].id)
        await run.result()
        await (await agents.start("hi", session_id="s2")).result()
        yield agents


async def test_sessions_are_listed_page_by_page(cli: Cli) -> None:
    """The one that changed last first; of a tenant, an app and a project."""
    async with branched(cli) as agents:
        page = await cli.call("sessions", "list", "--limit", "1")
        whole = await cli.call("sessions", "list", "--json")
        at = whole.data[0]["last_at"]
        behind = await cli.call("sessions", "list", "--before", at, "--json")
        none = await cli.call("sessions", "list", "--app", "desk", "--tenant", "acme")
        elsewhere = await cli.call("sessions", "list", "--project", "/", "--json")

    first, second = whole.data
    assert (first["session"], second["session"], second["open_runs"]) == ("s2", "s1", 0)
    assert first["project"] == str(agents.project)
    assert "s1" not in page.out
    assert f"there may be more: --before {at}, or a larger --limit" in page.out
    assert [row["session"] for row in behind.data] == ["s1"]
    assert none.out == "there is no session of desk: begin one with callboard chat\n"
    assert elsewhere.data == []


async def test_the_active_path_and_the_tree_are_shown(cli: Cli) -> None:
    """The path has one branch; the tree has both, and says which node is active."""
    async with branched(cli):
        path = await cli.call("sessions", "show", "s1", "--json")
        last = await cli.call("sessions", "show", "s1", "--last", "1")
        tree = await cli.call("sessions", "nodes", "s1")
        nodes = (await cli.call("sessions", "nodes", "s1", "--json")).data

    texts = [turn["message"]["content"][0]["text"] for turn in path.data]
    assert texts == ["one", "You said one.", "three", "You said three."]
    assert last.out.splitlines()[1:] == [
        "    You said three.",
        "3 turn(s) before are not shown: see --last",
    ]
    marks = [
        line.partition(" user")[0].partition(" assistant")[0][:-8] for line in tree.out.splitlines()
    ]
    assert marks == ["  ", "  ", "  ├─ ", "  │  ", "  └─ ", "*    "]
    assert [node["active"] for node in nodes] == [False] * 5 + [True]
    assert [node["on_path"] for node in nodes] == [True, True, False, False, True, True]
    assert nodes[4]["parent"] == nodes[2]["parent"] == nodes[1]["id"]


async def test_another_node_becomes_the_active_one(cli: Cli) -> None:
    """By the beginning of its id; one that is not there is said to be so."""
    async with branched(cli) as agents:
        nodes = (await cli.call("sessions", "nodes", "s1", "--json")).data
        switch_output = await cli.call("sessions", "switch", "s1", nodes[3]["id"][:10], "--json")
        row = await agents.session("s1")
        wrong = await cli.call("sessions", "switch", "s1", "xyz")
        unknown = await cli.call("sessions", "switch", "s9", "xyz")

    assert switch_output.data == {"session": "s1", "active_node": nodes[3]["id"]}
    assert row.head == nodes[3]["id"]
    assert (wrong.code, unknown.code) == (Exit.NOT_FOUND, Exit.NOT_FOUND)
    assert "session/s1 has no node 'xyz': `callboard sessions nodes` lists" in wrong.err
    assert "there is no session session/s9: `callboard sessions list`" in unknown.err


async def test_a_session_is_exported(cli: Cli, tmp_path: Path) -> None:
    """Its events, each of the vocabulary, or its nodes."""
    async with branched(cli) as agents:
        events = await cli.call("sessions", "export", "s1", "--json")
        file = tmp_path / "nodes.jsonl"
        nodes = await cli.call("sessions", "export", "s1", "--nodes", "-o", str(file))
        stored_events = [event async for event in agents.replay_session("s1")]

    assert [EVENTS.validate_json(line) for line in events.out.splitlines()] == stored_events
    assert json.loads(events.err) == {"session": "s1", "events": len(stored_events)}
    assert nodes.err == "6 nodes; message content is included\n"
    assert len(file.read_text().splitlines()) == 6


async def test_a_session_is_deleted_only_when_that_is_confirmed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused without a terminal to ask at; afterwards there is none."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    async with branched(cli):
        refusal = await cli.call("sessions", "delete", "s1")
        delete_output = await cli.call("sessions", "delete", "s1", "--yes", "--json")
        again = await cli.call("sessions", "delete", "s1", "--yes")
        list_output = await cli.call("sessions", "list", "--json")

    assert (refusal.code, refusal.err) == (Exit.USAGE, f"callboard: {NOBODY}\n")
    assert delete_output.data["rows"] >= 6
    assert again.code == Exit.NOT_FOUND
    assert [row["session"] for row in list_output.data] == ["s2"]


@pytest.mark.item(356)
def test_a_chat_continues_its_session(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its id, or by none: the last one of the project. Piped text is one message."""
    first = cli("chat", f"{HERE}AGENT", "--session", "s1", "--message", "one")
    monkeypatch.setattr("sys.stdin", io.StringIO("two\nlines\n"))
    piped = cli("chat", f"{HERE}AGENT")
    as_json = cli("chat", f"{HERE}AGENT", "--message", "three", "--json")
    nodes = cli("sessions", "nodes", "s1", "--json").data

    assert (first.code, first.err) == (Exit.OK, "")
    assert "You said one.\n" in first.out
    assert "You said two\nlines.\n" in piped.out
    events = [EVENTS.validate_json(line) for line in as_json.out.splitlines()]
    assert events[-1].type == "run_completed"
    assert len(nodes) == 6


def test_a_chat_may_start_a_session(cli: Cli) -> None:
    """With an id of its own, or one that is not there yet."""
    first = cli("chat", f"{HERE}AGENT", "--message", "one", "--new", "--session", "s1")
    second = cli("chat", f"{HERE}AGENT", "--message", "two", "--new")
    again = cli("chat", f"{HERE}AGENT", "--message", "three", "--new", "--session", "s1")
    list_output = cli("sessions", "list", "--json")

    assert (first.code, second.code, again.code) == (Exit.OK, Exit.OK, Exit.USAGE)
    assert "session s1 of session exists already: leave --new out" in again.err
    assert len(list_output.data) == 2


async def test_a_list_shows_whose_a_session_is(cli: Cli) -> None:
    """Its owner and its title, for people and for programs; one that a program began is nobody's."""
    async with cli.host() as runtime:
        for key, owner in (("s1", "ada"), ("s2", None)):
            label = SessionLabel(title=f"About {key}")
            await runtime.store.data.directory.create(AgentId("session", key), label, owner=owner)
        output = await cli.call("sessions", "list")
        data = (await cli.call("sessions", "list", "--json")).data

    assert {row["session"]: (row["owner"], row["title"]) for row in data} == {
        "s1": ("ada", "About s1"),
        "s2": (None, "About s2"),
    }
    [line] = [line for line in output.out.splitlines() if "s1" in line]
    assert ("ada" in line, "About s1" in line, "owner" in output.out) == (True, True, True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["AGENT", "--message", "  "], "there is nothing to say: give --message TEXT"),
        (["DESK", "--message", "hi", "--mode", "odd"], "there is no mode 'odd'"),
        (["NOTHING", "--message", "hi"], "has no 'NOTHING'"),
        (["AGENT", "--message", "hi", "--project", "/no/such"], "project /no/such: it cannot"),
        (["AGENT", "--message", "hi", "--session", "a\0b"], "is not valid"),
    ],
)
def test_a_chat_that_cannot_start_prints_the_reason(
    cli: Cli, arguments: list[str], problem: str
) -> None:
    """In one line; no session is there afterwards."""
    output = cli("chat", HERE + arguments[0], *arguments[1:])
    list_output = cli("sessions", "list", "--json")

    assert (output.code, output.out, len(output.err.splitlines())) == (Exit.USAGE, "", 1)
    assert problem in output.err
    assert list_output.data == []
