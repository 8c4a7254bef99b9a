"""Counts of one operation, which are the same on every machine and must not grow by accident.

A change that lowers a count updates the number here; `tests/benchmarks/lone.py` documents how they
are counted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.benchmarks import http, lone
from tests.benchmarks.counting import counting
from tests.benchmarks.outside import Servers

if TYPE_CHECKING:
    from tests.harness.servers import TestNats

COUNTS = """
          rows  groups  commits  statements  tasks  futures  call_soon  encoded  encoded_bytes
run          7       1      1           2      2        8         15        6            500
step         2       1      1           1      0        3          4        5            900
ask         13       2      2           3      3       14         24       18           4600
child       15       3      3           4      4       15         27       14           4100
llm          3       1      1           1      0        3          5        7           1050
generate     6       1      1           1      0        3          5       11           2000
wake         7       1      1           4      3       17         30        6            120
message      7       1      1           2      3       12         21        7           1800
"""
"""A run of no step, submitted; one step, ask, child or call of a model more of a run, without and with a
window; a signal to a run that is rows only, until its end; a message from outside to an idle agent, until the
end of its run.

Rows written, statements that write commits, commits in them, all statements; of the event loop tasks, futures
and calls; texts of JSON made, and their bytes.
"""
WRITTEN = ("rows", "groups", "commits", "statements")
"""Every operation has some of these."""
HTTP = {1: 20, 32: 8}
"""Statements of a turn over HTTP, with its stream of events, by how many sessions talk at the same time. How
many are asked together, and whether a hint of another process comes before a look, differs: these are bounds.
"""
READERS = 4
"""Connections of the two pools for reads. Which of them the first turns start differs."""


@pytest.mark.costly
async def test_a_lone_operation_of_a_run_has_the_recorded_counts(postgres_dsn: str) -> None:
    """A run, a step, an ask, a child and a wake each write and start exactly this much."""
    _check(await lone.of_runs(Servers(postgres_dsn, "")))


async def test_a_lone_external_message_has_the_recorded_counts(
    postgres_dsn: str, nats_server: TestNats
) -> None:
    """A message that an external program publishes does, too."""
    _check(await lone.of_messages(Servers(postgres_dsn, nats_server.url)))


@pytest.mark.costly
async def test_a_turn_over_http_makes_no_more_statements_than_recorded(postgres_dsn: str) -> None:
    """The end of its stream needs no connection."""
    each = 8
    with counting() as counts:
        async with http.served(postgres_dsn) as server:
            for sessions, bound in HTTP.items():
                keys = [f"{sessions}-{n}" for n in range(sessions)]
                for key in keys:
                    await http.make_session(server, key)
                await asyncio.gather(*(http.talk(server, key, 2) for key in keys))
                before = counts.read(server.runtime.store)  # type: ignore[arg-type]
                await asyncio.gather(*(http.talk(server, key, each) for key in keys))
                delta = counts.read(server.runtime.store) - before  # type: ignore[arg-type]

                assert delta.statements.total() <= bound * sessions * each, delta.statements
                assert delta.statements["pg_stat_get_activity"] <= READERS  # sessions that start


def _check(all_figures: dict[str, lone.Figures]) -> None:
    names, *lines = [line.split() for line in COUNTS.strip().splitlines()]
    bounds = {name: dict(zip(names, map(int, row), strict=True)) for name, *row in lines}
    wrong = [
        f"{name}: {figures[what]:g} {what}, not {bound}"
        for name, figures in all_figures.items()
        for what, bound in bounds[name].items()
        if not _is_right(what, round(figures[what]), bound)
    ]

    assert wrong == [], all_figures


def _is_right(what: str, count: int, bound: int) -> bool:
    return (what not in WRITTEN or count > 0) and count <= bound
