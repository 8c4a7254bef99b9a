"""What a host's metrics page says while its database is silent."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from actors.runtime.clock import SystemClock
from compose import metrics
from compose.metrics import HostProbes
from compose.runtime import build_postgres_runtime
from compose.settings import Settings

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
    [record] = [one for one in caplog.records if one.message == "totals could not be counted"]
    assert vars(record)["problem"] == "no answer within 0 s"
