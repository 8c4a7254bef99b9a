"""The spans that a host tells of a turn."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from actors._kernel.runtime.commit import Suspend
from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId, ShardId
from actors._kernel.runtime.rows import LoadedRun, RunRow
from actors._kernel.runtime.scheduler import Lease, RunStatus
from actors._kernel.runtime.waits import WakeSet
from actors._runtime.loop.clock import SystemClock
from actors._runtime.telemetry.spans import MAX_INTERRUPTED, ExecutionSpans, Tracing

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.item(483)
async def test_a_turn_that_waits_for_ever_keeps_few_spans() -> None:
    """Of waits that were interrupted the last ones are told; a run in memory may have any number."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    row = RunRow(RunId("r"), AgentId("desk", "a"), RunStatus.RUNNING)
    lease = Lease(ShardId("0"), HostIncarnation("h"), 1, AT, row.run_id, row.agent_id, 1)
    spans = ExecutionSpans(
        Tracing(provider),
        LoadedRun(row, ()),
        lease,
        clock=SystemClock(),
        was_running=False,
        mail=(),
    )
    spans.enter()
    for _ in range(MAX_INTERRUPTED * 3):
        with suppress(asyncio.CancelledError), spans.waiting("receive"):
            raise asyncio.CancelledError
    spans.end(Suspend(WakeSet()), upto=3, is_left=False)

    names = [span.name for span in exporter.get_finished_spans()]
    assert names == ["receive"] * MAX_INTERRUPTED + ["runtime.turn"]
