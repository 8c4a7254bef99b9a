"""Turns of sessions beside those agents as plain runs; listing, opening and starting among many sessions."""

from __future__ import annotations

import statistics
import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import asyncpg

from actors.agents import ReActAgent
from actors.sessions import AgentRuntime
from actors.testing import FunctionModel
from tests.benchmarks.bench import TYPE, agent_id, many, open_runtime, report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from actors._runtime import Runtime
    from persistence.postgres import PostgresStore

TURNS: Final = 1_600
AT_ONCE: Final = (1, 64)
ROUNDS: Final = 4
LENGTH: Final = 20
"""Turns of a conversation. A model is given all of it, so each turn of a longer one costs more."""
FEW: Final = 1_000
MANY: Final = 100_000
NODES: Final = 20
TRIES: Final = 50
TALK: Final = "talk"

SQL_FILL: Final = """
with s as (
  insert into sessions (agent, tenant, type, created_at, last_at, last_fact)
    select $1 || '/f' || n, 'default', $1, now() - n * interval '1 s', now() - n * interval '1 s', 2
      from generate_series($2::int, $3::int) n returning agent),
f as (
  insert into session_facts (agent, number, kind, run_id, at)
    select s.agent, k.number, case k.number when 1 then 'started' else 'ended' end, md5(s.agent), now()
      from s cross join generate_series(1, 2) k(number)),
t as (
  insert into transcripts (agent, session, next_ordinal, turns)
    select s.agent, substr(s.agent, strpos(s.agent, '/') + 1), $4, $4 from s)
insert into transcript_turns (agent, session, ordinal, id, run_id, body)
  select s.agent, substr(s.agent, strpos(s.agent, '/') + 1), n, md5(s.agent || n), md5(s.agent),
      json_build_object('role', case n % 2 when 0 then 'user' else 'assistant' end,
        'content', json_build_array(json_build_object('type', 'text', 'text', 'hello')))
    from s cross join generate_series(0, $4 - 1) n
"""


def speaker() -> ReActAgent:
    """An agent whose model answers at once."""
    return ReActAgent("bench", model=FunctionModel(lambda *_: "fine"))


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print a line for each number of sessions at once, and one for many sessions beside few."""
    async with open_runtime(url) as runtime:
        await runtime.register_type(TYPE, lambda _: speaker())
        async with AgentRuntime(agents=speaker(), runtime=runtime, app=TALK) as talks:
            for at_once in AT_ONCE:
                await _compared(runtime, talks, at_once, max(at_once, 8, int(TURNS * scale)))
    await _among_many(url, scale)


async def _compared(runtime: Runtime, talks: AgentRuntime, at_once: int, turns: int) -> None:
    def key(n: int, index: int) -> str:
        return f"{at_once}.{n}.{index % at_once}.{index // (at_once * LENGTH)}"

    async def plain(n: int, index: int) -> None:
        agent = agent_id(key(n, index))
        run_id = await runtime.submit(agent, {"text": "hello"}, session_id=agent.key)
        await runtime.result(run_id)

    async def turn(n: int, index: int) -> None:
        await (await talks.start("hello", session_id=key(n, index))).result()

    rates: dict[str, list[float]] = {"plain": [], "turn": []}
    for n in range(ROUNDS):
        for name, play in sorted([("plain", plain), ("turn", turn)], reverse=n % 2 == 0):
            took = await many(partial(play, n), total=turns, at_once=at_once)
            rates[name].append(turns / took)
    own, least = (statistics.median(rates[name]) for name in ("turn", "plain"))
    report(
        benchmark="talks",
        sessions=at_once,
        turns_per_s=round(own),
        floor_per_s=round(least),
        ratio=round(own / least, 3),
        goal_ratio=0.7,
    )


async def _among_many(url: str, scale: float) -> None:
    """Try two stores in turn, so that what else the machine does hits both."""
    counts = {"few": max(100, int(FEW * scale)), "many": max(200, int(MANY * scale))}
    took: dict[str, list[dict[str, float]]] = {size: [] for size in counts}
    async with AsyncExitStack() as stack:
        talks = {
            size: await stack.enter_async_context(_filled(url, counts[size])) for size in counts
        }
        for n in range(TRIES):
            for size in sorted(counts, reverse=n % 2 == 0):
                session = f"f{1 + n * counts[size] // TRIES}"
                took[size].append(await _times(talks[size], session))
    few, many = (
        {name: statistics.median(times[name] for times in tries) for name in tries[0]}
        for tries in took.values()
    )
    report(
        benchmark="talks_many",
        **counts,
        nodes=NODES,
        **{f"{name}_ms": round(1000 * many[name], 2) for name in many},
        **{f"floor_few_{name}_ms": round(1000 * few[name], 2) for name in few},
        ratio=round(max(many[name] / few[name] for name in many), 2),
        goal_ratio=1.5,
    )


@asynccontextmanager
async def _filled(url: str, count: int) -> AsyncIterator[AgentRuntime]:
    """Yield so many sessions in a store of their own, vacuumed as tables that grow are after a while."""
    async with (
        open_runtime(url) as runtime,
        AgentRuntime(agents=speaker(), runtime=runtime, app=TALK) as talks,
    ):
        schema = cast("PostgresStore", runtime.store).settings.schema
        rows = await asyncpg.connect(url, server_settings={"search_path": schema})
        try:
            for first in range(1, count + 1, 5_000):
                await rows.fetch(SQL_FILL, TALK, first, min(first + 4_999, count), NODES)
            await rows.execute(
                "vacuum analyze sessions, session_facts, transcripts, transcript_turns"
            )
        finally:
            await rows.close()
        yield talks


async def _times(talks: AgentRuntime, session: str) -> dict[str, float]:
    """Return the seconds that listing, opening and starting take."""

    async def start() -> None:
        await (await talks.start("hello", session_id=session)).result()

    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "list": talks.sessions,
        "open": partial(talks.path, session),
        "start": start,
    }
    took: dict[str, float] = {}
    for name, call in calls.items():
        began = time.perf_counter()
        await call()
        took[name] = time.perf_counter() - began
    return took
