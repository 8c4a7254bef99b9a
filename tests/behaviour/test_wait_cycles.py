"""Wait cycles of agents: exactly one of the waits fails, whichever run closed the cycle."""

from __future__ import annotations

import asyncio
import zlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors.errors import WaitCycleError
from tests.behaviour.agents import Acting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import RunContext, Runtime
    from tests.behaviour.bed import Bed


class Pair:
    """Two agents whose first runs ask each other as soon as the gate is open, and reply to asks."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self.agents = [bed.name(), bed.name()]
        self.cycles: list[list[str]] = []

    def agent(self, index: int) -> Acting:
        """Return one of the two agents."""
        bed, other = self._bed, self.agents[1 - index]

        async def act(ctx: RunContext, inbox: list[Message]) -> object:
            if inbox[0].reply_to is not None or inbox[0].payload == "after":
                await ctx.step("got", bed.world.do, f"{inbox[0].payload} {inbox[0].sender}")
                await ctx.reply(inbox[0], "answered")
                return "replied"
            await ctx.step("gate", bed.world.wait, "gate")
            try:
                return (await ctx.ask(other, "q", timeout=60)).result
            except WaitCycleError as exc:
                if not await ctx.state.get("told"):
                    await ctx.state.set("told", True)
                    self.cycles.append(sorted(exc.agents))
                await ctx.send(other, "after")
                return "cycle"

        return Acting(self.agents[index], act)

    async def ask_each_other(self, hosts: list[Runtime]) -> list[Any]:
        """Return the runs, once both are at the gate; agent i is served by host i."""
        bed = self._bed
        for index, host in enumerate(hosts):
            await host.register(self.agent(index))
        runs = [await bed.submit(agent) for agent in self.agents]
        for run_id in runs:
            await bed.seen(run_id, K.EFFECT_INTENT)
        return runs


async def taken_back(bed: Bed, agents: list[AgentId], outputs: list[Any]) -> None:
    """Return when a message sent after the refused ask is handled.

    The refused ask was withdrawn, the other one was not.
    """
    refused, answered = (agents[outputs.index(output)] for output in ("cycle", "answered"))
    await bed.until(lambda: bed.world.count[f"after agent:{refused}"])
    got = {text: n for text, n in bed.world.count.items() if text.startswith(("q ", "after "))}
    assert got == {f"after agent:{refused}": 1, f"q agent:{answered}": 1}
    assert len(await bed.runtime.store.lists.runs(agent=answered)) == 2


async def refused_waits(bed: Bed, run_id: RunId) -> int:
    """Return how many waits of a run were refused for good."""
    entries = await bed.log(run_id, K.EFFECT_RESULT)
    return sum(entry.payload["effect"] == "ask" for entry in entries)


@pytest.mark.item(85)
@pytest.mark.parametrize("hosts", [1, 2])
async def test_one_of_two_concurrent_asks_of_each_other_fails(bed: Bed, hosts: int) -> None:
    """One of them gets the cycle's error, the other one its answer; on one host and on two."""
    if hosts == 2 and bed.backend == "memory":
        pytest.skip("the hosts of one memory share a shard")
    pair = Pair(bed)
    async with bed.rival() as rival:
        where = [bed.runtime, bed.runtime if hosts == 1 else rival]
        runs = await pair.ask_each_other(where)
        bed.world.gates["gate"].set()
        outputs = [await bed.result(run_id) for run_id in runs]
        refused = [await refused_waits(bed, run_id) for run_id in runs]
        await taken_back(bed, pair.agents, outputs)
    assert sorted(outputs) == ["answered", "cycle"]
    assert sorted(refused) == [0, 1]
    assert pair.cycles == [sorted(map(str, pair.agents))]


def lock_of(schema: str) -> int:
    """Return the number of a lock that no test of another schema uses: a server's databases share locks."""
    return zlib.crc32(schema.encode()) & 0x7FFFFFFF


@asynccontextmanager
async def held_commits(url: str, schema: str) -> AsyncIterator[asyncio.Event]:
    """Block each commit that writes a wait until the event is set.

    Each run has checked for cycles by then, and none reads the other's uncommitted wait.
    """
    release, key = asyncio.Event(), lock_of(schema)
    guard = await asyncpg.connect(url)
    try:
        await guard.execute(f"select pg_advisory_lock({key})")
        await guard.execute(f"""
            create function {schema}.wait_at_commit() returns trigger language plpgsql as $$
            begin
              perform pg_advisory_xact_lock_shared({key});
              return null;
            end $$;
            create constraint trigger wait_at_commit after insert on {schema}.waits
              deferrable initially deferred for each row
              execute function {schema}.wait_at_commit();
        """)
        yield release
    finally:
        await guard.execute("select pg_advisory_unlock_all()")
        await guard.execute(f"""
            drop trigger wait_at_commit on {schema}.waits;
            drop function {schema}.wait_at_commit();
        """)
        await guard.close()


async def stopped_commits(url: str, schema: str, count: int) -> None:
    """Return when this many commits are blocked."""
    watcher = await asyncpg.connect(url)
    waiting = (
        "select count(*) from pg_locks"
        f" where locktype = 'advisory' and objid = {lock_of(schema)} and not granted"
    )
    try:
        async with asyncio.timeout(20):
            while await watcher.fetchval(waiting) < count:  # noqa: ASYNC110 - another session's lock
                await asyncio.sleep(0.01)
    finally:
        await watcher.close()


@pytest.mark.item(85)
async def test_the_scan_finds_a_cycle_of_concurrent_commits(
    bed: Bed, request: pytest.FixtureRequest
) -> None:
    """Both commits are in flight before either counts: the scan finds the cycle, one wait fails."""
    if bed.backend == "memory":
        pytest.skip("commits of one process follow each other")
    url = request.getfixturevalue("postgres_server").url
    name = "behaviour_schema" if bed.backend == "postgres" else "brokered_schema"
    schema = request.getfixturevalue(name)
    pair = Pair(bed)
    async with bed.rival() as rival:
        runs = await pair.ask_each_other([bed.runtime, rival])
        async with held_commits(url, schema):
            bed.world.gates["gate"].set()
            await stopped_commits(url, schema, 2)
        outputs = dict(zip(runs, [await bed.result(run_id) for run_id in runs], strict=True))
        refused = {run_id: await refused_waits(bed, run_id) for run_id in runs}
        await taken_back(bed, pair.agents, list(outputs.values()))
    greatest = max(runs)
    assert outputs == {min(runs): "answered", greatest: "cycle"}
    assert refused == {min(runs): 0, greatest: 1}
    assert pair.cycles == [sorted(map(str, pair.agents))]


@pytest.mark.parametrize("anew", [False, True])
async def test_a_refused_ask_can_be_repeated(bed: Bed, *, anew: bool) -> None:
    """With the same idempotency key, also after `continue_as_new`: it is a new ask, and is answered."""
    first, second = bed.name(), bed.name()
    got: list[Any] = []

    async def asks(ctx: RunContext, inbox: list[Message]) -> object:
        if inbox[0].payload == "back":
            await ctx.reply(inbox[0], "fine")
            return "answered"
        outcome = await ctx.ask(second, "go", timeout=60)
        return outcome.result

    async def asks_back(ctx: RunContext, inbox: list[Message]) -> object:
        if inbox[0].payload == "go":
            try:
                await ctx.ask(first, "back", timeout=60, idempotency_key="k")
            except WaitCycleError:
                got.append("cycle")
            await ctx.reply(inbox[0], "later")
            if anew:
                await ctx.continue_as_new("again")
        return (await ctx.ask(first, "back", timeout=60, idempotency_key="k")).result

    for agent in (Acting(first, asks), Acting(second, asks_back)):
        bed.agents[agent.id] = agent
        await bed.runtime.register(agent)
    assert await bed.result(await bed.submit(first, "begin")) == "later"
    [row] = await bed.runtime.store.lists.runs(agent=second)
    assert await bed.result(row.run_id) == "fine"
    assert set(got) == {"cycle"}
    assert len(await bed.runtime.store.lists.runs(agent=first)) == 2


@pytest.mark.item(83, 129)
async def test_a_cycle_through_a_queued_child_is_refused(bed: Bed) -> None:
    """A child queued behind its grandparent cannot start: a join of it raises, and the run continues."""
    top, middle = bed.name(), bed.name()

    async def at_the_top(ctx: RunContext, inbox: list[Message]) -> object:
        if inbox[0].payload == "again":
            return "begun"
        result = await ctx.join(await ctx.spawn(middle, "m"))
        return [result.status.value, result.output]

    async def in_between(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        handle = await ctx.spawn(top, "again")
        try:
            return (await ctx.join(handle)).output
        except WaitCycleError as exc:
            return sorted(exc.agents)

    for agent in (Acting(top, at_the_top), Acting(middle, in_between)):
        bed.agents[agent.id] = agent
        await bed.runtime.register(agent)
    run_id = await bed.submit(top, "first")
    output = await bed.result(run_id)
    assert output == ["COMPLETED", sorted(map(str, [top, middle]))]
    [child] = await bed.runtime.children(run_id)
    [queued] = await bed.runtime.children(child.run_id)
    assert (await bed.ended(queued.run_id)).status.value == "CANCELLED"
    assert K.RUN_STARTED not in await bed.kinds(queued.run_id)


@pytest.mark.item(83)
async def test_a_join_of_a_run_queued_at_ones_own_agent_is_refused(bed: Bed) -> None:
    """It can start only after this run's end: the join is refused at once, naming the agent."""
    agent: list[AgentId] = []
    queued: list[RunId] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        if inbox[0].payload == "second":
            return "begun"
        await ctx.step("gate", bed.world.wait, "gate")
        try:
            return (await ctx.join(queued[0])).output
        except WaitCycleError as exc:
            return exc.agents

    agent.append(await bed.serve(act))
    run_id = await bed.submit(agent[0], "first")
    queued.append(await bed.submit(agent[0], "second"))
    bed.world.gates["gate"].set()
    assert await bed.result(run_id) == [str(agent[0])]
    assert await bed.result(queued[0]) == "begun"
