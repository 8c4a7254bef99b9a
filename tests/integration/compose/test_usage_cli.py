"""`callboard usage`: what answers of models used and cost, as the database has it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.models import Usage
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EntryKind
from actors.agents import ReActAgent
from actors.testing import ModelReply, ScriptedModel
from compose._commands.output import Exit
from tests.integration.compose.commandline import Cli

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.runtime.log_entry import RunLogEntry
    from tests.harness.servers import TestPostgres

pytestmark = pytest.mark.postgres
HELPER = AgentId("helper", "main")
FOREIGN = AgentId("clerk", "1", "acme")
PAID = Usage(input=100, cached=40, cache_written=10, output=7, cost_usd=0.0001)
UNKNOWN = Usage(input=5, output=1)
TWICE = {
    "calls": 2,
    "input": 200,
    "cached": 80,
    "cache_written": 20,
    "output": 14,
    "cost_usd": "0.0002",
    "unpriced": 0,
}


@pytest.fixture
def cli(postgres_server: TestPostgres, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands on this test's schema."""
    return Cli(postgres_server.url, schema, capsys)


@asynccontextmanager
async def host_with_answers(cli: Cli) -> AsyncIterator[list[RunLogEntry]]:
    """A host, and what logs have of two answers that have a cost and of one without; of two tenants."""
    async with cli.host() as runtime:
        calls: list[RunLogEntry] = []
        for agent, usage, times in ((HELPER, PAID, 2), (FOREIGN, UNKNOWN, 1)):
            reply = ModelReply(text="so", usage=usage)
            model = ScriptedModel(otherwise=reply, model=f"of-{agent.type}")
            await runtime.register(ReActAgent(agent, model=model))
            for _ in range(times):
                run = await runtime.submit(agent, "How is it?")
                await runtime.result(run)
                entries = [entry async for entry in runtime.entries(run)]
                calls += [entry for entry in entries if entry.kind == EntryKind.LLM_CALL]
        yield calls


async def test_usage_is_the_sum_of_the_logs(cli: Cli) -> None:
    """For programs by model, unless they ask for other columns; a cost is exact text."""
    async with host_with_answers(cli) as entries:
        small, large = (await cli.call("usage", "--json")).data
        whole = (
            await cli.call("usage", *["--by", "day", "--by", "agent", "--by", "tenant", "--json"])
        ).data

    used = sum((Usage.model_validate(entry.payload["usage"]) for entry in entries), Usage())
    assert large == {"tenant": None, "agent": None, "model": "of-helper", "day": None, **TWICE}
    assert (small["model"], small["calls"], small["unpriced"]) == ("of-clerk", 1, 1)
    assert [(row["tenant"], row["agent"], row["model"]) for row in whole] == [
        ("acme", "acme:clerk/1", None),
        ("default", "helper/main", None),
    ]
    assert {row["day"] for row in whole} == {entry.ts.date().isoformat() for entry in entries}
    for tokens in ("input", "cached", "cache_written", "output"):
        assert sum(row[tokens] for row in whole) == getattr(used, tokens)
    assert sum(Decimal(row["cost_usd"]) for row in whole) == Decimal(repr(used.cost_usd))


async def test_people_see_a_table_with_its_sum(cli: Cli) -> None:
    """And are told of answers whose cost nobody knows."""
    async with host_with_answers(cli):
        lines = (await cli.call("usage", "--by", "agent", "--by", "model")).out.splitlines()
        clerk_lines = (await cli.call("usage", "--type", "clerk")).out.splitlines()

    heads = ["agent", "model", "answers", "input", "cached", "to", "cache", "output", "USD"]
    assert lines[0].split() == [*heads, "unpriced"]
    assert [line.split() for line in lines[1:4]] == [
        ["acme:clerk/1", "of-clerk", "1", "5", "0", "0", "1", "1"],
        ["helper/main", "of-helper", "2", "200", "80", "20", "14", "0.0002"],
        ["in", "all", "3", "205", "80", "20", "15", "0.0002", "1"],
    ]
    assert (
        lines[4] == clerk_lines[3] == "the cost of 1 answer(s) is not known, and is not in the sum"
    )


async def test_answers_are_chosen(cli: Cli) -> None:
    """By tenant, type, agent, model and day."""
    expected = {
        "--tenant acme": 1,
        "--tenant nobody": 0,
        "--type helper": 2,
        "--agent acme:clerk/1": 1,
        "--agent clerk/1": 0,
        "--model of-helper": 2,
        "--since 1d": 3,
        "--since 2020-01-01 --until 2020-12-31": 0,
        "--until 2d": 0,
    }
    counts = {}
    async with host_with_answers(cli):
        for options in expected:
            totals = (await cli.call("usage", *options.split(), "--json")).data
            counts[options] = sum(total["calls"] for total in totals)
        empty = (await cli.call("usage", "--until", "2d")).out

    assert counts == expected
    assert empty == "no answer of a model is counted here\n"


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ("--since tomorrow", "give a day in UTC such as 2026-01-31, or a span such as 30d"),
        ("--until 2026-13-01", "give a day in UTC such as 2026-01-31, or a span such as 30d"),
        ("--since 2026-02-01 --until 2026-01-31", "exchange them"),
        ("--by week", "week"),
        ("--agent desk", "desk"),
    ],
)
def test_an_order_that_means_nothing_is_one_line(cli: Cli, options: str, remedy: str) -> None:
    """Before a server is asked."""
    output = cli("usage", *options.split())

    assert (output.code, output.out) == (Exit.USAGE, ""), output
    assert remedy in output.err
