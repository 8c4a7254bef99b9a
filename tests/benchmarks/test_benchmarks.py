"""Each benchmark runs once, small, so that it cannot rot. Times are never asserted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.benchmarks import (
    asks,
    between,
    children,
    idle,
    outside,
    posts,
    spans,
    steps,
    suspended,
    timers,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.harness.servers import TestNats


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
    ],
)
@pytest.mark.timeout(120)
async def test_a_benchmark_prints_figures_beside_its_floor_or_limit(
    run: Callable[..., Awaitable[None]],
    scale: float,
    postgres_dsn: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every line is JSON and says what it is measured against."""
    await run(postgres_dsn, scale=scale)
    _check(capsys.readouterr().out)


@pytest.mark.timeout(180)
async def test_the_broker_benchmark_prints_figures_beside_its_floor(
    postgres_dsn: str, nats_server: TestNats, capsys: pytest.CaptureFixture[str]
) -> None:
    """So does the one that needs a broker."""
    place = outside.Servers(postgres_dsn, nats_server.url)
    await outside.run(place, scale=0.005)
    await between.run(place, scale=0.005)
    await asks.run(place, scale=0.005)
    _check(capsys.readouterr().out)


def _check(printed: str) -> None:
    lines = [json.loads(line) for line in printed.splitlines()]
    assert lines
    for line in lines:
        assert any(key.startswith(("floor", "limit")) for key in line), line
        assert line.get("ratio", 1) > 0
