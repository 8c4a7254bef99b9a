"""Open chats: the memory of a waiting run with a conversation of 2,000 turns, beside one without."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg

from persistence.postgres import PostgresStore
from tests.benchmarks.bench import TYPE, agent_id, many, open_runtime, report
from tests.benchmarks.generates import Caller
from tests.benchmarks.windows import fill

if TYPE_CHECKING:
    from actors._runtime import Runtime

CHATS: Final = 1_000
TURNS: Final = 2_000
AT_ONCE: Final = 50
HOUR_S: Final = 3_600.0
LIMIT_MIB: Final = 20
SQL_COPY_SESSION: Final = """
insert into transcripts (agent, session, next_ordinal, turns, tokens, cut_upto, cut_strategy, cut_run)
  select $2 || n, session, next_ordinal, turns, tokens, cut_upto, cut_strategy, cut_run
    from transcripts, generate_series(0, $3::int - 1) n where agent = $1
"""
SQL_COPY_TURNS: Final = """
insert into transcript_turns (agent, session, ordinal, id, run_id, parent, tokens, body)
  select $2 || n, session, ordinal, id, '', parent, tokens, body
    from transcript_turns, generate_series(0, $3::int - 1) n where agent = $1
"""


def _resident_bytes() -> int:
    gc.collect()
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096


async def copied(runtime: Runtime, url: str, chats: int, turns: int) -> None:
    """Give each agent a conversation of this many turns, with the cut that a first call leaves."""
    first = agent_id("first")
    await fill(runtime, first, turns - 2)
    await runtime.result(await runtime.submit(first, {"verb": "generate", "times": 1}))
    store = runtime.store
    assert isinstance(store, PostgresStore)
    path = {"search_path": store.settings.schema}
    connection = await asyncpg.connect(url, server_settings=path)
    for query in (SQL_COPY_SESSION, SQL_COPY_TURNS):
        await connection.execute(query, str(first), f"{TYPE}/generate", chats)
    await connection.close()


async def opened(runtime: Runtime, verb: str, total: int) -> int:
    """Start runs that called a model once and wait in memory; return the bytes that they take."""
    before = _resident_bytes()

    async def open_chat(index: int) -> None:
        order = {"verb": verb, "times": 1, "waits": "mail"}
        run_id = await runtime.submit(agent_id(f"{verb}{index}"), order)
        async for entry in runtime.tail(run_id):
            if entry.kind == "llm.call":
                return

    await many(open_chat, total=total, at_once=AT_ONCE, warm_up=False)
    return _resident_bytes() - before


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print a line for 1,000 chats."""
    chats, turns = max(20, int(CHATS * scale)), max(200, int(TURNS * min(1.0, 10 * scale)))
    async with open_runtime(url, suspend_after=HOUR_S, capacity=3 * CHATS) as runtime:
        await runtime.register_type(TYPE, Caller)
        await copied(runtime, url, chats, turns)
        await opened(runtime, "llm", 0)
        for index in range(AT_ONCE):  # one-time costs are not counted
            await runtime.result(
                await runtime.submit(agent_id(f"warm{index}"), {"verb": "generate", "times": 1})
            )
        idle = await opened(runtime, "llm", chats)
        talking = await opened(runtime, "generate", chats)
    above = (talking - idle) / 2**20
    report(
        benchmark="chats_open",
        chats=chats,
        turns=turns,
        idle_mib=round(idle / 2**20, 2),
        chats_mib=round(talking / 2**20, 2),
        above_mib=round(above, 2),
        limit_mib=LIMIT_MIB,
    )
