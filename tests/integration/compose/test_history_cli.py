"""`callboard history` and `callboard context`: what was said, and what a model is sent of it."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.tools import Tool, ToolCall
from actors._kernel.agent.transcript import NewTurn
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.memory import NewMemory
from actors.agents import ReActAgent
from actors.context import (
    CompactionPipeline,
    ContextConfig,
    InMemoryHistoryProvider,
    SlidingWindowCompaction,
    StoreHistory,
    SummarizationCompaction,
)
from actors.testing import ModelReply, ScriptedModel
from compose._commands.output import Exit
from compose._tools import history as pages
from tests.integration.compose.commandline import Cli

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from actors._kernel.agent.models import CompactionStrategy
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import Runtime
    from tests.harness.servers import TestPostgres

pytestmark = pytest.mark.postgres
HELPER = AgentId("helper", "main")
FOREIGN = AgentId("helper", "main", "acme")
LONG = "sunny " * 50


async def weather(city: str) -> str:
    """Look out of the window."""
    return f"{city}: {LONG}"


@pytest.fixture
def cli(postgres_server: TestPostgres, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands on this test's schema."""
    return Cli(postgres_server.url, schema, capsys)


@asynccontextmanager
async def conversation(cli: Cli) -> AsyncIterator[tuple[Runtime, RunId]]:
    """A host, and a session `main` of one run: a question, a call, its result, an answer."""
    call = ToolCall(id="1", name="weather", arguments={"city": "Bern"})
    model = ScriptedModel(ModelReply(calls=[call]), "It is mild\x1b[2J\nin Bern.")
    tools = [Tool("weather", "The weather of a city.", weather, idempotent=True)]
    async with cli.host() as runtime:
        await runtime.register(ReActAgent(HELPER, model=model, tools=tools))
        run = await runtime.submit(HELPER, "How is it in Bern?")
        await runtime.result(run)
        yield runtime, run


def new_turn(text: str, session: str, n: int = 0) -> NewTurn:
    """A turn of the user."""
    return NewTurn(session, f"{text}{n}", ChatMessage.of("user", text), tokens=3)


async def test_sessions_are_listed_newest_first(cli: Cli) -> None:
    """With their sizes; those of the agent of this tenant alone."""
    async with conversation(cli) as (runtime, _):
        store = runtime.store.data.transcripts
        await store.append(HELPER, [new_turn("hi", "support-7", n) for n in range(2)])
        await store.append(FOREIGN, [new_turn("hi", "theirs")])
        list_output = await cli.call("history", "list", "helper/main", "--json")
        limited_output = await cli.call("history", "list", "helper/main", "--limit", "1")
        foreign = await cli.call("history", "list", "acme:helper/main")

    newest, oldest = list_output.data
    assert (newest["session"], newest["turns"], newest["tokens"]) == ("support-7", 2, 6)
    assert (oldest["session"], oldest["turns"]) == ("main", 4)
    assert newest["first_at"] <= newest["last_at"]
    assert "support-7" in limited_output.out
    assert "there may be more" in limited_output.out
    assert "theirs" in foreign.out
    assert "support-7" not in foreign.out


async def test_turns_are_shown_with_their_runs(cli: Cli) -> None:
    """Calls and results on one line unless they are wanted whole; nothing steers the terminal."""
    async with conversation(cli) as (_, run):
        text = (await cli.call("history", "show", "helper/main")).out
        full = (await cli.call("history", "show", "helper/main", "--full")).out
        data = (await cli.call("history", "show", "helper/main", "--json")).data

    lines = text.splitlines()
    heads = [line for line in lines if not line.startswith("    ")]
    assert [head.split()[:2] for head in heads] == [
        ["0", "user"],
        ["1", "assistant"],
        ["2", "tool"],
        ["3", "assistant"],
    ]
    assert all(f"run {run}" in head and "tokens" in head for head in heads)
    assert '    → weather {"city": "Bern"}' in lines
    assert "    ← weather: Bern: sunny" in text
    assert LONG.strip() not in text
    assert LONG.strip() in full
    assert lines[-2:] == ["    It is mild␛[2J", "    in Bern."]
    assert [turn["run"] for turn in data] == [run] * 4
    assert [turn["message"]["role"] for turn in data] == ["user", "assistant", "tool", "assistant"]


async def test_a_page_of_a_session_is_shown(cli: Cli) -> None:
    """The newest 50 by default; and people are told of the others."""
    cases = (
        ((), range(10, 60)),
        (("--last", "2"), range(58, 60)),
        (("--limit", "3"), range(3)),
        (("--offset", "55"), range(55, 60)),
        (("--offset", "7", "--limit", "2"), range(7, 9)),
        (("--offset", "60"), range(60, 60)),
    )
    async with cli.host() as runtime:
        turns = [new_turn("word", "s", n) for n in range(60)]
        await runtime.store.data.transcripts.append(HELPER, turns)
        for options, ordinals in cases:
            arguments = ("history", "show", "helper/main", "--session", "s", *options)
            text = (await cli.call(*arguments)).out

            heads = [line.split()[0] for line in text.splitlines() if "  user  " in line]
            assert heads == [str(ordinal) for ordinal in ordinals]
            hidden_turns = f"{ordinals.start} turn(s) before, {60 - ordinals.stop} after"
            assert f"not shown: {hidden_turns}" in text


async def test_a_session_is_written_as_lines_that_a_history_takes_again(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pages; each message is the same in any history, byte for byte, and none is taken twice."""
    monkeypatch.setattr(pages, "PAGE", 2)
    odd = {"type": "thinking", "signature": "aGk=", "a": [{"k": None}, 10**30, 1.0, "\u2028'\\"]}
    turn = ChatMessage(
        role="assistant",
        content=[ContentBlock.model_validate(odd), ContentBlock(type="text", text="😀\x1b\n")],
        name="tutor",
        metadata={"k": "'\""},
    )
    file, again = tmp_path / "s.jsonl", AgentId("helper", "again")
    async with conversation(cli) as (runtime, run):
        odd_turn = NewTurn("main", "odd", turn, tokens=9, parent="p")
        await runtime.store.data.transcripts.append(HELPER, [odd_turn])
        arguments = ("history", "export", "helper/main", "--session", "main")
        export_output = await cli.call(*arguments, "--output", str(file), "--json")
        printed_output = await cli.call(*arguments)
        lines = file.read_text(encoding="utf-8").split("\n")[:-1]
        messages = [ChatMessage.model_validate(json.loads(line)["message"]) for line in lines]
        memory = InMemoryHistoryProvider()
        for history, times in ((memory, 2), (runtime.history, 2)):
            for _ in range(times):
                await history.append_many(again, messages, session_id="copy")
        stored_messages = await runtime.history.get_messages(HELPER, session_id="main")
        copies = [
            await history.get_messages(again, session_id="copy")
            for history in (memory, runtime.history)
        ]

    assert json.loads(export_output.err) == {"agent": "helper/main", "session": "main", "turns": 5}
    assert printed_output.out == file.read_text(encoding="utf-8")
    assert printed_output.err == "5 turn(s); message content is included\n"
    records = [json.loads(line) for line in lines]
    assert [*records[0]] == ["ordinal", "id", "run", "parent", "tokens", "at", "message"]
    assert [record["ordinal"] for record in records] == [0, 1, 2, 3, 4]
    assert [record["run"] for record in records] == [run] * 4 + [None]
    assert (records[4]["id"], records[4]["tokens"], records[4]["parent"]) == ("odd", 9, "p")
    bytes_of = [
        [message.model_dump_json() for message in messages]
        for messages in (stored_messages, *copies)
    ]
    assert bytes_of == [bytes_of[0]] * 3


async def test_an_exported_conversation_is_shown_and_replayed_without_a_server(
    cli: Cli, tmp_path: Path
) -> None:
    """Turns as they are shown from the store; the code goes its way again, though its model has no answer."""
    file = tmp_path / "run.jsonl"
    async with conversation(cli) as (_, run):
        export_output = await cli.call("export", run, "--output", str(file))
        show_output = await cli.call("history", "show", "helper/main", "--last", "3")
    show = ("history", "show", "helper/main", "--file", str(file))
    option_lists = (
        ("--last", "3"),
        ("--offset", "1", "--limit", "1", "--json"),
        ("--session", "side"),
    )
    file_output, page, missing = [
        await asyncio.to_thread(cli.bare, *show, *options) for options in option_lists
    ]
    replay = ("replay", str(file), f"{__name__}:serve_helper", "--json")
    replayed_runs = (await asyncio.to_thread(cli.bare, *replay)).data["runs"]

    assert "4 turn(s); message content is included" in export_output.err
    assert file_output == show_output
    assert [turn["ordinal"] for turn in page.data] == [1]
    assert missing.code == Exit.NOT_FOUND
    assert "holds no turn of session 'side'" in missing.err
    assert "its sessions there: main" in missing.err
    assert [run["outcome"] for run in replayed_runs] == ["reproduced"]


async def test_what_is_not_there_is_named_with_the_way_to_find_it(cli: Cli) -> None:
    """An agent and a session; one line, with the exit code of what there is not."""
    async with cli.host() as runtime:
        await runtime.store.data.transcripts.append(HELPER, [new_turn("hi", "s")])
        agent = await cli.call("history", "show", "helper/other", "--session", "s")
        session = await cli.call("history", "export", "helper/main", "--session", "t")
        list_output = await cli.call("history", "list", "acme:helper/main")

    assert (agent.code, session.code, list_output.code) == (Exit.NOT_FOUND,) * 3
    assert "helper/other has no session here" in agent.err
    assert "`callboard runs list --type helper`" in agent.err
    assert "helper/main has no session 't'" in session.err
    assert "`callboard history list helper/main`" in session.err
    assert "acme:helper/main" in list_output.err
    assert [output.err.count("\n") for output in (agent, session, list_output)] == [1, 1, 1]
    assert [output.out for output in (agent, session, list_output)] == ["", "", ""]


def test_two_ends_to_count_from_are_one_too_many(cli: Cli) -> None:
    """Before anything is read."""
    output = cli("history", "show", "helper/main", "--last", "3", "--limit", "2")

    assert output.code == Exit.USAGE
    assert "--last counts from the end" in output.err


async def serve_helper(runtime: Runtime) -> None:
    """An application: the helper with a small window, and a summary before it."""
    strategies: list[CompactionStrategy] = [
        SummarizationCompaction(ScriptedModel(), recent_token_budget=20, min_old_tokens=20),
        SlidingWindowCompaction(max_messages=2),
    ]
    context = ContextConfig(StoreHistory(), CompactionPipeline(strategies))
    agent = ReActAgent(
        HELPER,
        model=ScriptedModel(),
        instructions="Be brief.",
        context=context,
        blocks=("persona",),
    )
    await runtime.register(agent)


async def test_a_window_is_made_now_by_the_code_or_shown_as_it_was_sent(cli: Cli) -> None:
    """With its parts and what strategies did; without the code as the log describes the last call's."""
    app = ("--app", f"{__name__}:serve_helper")
    async with conversation(cli) as (runtime, run):
        plain = (await cli.call("context", "helper/main", *app, "--json")).data
        curt = NewMemory(id="1", about=f"blocks:agent:{HELPER}", text="Curt.", key="persona")
        await runtime.memory().put(curt)
        new_window = (await cli.call("context", "helper/main", *app, "--json")).data
        made_shown = (await cli.call("context", "helper/main", *app)).out
        sent_window = (await cli.call("context", "helper/main", "--json")).data
        sent_shown = (await cli.call("context", "helper/main")).out

    assert (new_window["made"], new_window["agent"], new_window["session"]) == (
        "now",
        "helper/main",
        "main",
    )
    assert (new_window["turns"], new_window["read"], new_window["cut"], new_window["budget"]) == (
        4,
        4,
        None,
        None,
    )
    assert [part["name"] for part in plain["parts"]] == ["instructions", "history"]
    assert [part["name"] for part in new_window["parts"]] == ["instructions", "blocks", "history"]
    assert new_window["tokens"] == sum(part["tokens"] for part in new_window["parts"])
    summary, window = new_window["steps"]
    assert (summary["would_ask"], summary["kept"], summary["dropped"]) == ("scripted", 4, 0)
    assert (window["would_ask"], window["kept"], window["dropped"]) == (None, 1, 3)
    assert "would ask scripted" in made_shown
    assert "4 turn(s) in StoreHistory, 4 read" in made_shown
    assert (sent_window["made"], sent_window["run"], sent_window["session"]) == (
        "sent",
        run,
        "main",
    )
    assert (
        sent_window["receipt"]["turns"],
        sent_window["receipt"]["head"],
        sent_window["receipt"]["cut"],
    ) == (3, 1, -1)
    assert f"in run {run}" in sent_shown
    assert "no strategy changed it" in sent_shown


async def test_a_window_of_what_is_not_there_is_refused(cli: Cli) -> None:
    """An agent that the code does not serve, an unknown session, and one that no model was asked in."""
    app = ("--app", f"{__name__}:serve_helper")
    async with cli.host() as runtime:
        await runtime.store.data.transcripts.append(HELPER, [new_turn("hi", "s")])
        cases = (
            (("helper/other", *app), Exit.USAGE, "does not serve helper/other"),
            (("helper/main", "--session", "t", *app), Exit.NOT_FOUND, "no session 't'"),
            (("helper/main", "--session", "t"), Exit.NOT_FOUND, "no session 't'"),
            (("helper/other",), Exit.NOT_FOUND, "helper/other has no session here"),
            (("helper/main",), Exit.NOT_FOUND, "no log has a model call in session 's'"),
        )
        for arguments, code, words in cases:
            output = await cli.call("context", *arguments)

            assert (output.code, output.out) == (code, "")
            assert words in output.err
            assert output.err.count("\n") == 1
