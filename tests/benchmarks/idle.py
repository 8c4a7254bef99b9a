"""An idle host: statements per second, share of a core; and a cold start to the first run."""

from __future__ import annotations

import asyncio
import time

import asyncpg

from actors._kernel.runtime.ids import HostIncarnation
from actors._runtime import Runtime
from compose import build_postgres_runtime, build_runtime
from compose._assembly.settings import read_settings
from persistence.postgres import open_postgres_store
from tests.benchmarks.bench import TYPE, agent_id, report
from tests.benchmarks.outside import Servers
from tests.benchmarks.steps import TenSteps

_STATEMENTS = "select sum(xact_commit + xact_rollback) from pg_stat_database where datname = current_database()"


async def idle(url: str, nats_url: str | None, seconds: float) -> None:
    """Print an idle host's statements per second and share of a core.

    The whole assembly, with a broker if there is one: heartbeat thread, take-over watch, scans. A
    statement is a transaction here;
    what the server does by itself in as long a time is taken off.
    """
    watch = await asyncpg.connect(url)
    settle_s = min(12.0, seconds)  # backends report their statistics that late

    async def statements_in(window_s: float) -> int:
        before = await watch.fetchval(_STATEMENTS)
        await asyncio.sleep(window_s)
        await watch.execute("select pg_stat_clear_snapshot()")
        return int(await watch.fetchval(_STATEMENTS)) - int(before)

    try:
        await asyncio.sleep(settle_s)
        own = await statements_in(seconds)
        name = "bench_idle" if nats_url is None else "bench_idle_broker"
        settings = read_settings().model_copy(update={"db_schema": name, "namespace": name})
        building = (
            build_postgres_runtime(url, settings=settings)
            if nats_url is None
            else build_runtime(nats_url, url, settings=settings)
        )
        async with building as rt:
            await rt.register_type(TYPE, TenSteps)
            await rt.result(await rt.submit(agent_id(0), None))
            await asyncio.sleep(settle_s)
            cpu = time.process_time()
            statements = await statements_in(seconds) - own
            cpu = time.process_time() - cpu
    finally:
        await watch.close()
    report(
        benchmark="idle",
        broker=nats_url is not None,
        seconds=seconds,
        statements_per_s=round(statements / seconds, 2),
        limit_statements_per_s=2,
        core_share=round(cpu / seconds, 4),
        limit_core_share=0.01,
    )


async def cold_start(url: str) -> None:
    """Print the seconds from nothing to the first run's result, on a server that is up."""
    owner = HostIncarnation("cold")
    began = time.perf_counter()
    async with (
        open_postgres_store(url, schema="bench_cold", owner=owner) as store,
        Runtime(store=store, owner=owner) as rt,
    ):
        await rt.register_type(TYPE, TenSteps)
        await rt.result(await rt.submit(agent_id(0), None))
        report(benchmark="cold_start", seconds=round(time.perf_counter() - began, 3), limit_s=0.7)


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print both lines."""
    await cold_start(url)
    await idle(url, None, max(1.0, 60.0 * scale))


async def with_broker(servers: Servers, *, scale: float = 1.0) -> None:
    """Print the idle line of the assembly with a broker."""
    await idle(servers.postgres_url, servers.nats_url, max(1.0, 60.0 * scale))
