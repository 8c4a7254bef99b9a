"""The costs of one operation of a workload: `python -m tests.benchmarks.profile WORKLOAD [--scale 0.1]`.

Three plays on embedded servers that sync: one that is only timed, one that is sampled, one that is
counted with PostgreSQL's own statistics on. tests/README.md documents the output.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

from compose._host.collector import collect_rarely
from tests.benchmarks.counting import counting
from tests.benchmarks.sampling import sampling
from tests.benchmarks.serverside import Watch, cpu_s, profiled_servers
from tests.benchmarks.workloads import WORKLOADS

if TYPE_CHECKING:
    from tests.benchmarks.counting import Counts
    from tests.benchmarks.outside import Servers
    from tests.benchmarks.sampling import Samples
    from tests.benchmarks.serverside import Totals
    from tests.benchmarks.workloads import Stage, Workload

TOP = 25
WARM_UP = 0.1
"""Part of the operations that are played before any is measured."""


def say(text: str = "") -> None:
    """Print a line."""
    print(text, flush=True)  # noqa: T201 - a command's output


async def shallow(servers: Servers) -> None:
    """Have PostgreSQL count no more than it does by default."""
    watcher = await asyncpg.connect(servers.postgres_url)
    await Watch(watcher, "").deep(on=False)
    await watcher.close()


async def timed(servers: Servers, workload: Workload, total: int) -> None:
    """Print operations per second and CPU by process, then functions by sampled CPU."""
    async with workload.stage(servers) as stage:
        await _play(stage, workload, max(1, int(total * WARM_UP)))
        if workload.prepare is not None:
            await workload.prepare(stage, total)
        before, thread, process = cpu_s(), time.thread_time(), time.process_time()
        began = time.perf_counter()
        await workload.play(stage, total)
        took, after = time.perf_counter() - began, cpu_s()
        thread, process = time.thread_time() - thread, time.process_time() - process
        servers_s = {name: after[name] - before[name] for name in before}
        us = {"host": thread, "host, all threads": process, **servers_s}
        say(f"{total} operations ({workload.unit}), {total / took:,.0f} per second")
        say("\nCPU, microseconds each (servers: to ten milliseconds in all)")
        for name, seconds in us.items():
            say(f"  {name:<24}{seconds / total * 1e6:>10.1f}")
        if workload.prepare is not None:
            await workload.prepare(stage, total)
        with sampling() as samples:
            await workload.play(stage, total)
    _say_samples(samples, thread / total * 1e6)


async def counted(servers: Servers, workload: Workload, total: int) -> None:
    """Print this process's and PostgreSQL's work for an operation."""
    watcher = await asyncpg.connect(servers.postgres_url)
    without, *_ = await _watched(servers, workload, total, watcher, is_played=False)
    totals, counts, statements = await _watched(servers, workload, total, watcher, is_played=True)
    await watcher.close()
    _say_counts(counts, total)
    _say_work(without, totals, total)
    say(
        "\nStatements of PostgreSQL, planning included: us each, calls each, rows each; + within a function"
    )
    for row in statements[:TOP]:
        mark = " " if row["toplevel"] else "+"
        say(
            f" {mark}{row['ms'] * 1e3 / total:>9.1f} {row['calls'] / total:>8.3f}"
            f" {row['rows'] / total:>8.2f}  {row['text'][:150]}"
        )


async def _watched(
    servers: Servers,
    workload: Workload,
    total: int,
    watcher: asyncpg.Connection[Any],
    *,
    is_played: bool,
) -> tuple[Totals, Counts, list[dict[str, Any]]]:
    """Return what the server did, with all that comes before and after; and what was done for the play."""
    with counting() as counts:
        async with workload.stage(servers) as stage:
            watch = Watch(watcher, stage.store.settings.schema)
            await watch.deep(on=True)
            start = await watch.totals()
            await _play(stage, workload, max(1, int(total * WARM_UP)))
            if workload.prepare is not None:
                await workload.prepare(stage, total)
            await watch.deep(on=True)  # deletes the statements until now
            before = counts.read(stage.store)
            if is_played:
                await workload.play(stage, total)
            done, statements = counts.read(stage.store) - before, await watch.statements()
    await watch.until_no_host()
    totals = await watch.totals()
    await watch.deep(on=False)
    for name, count in start.sums.items():
        totals.sums[name] -= count
    return totals, done, statements


async def _play(stage: Stage, workload: Workload, total: int) -> None:
    if workload.prepare is not None:
        await workload.prepare(stage, total)
    await workload.play(stage, total)


def _say_samples(samples: Samples, host_us: float) -> None:
    say(
        f"\nFunctions of the host by own CPU ({samples.total} samples): each us, share, with callees"
    )
    for name, own, whole in samples.top(TOP):
        say(f"  {own * host_us:>7.1f} {own:>7.1%} {whole:>7.1%}  {name}")
    say("\nModules of the host by own CPU: each us, share")
    for name, own in samples.by_module(TOP):
        say(f"  {own * host_us:>7.1f} {own:>7.1%}  {name}")


def _say_counts(done: Counts, total: int) -> None:
    say("\nCounts, each")
    for name, count in done.figures().items():
        say(f"  {name:<24}{count / total:>10.2f}")
    for title, names in (
        ("Statements on the top level", done.statements),
        ("Tasks by coroutine", done.tasks),
        ("call_soon by what is called", done.calls),
    ):
        say(f"\n{title}, each")
        _say_names(names, total)


def _say_names(names: Counter[str], total: int) -> None:
    for name, count in names.most_common(TOP):
        if count / total >= 0.001:
            say(f"  {count / total:>8.3f}  {name}")


def _say_work(without: Totals, totals: Totals, total: int) -> None:
    say("\nPostgreSQL, each (its statistics are on: statements take longer than without)")
    for name, count in totals.sums.items():
        say(f"  {name:<24}{(count - without.sums[name]) / total:>10.2f}")
    rows = []
    for name, now in totals.functions.items():
        was = without.functions.get(name, (0, 0.0, 0.0))
        calls, ms, own = (new - old for new, old in zip(now, was, strict=True))
        rows.append((own * 1e3 / total, ms * 1e3 / total, calls / total, name))
    say("\nFunctions of PostgreSQL: own us each, with callees, calls each")
    for own, ms, calls, name in sorted(rows, reverse=True)[:TOP]:
        if calls > 0:
            say(f"  {own:>9.1f} {ms:>9.1f} {calls:>8.3f}  {name}")


async def run(servers: Servers, name: str, scale: float) -> None:
    """Profile a workload."""
    workload = WORKLOADS[name]
    total = max(20, int(workload.full * scale))
    await shallow(servers)
    await timed(servers, workload, total)
    await counted(servers, workload, total)


def main() -> None:
    """Profile the workload that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full size")
    options = parser.parse_args()
    collect_rarely()  # as a host does
    with tempfile.TemporaryDirectory(prefix="callboard-profile-") as folder:
        broker = WORKLOADS[options.workload].broker
        with profiled_servers(Path(folder) / "servers", broker=broker) as servers:
            asyncio.run(run(servers, options.workload, options.scale))


if __name__ == "__main__":
    main()
