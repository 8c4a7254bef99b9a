"""Background tasks: what ends with its scope, and what begins again."""

from __future__ import annotations

import asyncio

import pytest

from actors._runtime.loop import tasks
from actors._runtime.loop.tasks import TaskScope


async def test_what_a_host_needs_begins_again_after_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it raises, a line names it; its end in order is its end."""
    monkeypatch.setattr(tasks, "BEGIN_AGAIN_S", 0)
    errors: list[Exception] = [OSError("first"), ValueError("second")]

    async def work() -> None:
        if errors:
            raise errors.pop()

    async with TaskScope() as scope:
        scope.keep(work, name="scan")
        await scope.settle(limit_s=5)

    assert errors == []
    messages = [record.getMessage() for record in caplog.records if record.name == "callboard.loop"]
    assert messages == ["background task scan failed and begins again"] * 2


async def test_what_begins_again_ends_with_its_scope() -> None:
    """Cancelled like any other task, also in the pause after an error."""
    began = asyncio.Event()

    async def work() -> None:
        began.set()
        raise OSError("always")

    async with asyncio.timeout(5), TaskScope() as scope:
        scope.keep(work, name="scan")
        await began.wait()

    assert len(scope) == 0
