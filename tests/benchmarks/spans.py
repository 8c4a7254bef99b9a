"""The cost of traces: the 10-step runs without and with them, in rate and in CPU time per span.

Spans pass through a host's whole exporter, up to the bytes that would be sent.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from typing_extensions import override

from actors._runtime.telemetry.spans import Tracing
from compose._assembly.telemetry import provider_of
from tests.benchmarks.bench import TYPE, agent_id, many, open_runtime, report
from tests.benchmarks.steps import STEPS, TenSteps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

AT_ONCE = 200


class Encoder(SpanExporter):
    """Encodes, sends nothing, and counts."""

    def __init__(self) -> None:
        self.spans = 0
        self.cpu_s = 0.0
        """Of the thread that exports."""

    @override
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        self.spans += len(spans)
        self.cpu_s = time.thread_time()
        return SpanExportResult.SUCCESS


async def measure(url: str, total: int, tracing: Tracing | None) -> tuple[float, float]:
    """Return seconds and CPU seconds of so many runs."""
    async with open_runtime(url, capacity=AT_ONCE, tracing=tracing) as runtime:
        await runtime.register_type(TYPE, TenSteps)

        async def run_agent(index: int) -> None:
            await runtime.result(await runtime.submit(agent_id(index), None))

        await many(run_agent, total=AT_ONCE, at_once=AT_ONCE, warm_up=False)
        began = time.process_time()
        took = await many(
            lambda index: run_agent(AT_ONCE + index), total=total, at_once=AT_ONCE, warm_up=False
        )
        return took, time.process_time() - began


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print one line: all traced, beside none before and after."""
    total = max(AT_ONCE, int(2000 * scale))
    before = await measure(url, total, None)
    encoder = Encoder()
    provider = provider_of(encoder, host="bench")
    took_s, cpu_s = await measure(url, total, Tracing(provider))
    provider.shutdown()
    after = await measure(url, total, None)
    base_s, base_cpu_s = (
        (earlier + later) / 2 for earlier, later in zip(before, after, strict=True)
    )
    spans = encoder.spans * total / (total + AT_ONCE)
    report(
        benchmark="spans",
        at_once=AT_ONCE,
        steps=total * STEPS,
        spans=encoder.spans,
        floor_per_s=round(total * STEPS / base_s),
        steps_per_s=round(total * STEPS / took_s),
        ratio=round(base_s / took_s, 3),
        cpu_us_per_span=round((cpu_s - base_cpu_s) / spans * 1e6, 1),
        export_us_per_span=round(encoder.cpu_s / encoder.spans * 1e6, 1),
    )
