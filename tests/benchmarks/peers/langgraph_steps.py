"""Runs of a LangGraph graph with a checkpoint in PostgreSQL before each step: `comparison` starts this program.

`python langgraph_steps.py URL STEPS RUNS AT_ONCE SAVERS` prints steps per second. It imports nothing of ours.
`SAVERS` is the number of savers, each with its pool: a saver executes one statement at a time.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from contextlib import AsyncExitStack
from typing import Any, TypedDict

PAYLOAD = {"text": "x" * 230}


class Vars(TypedDict):
    """The state of a run."""

    n: int
    out: dict[str, str]


async def work(state: Vars) -> Vars:
    """Execute an effect, which answers at once."""
    return {"n": state["n"] + 1, "out": PAYLOAD}


def graph_of(steps: int, saver: Any) -> Any:
    """Return the graph: one node, executed `steps` times."""
    words = importlib.import_module("langgraph.graph")
    built = words.StateGraph(Vars)
    built.add_node("work", work)
    built.add_edge(words.START, "work")
    built.add_conditional_edges(
        "work", lambda state: "work" if state["n"] < steps else words.END, ["work", words.END]
    )
    return built.compile(checkpointer=saver)


async def steps_per_s(url: str, *sizes: int) -> float:
    """Return the steps in a second of so many runs at once; see the module."""
    steps, runs, at_once, savers = sizes
    pools: Any = importlib.import_module("psycopg_pool")
    rows: Any = importlib.import_module("psycopg.rows")
    postgres: Any = importlib.import_module("langgraph.checkpoint.postgres.aio")
    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": rows.dict_row}
    async with AsyncExitStack() as stack:
        graphs = []
        for _ in range(savers):
            pool = pools.AsyncConnectionPool(
                url, min_size=1, max_size=max(1, 60 // savers), open=False, kwargs=settings
            )
            saver = postgres.AsyncPostgresSaver(await stack.enter_async_context(pool))
            await saver.setup()
            graphs.append(graph_of(steps, saver))
        limit = asyncio.Semaphore(at_once)

        async def play(number: int) -> None:
            async with limit:
                config = {"configurable": {"thread_id": str(number)}, "recursion_limit": steps + 5}
                start = {"n": 0, "out": {}}
                graph = graphs[number % savers]
                end = await graph.ainvoke(start, config, durability="sync")
                assert end["n"] == steps, end

        await asyncio.gather(*(play(runs + number) for number in range(at_once)))  # warm
        began = time.perf_counter()
        await asyncio.gather(*map(play, range(runs)))
        return steps * runs / (time.perf_counter() - began)


if __name__ == "__main__":
    importlib.import_module("uvloop").install()
    print(asyncio.run(steps_per_s(sys.argv[1], *map(int, sys.argv[2:]))))  # noqa: T201
