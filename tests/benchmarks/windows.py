"""Windows of long sessions: the time to make one, against one indexed select and the decoding of its JSON."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import asyncpg
from pydantic_core import from_json

from actors import ChatMessage, CompactionPipeline, ContextConfig, StoreHistory
from actors._context.calls import RefusedCalls
from actors._kernel.agent.transcript import NewTurn
from actors._runtime.verbs.conversation.sessions import SessionTerms, WindowSource
from actors._runtime.verbs.conversation.windows import assembled_window
from actors.context import SlidingWindowCompaction
from actors.testing import FunctionModel
from persistence.postgres import PostgresStore
from tests.benchmarks.bench import TYPE, agent_id, open_runtime, report

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncpg.prepared_stmt import PreparedStatement

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import Runtime

SESSION: Final = "main"
TURN: Final = "word " * 60
WINDOW: Final = 100
BATCH: Final = 1_000
TIMES: Final = 60
LENGTHS: Final = (200, 2_000, 20_000)
SQL_FLOOR: Final = (
    "select body, id, tokens from {schema}.transcript_turns"
    " where agent = $1 and session = $2 and ordinal > $3 order by ordinal"
)


class Talker:
    """An agent that answers each message in one conversation, with a window of the newest turns."""

    session = SESSION

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id
        self.model = FunctionModel(lambda *_: "fine")
        window = CompactionPipeline([SlidingWindowCompaction(WINDOW)])
        self.context = ContextConfig(StoreHistory(), window)

    async def run(self, ctx: Any, inbox: list[Message]) -> None:
        """Ask once."""
        await ctx.generate("hello")


async def fill(runtime: Runtime, agent: AgentId, turns: int) -> None:
    """Let a session have so many turns, without a run."""
    for start in range(0, turns, BATCH):
        new_turns = [
            NewTurn(SESSION, f"t{n}", ChatMessage.of("assistant" if n % 2 else "user", TURN), 64)
            for n in range(start, min(start + BATCH, turns))
        ]
        await runtime.store.data.transcripts.append(agent, new_turns)


async def measured(call: Callable[[], Awaitable[Any]], times: list[float]) -> Any:
    """Await it, and note its seconds."""
    began = time.perf_counter()
    result = await call()
    times.append(time.perf_counter() - began)
    return result


async def window_of(runtime: Runtime, agent: AgentId) -> list[ChatMessage]:
    """Return a window as `ctx.generate` makes it on a miss."""
    memory = SessionTerms.of(Talker(agent))
    source = await WindowSource.of(memory, runtime.store.data.transcripts, agent, SESSION)
    _, window = await assembled_window(memory.pipeline, source.messages, RefusedCalls())
    return window


async def least(query: PreparedStatement, agent: AgentId, after: int) -> int:
    """Read and decode the newest turns of a session, and nothing else."""
    rows = await query.fetch(str(agent), SESSION, after)
    return len([from_json(row["body"]) for row in rows])


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print a line for windows of sessions of 200, 2,000 and 20,000 turns."""
    lengths = [max(WINDOW + 40, int(length * scale)) for length in LENGTHS]
    async with open_runtime(url) as runtime:
        await runtime.register_type(TYPE, Talker)
        store = runtime.store
        assert isinstance(store, PostgresStore)
        agents = [agent_id(f"talks{n}") for n in range(len(lengths))]
        for agent, turns in zip(agents, lengths, strict=True):
            await fill(runtime, agent, turns)
            await runtime.result(await runtime.submit(agent, None))  # makes the cut
        connection = await asyncpg.connect(url)
        query = await connection.prepare(SQL_FLOOR.format(schema=store.settings.schema))
        ours: list[list[float]] = [[] for _ in agents]
        floors: list[list[float]] = [[] for _ in agents]
        for _ in range(max(5, int(TIMES * scale))):
            for n, (agent, turns) in enumerate(zip(agents, lengths, strict=True)):
                window = await measured(partial(window_of, runtime, agent), ours[n])
                floor = partial(least, query, agent, turns + 1 - WINDOW)
                assert await measured(floor, floors[n]) == len(window) == WINDOW
        await connection.close()
    middle = [statistics.median(times) for times in ours]
    for turns, own, base in zip(lengths, middle, map(statistics.median, floors), strict=True):
        report(
            benchmark="windows",
            turns=turns,
            window=WINDOW,
            ms=round(own * 1000, 2),
            floor_ms=round(base * 1000, 2),
            ratio=round(own / base, 2),
            goal_ratio=2,
            of_shortest=round(own / middle[0], 2),
            goal_of_shortest=1.3,
        )
