"""What operators read and order: agents, hosts, runs with filters, trees, conversations, retries, forks."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RetryPolicy
from tests.integration.compose.commandline import Cli

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext, Runtime
    from tests.harness.servers import TestPostgres

pytestmark = pytest.mark.postgres
NOBODY = "0" * 32


class Editor:
    """Publishes, spawns a writer, asks it, sends to one that waits, and returns."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Have to do with everybody."""
        assert inbox
        await ctx.state.set("articles", 1)
        await ctx.emit("news/today", "hello")
        child = await ctx.spawn(AgentId("writer", "child"), "write")
        await ctx.join(child)
        await ctx.ask(AgentId("writer", "asked"), "what?", timeout=30)
        await ctx.send(AgentId("waiter", "told"), "wait")
        return "printed"


class Writer:
    """Answers with what it was given."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Return the payload."""
        return await ctx.step("write", echo_payload, inbox[0].payload)


def echo_payload(payload: Any) -> Any:
    """Return what was given."""
    return payload


@pytest.fixture
def cli(postgres_server: TestPostgres, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands on this test's schema."""
    return Cli(postgres_server.url, schema, capsys)


@asynccontextmanager
async def newsroom(cli: Cli) -> AsyncIterator[tuple[Runtime, RunId]]:
    """A host, and a conversation of five runs of which one still waits for a signal."""
    async with cli.host("waiter") as runtime:
        await runtime.register_type("editor", Editor)
        await runtime.register_type("writer", Writer)
        await runtime.follow(AgentId("writer", "fan"), "news", "today")
        run_id = await runtime.submit(AgentId("editor", "1"), "go")
        async with asyncio.timeout(20):
            assert await runtime.result(run_id) == "printed"
            for agent in (AgentId("waiter", "told"), AgentId("writer", "fan")):
                while not (await runs_of(runtime, agent)):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            (fan,) = await runs_of(runtime, AgentId("writer", "fan"))
            await runtime.wait(fan)
        yield runtime, run_id


async def runs_of(runtime: Runtime, agent: AgentId) -> list[RunId]:
    """The runs of an agent that have begun."""
    rows = await runtime.store.lists.runs(agent=agent)
    return [row.run_id for row in rows if row.last_seq >= 0]


async def wait_for_entry(runtime: Runtime, run_id: RunId, kind: str) -> None:
    """Return once the run's log has an entry of this kind."""
    async with asyncio.timeout(20):
        async for entry in runtime.tail(run_id):
            if entry.kind == kind:
                return


async def test_a_conversation_is_shown_from_any_of_its_runs(cli: Cli) -> None:
    """Spawned, asked, sent and published; from its root or from here; as a tree or as JSON."""
    async with newsroom(cli) as (runtime, root):
        (waiter_run,) = await runs_of(runtime, AgentId("waiter", "told"))
        (fan,) = await runs_of(runtime, AgentId("writer", "fan"))
        whole = (await cli.call("trace", waiter_run, "--json")).data
        from_fan = (await cli.call("trace", fan, "--json")).data
        subtree = (await cli.call("trace", waiter_run, "--from-here", "--json")).data
        cut = await cli.call("trace", root, "--limit", "2")
        tree_output = await cli.call("trace", root)

    caused = whole["root"]["caused"]
    assert (whole["runs"], whole["left_out"], whole["root"]["run"]) == (5, 0, root)
    assert [(link["verb"], link["target"]) for link in caused] == [
        ("publish", "news/today"),
        ("spawn", "writer/child"),
        ("ask", "writer/asked"),
        ("send", "waiter/told"),
    ]
    assert all(len(link["runs"]) == 1 for link in caused)
    assert [link["outcome"] for link in caused] == [None, "COMPLETED", "replied", None]
    assert caused[0]["runs"][0]["run"] == fan
    assert caused[3]["runs"][0]["status"] in ("RUNNING", "SUSPENDED")
    assert from_fan["root"]["run"] == root
    assert (subtree["runs"], subtree["root"]["run"], subtree["root"]["start_s"]) == (
        1,
        waiter_run,
        0,
    )
    assert "not shown: 3 or more" in cut.out
    assert all(
        word in tree_output.out for word in ("publish → news/today", "writer/asked", "executing")
    )
    assert tree_output.out.count("COMPLETED") == 4


async def test_a_tree_is_shown_from_its_root(cli: Cli) -> None:
    """With every child; a sentence when there are more than were asked for."""
    async with newsroom(cli) as (runtime, root):
        (child,) = await runs_of(runtime, AgentId("writer", "child"))
        whole = (await cli.call("runs", "tree", child, "--json")).data
        subtree = (await cli.call("runs", "tree", child, "--from-here", "--json")).data
        tree_output = await cli.call("runs", "tree", root)
        cut = await cli.call("runs", "tree", root, "--limit", "1")
        children = (await cli.call("runs", "list", "--parent", root, "--json")).data

    assert (whole["run"], [below["run"] for below in whole["children"]]) == (root, [child])
    assert (subtree["run"], subtree["children"]) == (child, [])
    assert "writer/child  COMPLETED" in tree_output.out
    assert "not shown" in cut.out
    assert [row["run"] for row in children] == [child]


async def test_agents_and_hosts_are_listed(cli: Cli) -> None:
    """What waits and why, an agent's inbox and state, and who lives."""
    async with newsroom(cli) as (runtime, _):
        await runtime.send(AgentId("ghost", "1", "acme"), {"n": 1})
        await runtime.send(AgentId("waiter", "told"), "more")
        every = (await cli.call("agents", "list", "--json")).data
        unserved_rows = (await cli.call("agents", "list", "--unserved", "--json")).data
        table = await cli.call("agents", "list", "--type", "ghost")
        old = (await cli.call("agents", "list", "--waiting", "3600", "--json")).data
        inbox = (await cli.call("agents", "inbox", "acme:ghost/1", "--json")).data
        state = (await cli.call("agents", "state", "editor/1", "--json")).data
        people = [await cli.call("agents", word, "editor/1") for word in ("inbox", "state")]
        hosts = (await cli.call("hosts", "--json")).data
        hosts_output = await cli.call("hosts")

    reasons = {row["agent"]: row["reason"] for row in every}
    assert reasons == {"acme:ghost/1": "unserved", "waiter/told": reasons["waiter/told"]}
    assert reasons["waiter/told"] in ("executing", "waiting")
    assert [row["agent"] for row in unserved_rows] == ["acme:ghost/1"]
    assert "a host that serves it" in table.out
    assert old == []
    assert [(row["message"]["payload"], row["run"]) for row in inbox] == [({"n": 1}, None)]
    assert state == {"articles": 1}
    assert "nothing waits for editor/1" in people[0].out
    assert "articles" in people[1].out
    assert [host["serves"] for host in hosts] == [["editor", "waiter", "writer"]]
    assert hosts[0]["shards"] > 0
    assert hosts[0]["host"] in hosts_output.out


async def test_runs_are_found_by_type_tenant_and_time_in_pages(cli: Cli) -> None:
    """Each filter alone, and the next page behind the last run of the one before."""
    async with cli.host("waiter") as runtime:
        ids = [await runtime.submit(AgentId("waiter", key), None) for key in "abc"]
        other = AgentId("waiter", "a", "acme")
        foreign = await runtime.submit(other, None, tenant="acme")

        async def list_run_ids(*words: str) -> list[str]:
            rows = (await cli.call("runs", "list", *words, "--json")).data
            return [row["run"] for row in rows]

        assert await list_run_ids("--type", "waiter") == [foreign, *reversed(ids)]
        assert await list_run_ids("--type", "desk") == []
        assert await list_run_ids("--tenant", "acme") == [foreign]
        assert await list_run_ids("--agent", "acme:waiter/a") == [foreign]
        assert await list_run_ids("--since", "1h", "--until", "2999-01-01") == [
            foreign,
            *reversed(ids),
        ]
        assert await list_run_ids("--until", "1h") == []
        first = await list_run_ids("--limit", "2")
        assert first + await list_run_ids("--limit", "2", "--after", first[-1]) == [
            foreign,
            *ids[::-1],
        ]
        assert "--after" in (await cli.call("runs", "list", "--limit", "2")).out


async def test_many_runs_are_cancelled_with_yes_only(cli: Cli) -> None:
    """Without it they are counted, and the exit code says that nothing was done."""
    async with cli.host("waiter") as runtime:
        ids = [await runtime.submit(AgentId("waiter", key), None) for key in "abc"]
        count_output = await cli.call("runs", "cancel", "--type", "waiter")
        cancel_output = await cli.call("runs", "cancel", "--type", "waiter", "--yes", "--json")
        async with asyncio.timeout(20):
            rows = [await runtime.wait(run_id) for run_id in ids]
        none = await cli.call("runs", "cancel", "--agent", "waiter/a", "--yes")

    assert (count_output.code, cancel_output.code, none.code) == (1, 0, 0)
    assert "3 run(s) would be asked" in count_output.out
    assert set(cancel_output.data["asked_to_stop"]) == set(ids)
    assert {row.status for row in rows} == {"CANCELLED"}
    assert "found 0 run(s)" in none.out


async def test_a_failed_a_parked_and_a_backing_off_run_are_retried(
    cli: Cli, tmp_path: Path
) -> None:
    """Each in its way; what has not failed is refused with what it is doing."""
    marker = tmp_path / "repaired"
    slow = RetryPolicy(max_retries=1, backoff_s=3600, max_backoff_s=3600)
    pause = RetryPolicy(max_retries=0, on_exhausted="pause")
    async with cli.host("flaky", "waiter") as runtime:
        dead, waits, parked_run = [
            await runtime.submit(AgentId("flaky", key), str(marker), **terms)
            for key, terms in (
                ("a", {"max_retries": 0}),
                ("b", {"retry_policy": slow}),
                ("c", {"retry_policy": pause}),
            )
        ]
        for run_id, kind in (
            (dead, K.RUN_FAILED),
            (waits, K.RUN_ATTEMPT_FAILED),
            (parked_run, K.RUN_PARKED),
        ):
            await wait_for_entry(runtime, run_id, kind)
        idle = await runtime.submit(AgentId("waiter", "a"), None)
        await wait_for_entry(runtime, idle, K.RUN_STARTED)
        marker.touch()
        retries = [
            (await cli.call("runs", "retry", run, "--json")).data
            for run in (dead, waits, parked_run)
        ]
        async with asyncio.timeout(20):
            results = [await runtime.result(RunId(retry["goes_on_as"])) for retry in retries]
        again = await cli.call("runs", "retry", waits)
        refusal = await cli.call("runs", "retry", idle)

    assert [retry["was"] for retry in retries] == ["redriven", "back-off", "parked"]
    assert results == ["repaired"] * 3
    assert (again.code, refusal.code) == (2, 2)
    assert f"runs fork {waits}" in again.err
    assert "has not failed" in refusal.err


async def test_a_run_is_forked(cli: Cli) -> None:
    """At an entry; the same again is the same fork; where it cannot be is said, with where it can."""
    async with newsroom(cli) as (runtime, _):
        (child,) = await runs_of(runtime, AgentId("writer", "child"))
        end = (await runtime.store.reads.run(child)).last_seq  # type: ignore[union-attr]
        fork = (await cli.call("runs", "fork", child, "--at", str(end - 1))).out.strip()
        again = (await cli.call("runs", "fork", child, "--at", str(end - 1), "--json")).data
        other = await cli.call("runs", "fork", child, "--at", str(end - 1), "--copy", "1")
        async with asyncio.timeout(20):
            result = await runtime.result(RunId(fork))
        view = (await cli.call("runs", "show", fork, "--json")).data
        refusal = await cli.call("runs", "fork", child, "--at", str(end))
        beyond = await cli.call("runs", "fork", child, "--at", "99")

    assert result == "write"
    assert again["run"] == fork != other.out.strip()
    assert view["forked_from"] == {"run": child, "seq": end - 1}
    assert (refusal.code, beyond.code) == (2, 2)
    assert f"fork at {end - 1} or before" in refusal.err
    assert f"entries 0 to {end}" in beyond.err


async def test_events_end_where_the_run_does(cli: Cli) -> None:
    """Without --follow at the log's present end; with it behind the end mark."""
    async with cli.host("waiter") as runtime:
        run_id = await runtime.submit(AgentId("waiter", "a"), None)
        await wait_for_entry(runtime, run_id, K.MSG_RECEIVED)
        now = await cli.call("runs", "events", run_id, "--json")
        following = asyncio.ensure_future(cli.call("runs", "events", run_id, "-f", "--json"))
        await runtime.signal(run_id, "go", "done")
        followed_output = await following
        people = await cli.call("runs", "events", run_id)

    lines = [json.loads(line) for line in followed_output.out.splitlines()]
    present_lines = [json.loads(line) for line in now.out.splitlines()]
    assert [line["kind"] for line in lines[:-1]] == ["entry"] * (len(lines) - 1)
    assert (lines[-1]["kind"], lines[-1]["name"]) == ("end", "COMPLETED")
    assert [line["seq"] for line in present_lines] == list(range(len(present_lines)))
    assert present_lines
    assert "the run has ended COMPLETED" in people.out


async def test_dead_letters_are_exported_before_they_are_forgotten(
    cli: Cli, tmp_path: Path
) -> None:
    """All or some of them, to a new file that nobody else can read; nothing is lost on bad input."""
    out = tmp_path / "letters.jsonl"
    async with cli.host("failing") as runtime:
        for key in "abc":
            run_id = await runtime.submit(AgentId("failing", key), f"broken {key}", max_retries=0)
            async with asyncio.timeout(20):
                await runtime.wait(run_id)
        letters = (await cli.call("dlq", "list", "--json")).data
        ids = [str(letter["id"]) for letter in letters]
        show_output = await cli.call("dlq", "show", ids[0])
        discard_output = await cli.call("dlq", "discard", ids[0], "--export", str(out))
        existing_output = await cli.call("dlq", "discard", "--all", "--export", str(out))
        gone_output = await cli.call("dlq", "discard", ids[0], "--export", str(tmp_path / "x"))
        nowhere = await cli.call("dlq", "discard", "--all", "--export", str(tmp_path / "no" / "x"))
        remaining_letters = (await cli.call("dlq", "list", "--json")).data
        rest = await cli.call("dlq", "discard", "--all", "--export", str(tmp_path / "b"), "--json")
        empty = await cli.call("dlq", "list")

    (line,) = out.read_text().splitlines()
    assert json.loads(line) == letters[0]
    assert out.stat().st_mode & 0o077 == 0
    assert "broken" in show_output.out
    assert [output.code for output in (discard_output, existing_output, gone_output, nowhere)] == [
        0,
        2,
        4,
        2,
    ]
    assert "exists already" in existing_output.err
    assert [letter["id"] for letter in remaining_letters] == [int(number) for number in ids[1:]]
    assert rest.data["discarded"] == 2
    assert len((tmp_path / "b").read_text().splitlines()) == 2
    assert empty.out == "no dead letters\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["trace", NOBODY], 4),
        (["runs", "tree", NOBODY], 4),
        (["runs", "retry", NOBODY], 4),
        (["runs", "fork", NOBODY, "--at", "0"], 4),
        (["runs", "events", NOBODY], 4),
        (["runs", "list", "--parent", NOBODY], 4),
        (["dlq", "show", "7"], 4),
        (["runs", "fork", "x"], 2),
        (["runs", "fork", "x", "--at", "0", "--copy", "-1"], 2),
        (["runs", "list", "--since", "yesterday"], 2),
        (["runs", "list", "--limit", "0"], 2),
        (["runs", "cancel"], 2),
        (["runs", "cancel", "x", "--type", "desk"], 2),
        (["runs", "cancel", "--status", "failed", "--yes"], 2),
        (["agents", "list", "--waiting", "-1"], 2),
        (["agents", "inbox", "nobody"], 2),
        (["dlq", "discard", "--export", "x"], 2),
    ],
)
def test_wrong_orders_are_refused_in_one_line(cli: Cli, words: Sequence[str], code: int) -> None:
    """What is unknown with 4, what cannot be meant with 2; no stack trace."""
    output = cli(*words)

    assert (output.code, output.out) == (code, "")
    assert len(output.err.splitlines()) == 1
