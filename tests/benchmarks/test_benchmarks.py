"""Each benchmark runs once, small, so that it stays executable. Times are never asserted."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.benchmarks import (
    asks,
    between,
    chats_open,
    children,
    cold,
    documents,
    erases,
    flow_waits,
    flows,
    generates,
    graphs,
    http,
    idle,
    latency,
    memories,
    outside,
    posts,
    profile,
    searches,
    spans,
    steps,
    suspended,
    talks,
    talks_elsewhere,
    timers,
    windows,
)
from tests.benchmarks.serverside import PRELOADED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.harness.servers import OwnPostgres, TestNats


@pytest.mark.costly
@pytest.mark.item(167)
@pytest.mark.parametrize(
    ("run", "scale"),
    [
        (steps.run, 0.005),
        (spans.run, 0.005),
        (suspended.run, 0.02),
        (idle.run, 0.01),
        (timers.run, 0.02),
        (children.run, 0.005),
        (posts.run, 0.005),
        (windows.run, 0.01),
        (generates.run, 0.005),
        (generates.replayed, 0.01),
        (chats_open.run, 0.01),
        (memories.run, 0.002),
        (flows.run, 0.001),
        (flow_waits.run, 0.001),
        (documents.run, 0.001),
        (talks.run, 0.001),
        (searches.run, 0.02),
        (erases.run, 0.002),
        (http.run, 0.01),
    ],
)
@pytest.mark.timeout(120)
async def test_a_benchmark_prints_figures_beside_its_floor_or_limit(
    run: Callable[..., Awaitable[None]],
    scale: float,
    postgres_dsn: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every line is JSON and names its comparison."""
    await run(postgres_dsn, scale=scale)
    _check(capsys.readouterr().out)


@pytest.mark.costly
@pytest.mark.parametrize(
    "run", [outside.run, between.run, asks.run, latency.run, cold.run, talks_elsewhere.run]
)
async def test_a_benchmark_with_a_broker_prints_figures_beside_its_floor(
    run: Callable[..., Awaitable[None]],
    postgres_dsn: str,
    nats_server: TestNats,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each benchmark with a broker does, too."""
    await run(outside.Servers(postgres_dsn, nats_server.url), scale=0.005)
    _check(capsys.readouterr().out)


@pytest.mark.costly
async def test_steps_of_graphs_print_figures_beside_their_floors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And beside the source's runtime, if it can be fetched."""
    await graphs.run(scale=0.01)
    _check(capsys.readouterr().out)


@pytest.mark.costly
async def test_a_profile_prints_the_costs_of_an_operation(
    own_postgres: OwnPostgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rates, CPU, functions, counts, and PostgreSQL's statements within its functions."""
    server = own_postgres(settings={"shared_preload_libraries": PRELOADED})

    await profile.run(outside.Servers(server.url, ""), "step-50", scale=0.01)

    printed = capsys.readouterr().out
    for words in ("operations (step)", "postgres", "commits", "append_entries", "samples)", " + "):
        assert words in printed
    rows = re.search(r"^  rows +(\d+\.\d\d)$", printed, re.MULTILINE)
    # Rows that the host writes as time passes are counted, too: there are more on a busy machine.
    assert rows is not None
    assert float(rows[1]) >= 2


def _check(printed: str) -> None:
    lines = [json.loads(line) for line in printed.splitlines()]
    assert lines
    for line in lines:
        assert any(key.startswith(("floor", "limit")) for key in line), line
        assert line.get("ratio", 1) > 0
