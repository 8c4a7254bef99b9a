"""What a host's metrics page says while its database is silent."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import asyncpg

from actors._runtime.loop.clock import SystemClock
from compose._assembly.runtime import build_postgres_runtime
from compose._assembly.settings import Settings
from compose._host import metrics
from compose._host.metrics import HostProbes

if TYPE_CHECKING:
    import pytest


async def test_a_silent_database_leaves_the_totals_out(
    postgres_dsn: str,
    schema: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The page comes all the same, and the log says what is the matter."""
    monkeypatch.setattr(metrics, "ANSWER_LIMIT_S", 0)
    probes = HostProbes(SystemClock())
    settings = Settings(postgres_url=postgres_dsn, db_schema=schema)
    async with build_postgres_runtime(postgres_dsn, settings=settings) as runtime:
        probes.serving(runtime)
        with caplog.at_level(logging.WARNING, "callboard.host"):
            page, _ = await probes.metrics()

    assert b"callboard_totals_up 0.0" in page
    [record] = [
        record for record in caplog.records if record.message == "totals could not be counted"
    ]
    assert vars(record)["problem"] == "no answer within 0 s"


async def test_a_count_that_takes_long_is_no_silent_database(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page shows what was counted before, with its age, and the count goes on beside it."""
    monkeypatch.setattr(metrics, "TOTALS_EVERY_S", 0)
    monkeypatch.setattr(metrics, "ANSWER_LIMIT_S", 60)
    monkeypatch.setattr(metrics, "COUNT_WAIT_S", 60)
    probes = HostProbes(SystemClock())
    settings = Settings(postgres_url=postgres_dsn, db_schema=schema)
    async with build_postgres_runtime(postgres_dsn, settings=settings) as runtime:
        probes.serving(runtime)
        first, _ = await probes.metrics()
        monkeypatch.setattr(metrics, "COUNT_WAIT_S", 0)
        connection = await asyncpg.connect(postgres_dsn, server_settings={"search_path": schema})
        try:
            await connection.execute(
                "update totals set counted_at = counted_at - interval '1 hour'"
            )
            async with connection.transaction():
                await connection.execute("lock table outbox in access exclusive mode")
                slow, _ = await probes.metrics()
                other = await runtime.store.insight.known_totals(every_s=0)
        finally:
            await connection.close()
        await probes._tasks.settle(limit_s=60)
        after, _ = await probes.metrics()

    assert numbers(first)["callboard_totals_up"] == 1
    assert numbers(slow)["callboard_totals_up"] == 1
    assert numbers(slow)["callboard_totals_age_seconds"] >= 3600
    assert not other.is_due, "one host counts for all"
    assert numbers(after)["callboard_totals_age_seconds"] < 3600
    assert numbers(slow)["callboard_shards"] == numbers(first)["callboard_shards"]


def numbers(page: bytes) -> dict[str, float]:
    """The metrics of a page that have no labels."""
    lines = (line.split() for line in page.decode().splitlines() if line.startswith("callboard_"))
    return {words[0]: float(words[1]) for words in lines if len(words) == 2}
