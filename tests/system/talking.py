"""A conversation between agents on two hosts, and checks of its rows and ledger afterwards.

A boss on the right asks a lead on the left. The lead spawns three children on both hosts, asks a
desk on either, joins the children (one of which asks a desk as well), pays, publishes and replies.
Every execution of a step appends a line to a ledger that the runtime does not know.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from actors._kernel.agent.message import Message
from actors._kernel.runtime.communication import AskKind
from actors._kernel.runtime.ids import AgentId, TopicId
from actors._runtime import idempotency_key
from actors.errors import EffectDidNotHappen
from compose.demo.desk import append_line, lines_of
from tests.system.fleet import Node
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from actors._kernel.agent.agent import Agent
    from actors._kernel.runtime.communication import AskOutcome
    from actors._runtime import RunContext, Runtime
    from tests.system.fleet import Rows

HERE: Final = "tests.system.talking"
ASK_S: Final = 60.0
"""Longer than any recovery: an ask that times out here was lost."""

BOSS: Final = AgentId("boss", "a")
LEAD: Final = AgentId("lead", "a")
DESKS: Final = (AgentId("deskl", "a"), AgentId("deskr", "a"))
FOLLOWERS: Final = (AgentId("nodel", "a"), AgentId("noder", "a"))
KIDS: Final = ("kidl", "kidr", "kidr")
TOPIC: Final = TopicId("news", "eu")


class Executed(NamedTuple):
    """One line of the ledger: a step's function was called."""

    effect: str
    name: str
    pid: int


def executed(ledger: Path | str) -> list[Executed]:
    """Return the ledger's lines so far, in order."""
    return [Executed(*json.loads(line)) for line in lines_of(str(ledger))]


async def do(
    ctx: RunContext,
    ledger: str,
    name: str,
    value: Any = None,
    *,
    is_once: bool = False,
    pace_s: float = 0.0,
) -> Any:
    """Append a line to the ledger as a step of the run, and return `value` after `pace_s`.

    At most once if `is_once`; the ledger then tells whether it happened.
    """

    async def act() -> Any:
        append_line(ledger, json.dumps(Executed(idempotency_key(), name, os.getpid())))
        await asyncio.sleep(pace_s)
        return value

    async def look(effect: str) -> Any:
        if any(line.effect == effect for line in executed(ledger)):
            return value
        raise EffectDidNotHappen(name)

    if is_once:
        return await ctx.step(name, act, effect="at_most_once", reconcile=look)
    return await ctx.step(name, act)


def json_of(outcome: AskOutcome) -> list[Any]:
    """Return the outcome of an ask as JSON data."""
    return [outcome.kind.value, outcome.result]


class Boss:
    """Asks the lead; returns the outcome."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> list[Any]:
        """The payload is a ledger."""
        ledger = str(inbox[0].payload)
        outcome = json_of(await ctx.ask(LEAD, ledger, timeout=ASK_S))
        return [*outcome, await do(ctx, ledger, "file", "filed", is_once=True)]


class Lead:
    """Delegates to others, pays, publishes, replies."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """The payload is a ledger."""
        [question] = inbox
        ledger = str(question.payload)
        await do(ctx, ledger, "plan")
        kids = [await ctx.spawn(KIDS[n], {"ledger": ledger, "n": n}) for n in range(len(KIDS))]
        asks = [await ask_desk(ctx, desk, ledger, n) for n, desk in enumerate(DESKS)]
        joined = await ctx.gather(*kids)
        await do(ctx, ledger, "pay", is_once=True)
        await ctx.emit(TOPIC, {"n": 0})
        outputs = [[result.status.value, result.output] for result in joined]
        await ctx.reply(question, {"asks": asks, "kids": outputs})
        await do(ctx, ledger, "close")
        return "closed"


async def ask_desk(ctx: RunContext, desk: AgentId, ledger: str, n: int) -> list[Any]:
    """Return the outcome of the question of this number."""
    return json_of(await ctx.ask(desk, {"ledger": ledger, "n": n}, timeout=ASK_S))


class Kid:
    """Works, and asks a desk if it is the last one."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> list[Any]:
        """The payload names ledger and number."""
        job: Any = inbox[0].payload
        values = [await do(ctx, job["ledger"], f"kid-{job['n']}", job["n"] * 10, is_once=True)]
        if job["n"] == len(KIDS) - 1:
            values.append(await ask_desk(ctx, DESKS[0], job["ledger"], 7))
        return values


class Desk:
    """Replies to every question with a hundred times its number."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Each payload names ledger and number."""
        for message in inbox:
            job: Any = message.payload
            name, pace_s = f"desk-{job['n']}", job.get("pace_s", 0.0)
            value = await do(ctx, job["ledger"], name, job["n"] * 100, pace_s=pace_s)
            await ctx.reply(message, value)


LEFT: Final[dict[str, Callable[[AgentId], Agent]]] = {
    "lead": Lead,
    "kidl": Kid,
    "deskl": Desk,
    "nodel": Node,
}
RIGHT: Final[dict[str, Callable[[AgentId], Agent]]] = {
    "boss": Boss,
    "kidr": Kid,
    "deskr": Desk,
    "noder": Node,
}

STEPS: Final = (
    "file",
    "plan",
    "pay",
    "close",
    "kid-0",
    "kid-1",
    "kid-2",
    "desk-0",
    "desk-1",
    "desk-7",
)
ONCE: Final = frozenset({"file", "pay", "kid-0", "kid-1", "kid-2"})
REPLIED: Final = AskKind.REPLIED.value
ANSWER: Final = {
    "asks": [[REPLIED, 0], [REPLIED, 100]],
    "kids": [["COMPLETED", [0]], ["COMPLETED", [10]], ["COMPLETED", [20, [REPLIED, 700]]]],
}
ENDED: Final = [REPLIED, ANSWER, "filed"]


class Parent:
    """Spawns one child, crashes or waits for a signal if the payload asks for it, and joins the child."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> list[Any]:
        """The payload names the child's type and job, and how to continue."""
        job: Any = inbox[0].payload
        child = await ctx.spawn(job["child"], job)
        if job["then"] == "die":
            die_once(job["ledger"])
        elif job["then"] == "flush and die":
            await ctx.step("die", die_once, job["ledger"])
        elif job["then"] == "wait":
            await ctx.sleep_until_signal("go")
        result = await ctx.join(child)
        return [result.status.value, result.output]


def die_once(ledger: str) -> None:
    """Kill this process, unless the ledger has an entry of the kill."""
    if not any(line.name == "death" for line in executed(ledger)):
        append_line(ledger, json.dumps(Executed("", "death", os.getpid())))
        os.kill(os.getpid(), signal.SIGKILL)


class Asker:
    """Asks one question, and records the answer."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> list[Any]:
        """The payload is the question, with the agent to ask and the time limit."""
        job: Any = inbox[0].payload
        limit_s = job.get("timeout", ASK_S)
        outcome = await ctx.ask(AgentId.parse(job["target"]), job, timeout=limit_s)
        await do(ctx, job["ledger"], f"asker-{job['n']}", is_once=True)
        return [*json_of(outcome), outcome.handle]


class Gated:
    """Works until a file exists; then answers, or returns, the process that executed it."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> int:
        """The payload names ledger and file."""
        job: Any = inbox[0].payload

        async def work() -> int:
            append_line(job["ledger"], json.dumps(Executed(idempotency_key(), "work", os.getpid())))
            while not Path(job["gate"]).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
                await asyncio.sleep(0.02)
            return os.getpid()

        pid = await ctx.step("work", work)
        await ctx.reply(inbox[0], pid)
        return pid


PAIR_LEFT: Final[dict[str, Callable[[AgentId], Agent]]] = {
    "parent": Parent,
    "asker": Asker,
    "kidl": Kid,
}
PAIR_RIGHT: Final[dict[str, Callable[[AgentId], Agent]]] = {
    "gated": Gated,
    "deskr": Desk,
    "kidr": Kid,
}


async def follow_all(client: Runtime) -> None:
    """Let the recording agents follow the topic."""
    for follower in FOLLOWERS:
        await client.follow(follower, TOPIC.type, TOPIC.source)


async def recorded(rows: Rows) -> set[str]:
    """Return the ids of all effects whose result is in a log."""
    records = await rows.connection.fetch(
        "select distinct payload ->> 'id' as id from event_log where kind = 'effect.result'"
    )
    return {row["id"] for row in records if row["id"] is not None}


async def is_quiet(rows: Rows) -> bool:
    """Return whether no run is open, no message in flight, and no wait left."""
    return not await rows.connection.fetchval(
        "select exists (select from runs where ended_at is null) or exists (select from outbox)"
        " or exists (select from inbox where state <> 'd') or exists (select from fanouts)"
    )


async def problems(rows: Rows, ledger: Path, before: Collection[str] = ()) -> list[str]:
    """Return what was lost, repeated or left over; expected is an empty list.

    Args: rows: Of a conversation that has ended. ledger: Its ledger. before: Effects that were
    recorded when a host was killed.
    """
    return [
        *await _wrong_rows(rows, await _facts(rows)),
        *_wrong_executions(executed(ledger), before),
    ]


async def _facts(rows: Rows) -> dict[str, Any]:
    text = await rows.connection.fetchval("""
        select json_build_object(
          'runs', (select json_object_agg(status, n)
            from (select status, count(*) as n from runs group by status) x),
          'ends', (select count(*) from event_log
            where kind in ('run.completed', 'run.failed', 'run.cancelled')),
          'types', (select json_object_agg(type, n) from (select split_part(agent, '/', 1) as type,
            count(*) as n from runs where parent is not null group by 1) x),
          'kids', (select count(distinct agent) from runs where parent is not null),
          'spawned', (select count(distinct payload ->> 'child') from event_log
            where kind = 'child.spawned'),
          'sent', (select count(*) from event_log where kind = 'ask.sent'),
          'outcomes', (select json_object_agg(outcome, n) from (select payload ->> 'outcome' as outcome,
            count(*) as n from event_log where kind in ('ask.replied', 'ask.timeout') group by 1) x))""")
    facts: dict[str, Any] = json.loads(text)
    return facts


async def _wrong_rows(rows: Rows, facts: dict[str, Any]) -> list[str]:
    total = sum(facts["runs"].values())
    expected = {
        "runs": {"COMPLETED": total},
        "ends": total,
        "types": dict(Counter(KIDS)),
        "kids": len(KIDS),
        "spawned": len(KIDS),
        "sent": 4,
        "outcomes": {REPLIED: 4},
    }
    wrong = [
        f"{name}: {facts[name]} instead of {want}"
        for name, want in expected.items()
        if facts[name] != want
    ]
    for table in ("waits", "dead_letters", "fanouts", "outbox"):
        row_count = await rows.count(table)
        wrong += [f"{row_count} rows of {table}"] if row_count else []
    for follower in FOLLOWERS:
        seen = await rows.seen(follower)
        wrong += [f"{follower} was given {seen}"] if seen != [(f"topic:{TOPIC}", 0)] else []
    return wrong


def _wrong_executions(lines: list[Executed], before: Collection[str]) -> list[str]:
    names = Counter(line.name for line in lines)
    effects = Counter(line.effect for line in lines)
    of_names = Counter(name for _, name in {(line.effect, line.name) for line in lines})
    return [
        *(f"{name} is {n} effects" for name, n in of_names.items() if n != 1),
        *(f"{name} happened {names[name]} times" for name in STEPS if not names[name]),
        *(f"{name} happened {names[name]} times" for name in ONCE if names[name] > 1),
        *(f"{effect}, recorded, happened again" for effect in before if effects[effect] > 1),
    ]


async def until_over(client: Runtime, rows: Rows, run_id: Any) -> None:
    """Return once the boss has its answer and all runs have ended; check the answer."""
    assert await client.result(run_id) == ENDED
    await until(lambda: is_quiet(rows), "the end of the others")


async def announce(runtime: Runtime) -> None:
    """Serve nothing, but publish one post, the same in every process."""
    post = Message.of(BOSS, {"n": 0}, id="announced")
    await runtime.publish(TOPIC.type, TOPIC.source, post)
