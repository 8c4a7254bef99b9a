"""Steps and turns of this project beside those of AbstractRuntime, LangGraph and aegra.

The programs are equal: a run has 20 steps, each an effect that answers at once. A turn is one question to an
agent or graph that answers at once. Both sides are equally durable: no step begins before the step before it is
on the disk. A peer that does not promise this as it comes has a second line, as it comes and without a goal.
Of each side the best of several rounds counts, and of a peer the best of several settings.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import asyncpg
import uvloop

from tests.benchmarks import flows
from tests.benchmarks.bench import report
from tests.benchmarks.graph_steps import steps_per_s
from tests.benchmarks.peers import served_aegra
from tests.benchmarks.peers.environments import (
    ABSTRACTRUNTIME,
    AEGRA,
    LANGGRAPH,
    Peer,
    PeerMissingError,
    played,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

STEPS: Final = flows.STEPS
ROUNDS: Final = 3
EMBEDDED_RUNS: Final = 100
RUNS: Final = {1: 40, 50: 300}
"""Runs at full size, by how many are executed at once."""
SESSIONS: Final = 64
TURNS: Final = 1_280
GRAPH_STEPS: Final = "../graph_steps.py"
DURABLE: Final = {
    "synced": {
        "sqlite": "SQLite as ours: WAL, synchronous=FULL",
        "files": "files, with a sync of each line and of each replaced file and its folder added",
    },
    "shipped": {
        "sqlite": "SQLite as it comes: WAL, synchronous=NORMAL, so a power cut loses steps",
        "files": "files as they come: no sync, so a power cut loses steps",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Our rate, and the rate of a peer with each of its settings.

    Attributes:
        what: What is compared.
        peer: The peer.
        ours: A function that returns our rate.
        theirs: Functions that return the peer's rate, by setting.
        goal: The ratio that our issues ask for. None: no goal.
        facts: More to print.
    """

    what: str
    peer: Peer
    ours: Callable[[], Awaitable[float]]
    theirs: dict[str, Callable[[], Awaitable[float]]]
    goal: float | None
    facts: dict[str, int | str]

    async def run(self) -> None:
        """Print a line, also if the peer does not run here. Settings with which it fails are named."""
        facts = {"benchmark": "peers", "what": self.what, **self.facts}
        rate, rates = 0.0, dict.fromkeys(self.theirs, 0.0)
        failed: dict[str, str] = {}
        for _ in range(ROUNDS):
            for setting in [s for s in rates if s not in failed]:
                try:
                    rates[setting] = max(rates[setting], await self.theirs[setting]())
                except PeerMissingError as exc:
                    failed[setting] = str(exc)
            if len(rates) == len(failed):
                report(**facts, floor=f"none of {self.peer.name}", why=[*failed.values()])
                return
            rate = max(rate, await asyncio.to_thread(_as_served, self.ours))
        best = max(rates, key=rates.__getitem__)
        report(
            **facts,
            per_s=round(rate),
            floor=f"{self.peer.title}; {best}",
            floor_per_s=round(rates[best]),
            settings_per_s={setting: round(per_s) for setting, per_s in rates.items()},
            ratio=round(rate / rates[best], 2),
            **({} if self.goal is None else {"goal": self.goal}),
            **({"failed": failed} if failed else {}),
        )


def _as_served(rate: Callable[[], Awaitable[float]]) -> float:
    """Return a rate in an event loop of uvloop, which `callboard serve` takes and the peers have, too."""

    async def measured() -> float:
        return await rate()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measured())


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print a line for each comparison."""
    with tempfile.TemporaryDirectory(prefix="callboard-peers-") as name:
        for durability in DURABLE:
            for kind in ("sqlite", "files"):
                runs = max(2, round(EMBEDDED_RUNS * scale))
                await _embedded(Path(name), kind, durability, runs).run()
        await _actors(Path(name), url, scale)
    await _turns(url, max(2, round(TURNS * scale / SESSIONS)))


def _embedded(folder: Path, kind: str, durability: str, runs: int) -> Comparison:
    async def ours() -> float:
        return steps_per_s("ours", kind, _make_folder(folder), STEPS, runs=runs)

    return Comparison(
        what=f"steps, embedded driver on {kind}",
        peer=ABSTRACTRUNTIME,
        ours=ours,
        theirs={DURABLE[durability][kind]: _source(folder, kind, durability, runs)},
        goal=5.0 if durability == "synced" else None,
        facts={"at_once": 1, "runs": runs, "python": _python()},
    )


def _source(
    folder: Path, kind: str, durability: str, runs: int, *, threads: int = 1
) -> Callable[[], Awaitable[float]]:
    async def rate() -> float:
        sizes = map(str, (STEPS, runs, threads))
        path = str(_make_folder(folder))
        arguments = ("theirs", kind, path, *sizes, durability)
        return float(await played(ABSTRACTRUNTIME, GRAPH_STEPS, *arguments))

    return rate


async def _actors(folder: Path, url: str, scale: float) -> None:
    """Print the lines of the actor driver on PostgreSQL."""
    goals = {1: 2.0, 50: 10.0}
    for at_once, total in RUNS.items():
        runs = max(2, round(total * scale))

        async def ours(runs: int = runs, at_once: int = at_once) -> float:
            return STEPS * await flows.ours(url, "work", total=runs, at_once=at_once)

        facts: dict[str, int | str] = {"at_once": at_once, "runs": runs, "python": _python()}
        what = "steps, actor driver on PostgreSQL"
        async with database(url) as own:
            theirs = {
                f'PostgreSQL, durability="sync", {savers} saver(s) with a pool, pipelines, uvloop': _langgraph(
                    own, runs, at_once, savers
                )
                for savers in sorted({1, at_once})
            }
            await Comparison(
                what=what,
                peer=LANGGRAPH,
                ours=ours,
                theirs=theirs,
                goal=goals[at_once],
                facts=facts,
            ).run()
        if at_once == 1:
            continue
        for durability, settings in DURABLE.items():
            by_threads = {
                f"{settings['sqlite']}, {threads} thread(s)": _source(
                    folder, "sqlite", durability, runs, threads=threads
                )
                for threads in (1, 8)
            }
            await Comparison(
                what=what,
                peer=ABSTRACTRUNTIME,
                ours=ours,
                theirs=by_threads,
                goal=goals[at_once] if durability == "synced" else None,
                facts=facts,
            ).run()


def _langgraph(url: str, runs: int, at_once: int, savers: int) -> Callable[[], Awaitable[float]]:
    async def rate() -> float:
        sizes = map(str, (STEPS, runs, at_once, savers))
        return float(await played(LANGGRAPH, "langgraph_steps.py", url, *sizes))

    return rate


async def _turns(url: str, each: int) -> None:
    """Print the line of HTTP."""

    async def ours() -> float:
        return await served_aegra.ours(url, sessions=SESSIONS, each=each)

    facts: dict[str, int | str] = {
        "at_once": SESSIONS,
        "runs": SESSIONS * each,
        "python": _python(),
    }
    what = "turns over HTTP"
    try:
        async with database(url) as own, served_aegra.serving(own) as address:

            def by(way: str) -> Callable[[], Awaitable[float]]:
                return lambda: served_aegra.theirs(address, way, sessions=SESSIONS, each=each)

            ways = {
                f"runs/{way}, uvicorn with uvloop and httptools, pools of 40 and 40": by(way)
                for way in served_aegra.WAYS
            }
            await Comparison(
                what=what, peer=AEGRA, ours=ours, theirs=ways, goal=5.0, facts=facts
            ).run()
    except PeerMissingError as exc:
        report(benchmark="peers", what=what, **facts, floor=f"none of {AEGRA.name}", why=[str(exc)])


@asynccontextmanager
async def database(url: str) -> AsyncIterator[str]:
    """Yield the URL of a new database on the same server; it is dropped at the end."""
    name = f"peer_{uuid.uuid4().hex[:12]}"
    server = await asyncpg.connect(url)
    try:
        await server.execute(f"create database {name}")
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
    finally:
        await server.execute(f"drop database if exists {name} with (force)")
        await server.close()


def _make_folder(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder))


def _python() -> str:
    return sys.version.split()[0]
