"""`ctx.memory.recall` by meaning in one scope, against the bare SQL of the same search, in turn with it.

A recall is a recorded effect: `step_ms` is what an empty step costs in the same place, which is durable when it
returns. Of a small scope that is the greater part.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from persistence.postgres import PostgresStore
from tests.benchmarks.bench import TYPE, agent_id, open_runtime, report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId

DIMENSIONS: Final = 384
COUNT: Final = 100_000
TIMES: Final = 20
LIMIT: Final = 5
SCOPE: Final = "bench:all"
SQL_FILL: Final = """
insert into {schema}.memories (tenant, about, slot, version, id, key, text, source, run_id, turn, metadata,
    dimensions, embedding, created_at, updated_at)
  select $1, $2, 'k' || n, 1, md5(n::text), 'k' || n, 'text ' || n, 'user', '', '', '{{}}', $3,
      {schema}.memory_meaning(
        (select array_agg((random() - 0.5)::real) from generate_series(1, $3) where n > 0)::real[]),
      now(), now()
    from generate_series(1, $4::int) n
"""
SQL_FLOOR: Final = """
select id, key, about, text, source, metadata, version, created_at, updated_at,
    1 - (embedding operator(public.<=>) $3::text::public.vector) as score
  from {schema}.memories where tenant = $1 and about = $2 and valid_until is null
  order by embedding operator(public.<=>) $3::text::public.vector limit $4
"""


class Embedder:
    """Gives each text a vector of its own, at once."""

    async def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """See `EmbeddingClient.embed`."""
        return [vector_of(text) for text in texts]


def vector_of(text: str) -> tuple[float, ...]:
    """Return the vector of a text."""
    chance = random.Random(text)
    return tuple(chance.random() - 0.5 for _ in range(DIMENSIONS))


async def nothing() -> None:
    """Do nothing."""


class Keeper:
    """An agent that keeps or finds the texts of its message, or does nothing. It returns seconds."""

    embedder = Embedder()

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: Any, inbox: list[Message]) -> list[float]:
        """Do it one after the other."""
        order: Any = inbox[0].payload
        times: list[float] = []
        for text in order["texts"]:
            began = time.perf_counter()
            if order["verb"] == "remember":
                await ctx.memory.remember(text, about=SCOPE)
            elif order["verb"] == "step":
                await ctx.step("nothing", nothing)
            else:
                memories = await ctx.memory.recall(text, about=SCOPE, limit=LIMIT, mode="meaning")
                assert len(memories) == LIMIT
            times.append(time.perf_counter() - began)
        return [] if order["verb"] == "remember" else times


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print a line for recalls from a scope of 100,000 memories."""
    count, times = max(200, int(COUNT * scale)), max(5, int(TIMES * scale))
    async with open_runtime(url) as runtime:
        await runtime.register_type(TYPE, Keeper)
        store, agent = runtime.store, agent_id("keeper")
        assert isinstance(store, PostgresStore)
        first: Any = {"verb": "remember", "texts": ["the first one"]}
        await runtime.result(await runtime.submit(agent, first))  # makes the tables
        schema, tenant = store.settings.schema, agent.tenant
        connection = await asyncpg.connect(url)
        fill = SQL_FILL.format(schema=schema)
        await connection.fetch(fill, tenant, SCOPE, DIMENSIONS, count)
        await connection.execute(f"vacuum analyze {schema}.memories")
        floor = await connection.prepare(SQL_FLOOR.format(schema=schema))
        ours: list[float] = []
        steps: list[float] = []
        floors: list[float] = []
        for n in range(times):
            text = f"question {n}"
            order: Any = {"verb": "recall", "texts": [text]}
            recall_times: Any = await runtime.result(await runtime.submit(agent, order))
            ours += recall_times
            order = {"verb": "step", "texts": [text]}
            empty: Any = await runtime.result(await runtime.submit(agent, order))
            steps += empty
            began = time.perf_counter()
            rows = await floor.fetch(tenant, SCOPE, str(list(vector_of(text))), LIMIT)
            floors.append(time.perf_counter() - began)
            assert len(rows) == LIMIT
        await connection.close()
    own, base, step = map(statistics.median, (ours, floors, steps))
    report(
        benchmark="memories",
        memories=count,
        dimensions=DIMENSIONS,
        recall_ms=round(own * 1000, 2),
        floor_ms=round(base * 1000, 2),
        step_ms=round(step * 1000, 2),
        ratio_beside_step=round(own / (base + step), 2),
        ratio=round(own / base, 2),
        goal_ratio=1.3,
    )
