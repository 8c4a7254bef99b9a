"""Traces of a process: set up OpenTelemetry's SDK so that ids of runs' spans follow from the runs.

A thread of the SDK exports spans. If the collector is slow or does not answer, spans are lost, but agents
do not wait: the queue is bounded, and a full queue drops its oldest spans. The log reports a failed export
at most once a minute.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from itertools import islice
from typing import Final

from opentelemetry.sdk.trace.export import SpanExporter
from pydantic_core import to_json
from typing_extensions import override

from actors._kernel.hidden import HIDDEN, MAX_DEPTH, HiddenNames
from actors._kernel.json import JsonValue
from actors._runtime.telemetry.span_attributes import wanted_ids
from actors._runtime.telemetry.spans import Tracing
from actors.errors import ContractError
from compose._assembly.settings import Settings

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
except ModuleNotFoundError as exc:
    problem = f"traces need {exc.name!r}, which is not installed"
    raise ContractError(f"{problem}: pip install 'callboard[otlp]'") from exc


EXPORT_EVERY_S: Final = 0.5
"""Seconds that a span waits to be exported together with others."""

EXPORT_LIMIT_S: Final = 3.0
"""Time limit in seconds of one request to the collector, and of the last export when a host stops."""

LOG_EVERY_S: Final = 60.0
"""Least time in seconds between two log lines about lost spans."""

QUEUE: Final = 8192
"""Greatest number of ended spans in the queue for the collector. A full queue drops its oldest spans."""

MAX_CONTENT: Final = 1024
"""Greatest number of characters of content in one attribute, and of each text in it."""


class Redaction:
    """A function that converts content to the text of a span's attribute.

    Args:
        names: Names of the keys whose values it hides.
    """

    def __init__(self, names: HiddenNames) -> None:
        self._names = names

    def __call__(self, value: JsonValue) -> str:
        """Return a text of at most 1024 characters. A value that is not JSON is shown as its type's name."""
        redacted = self._redact(value, MAX_DEPTH, iter(range(MAX_CONTENT)))
        if isinstance(redacted, str):
            return redacted
        return _cut(to_json(redacted, fallback=lambda item: type(item).__name__).decode())

    def _redact(self, value: JsonValue, depth: int, steps: Iterator[int]) -> JsonValue:
        """Return the value without hidden values. Of a long value only the start is read and returned."""
        if depth == 0 or next(steps, None) is None:
            return "…"
        if isinstance(value, str):
            return _cut(value)
        if isinstance(value, list | tuple):
            return [self._redact(item, depth - 1, steps) for item in islice(value, MAX_CONTENT)]
        if isinstance(value, dict):
            return {
                _cut(str(key)): HIDDEN
                if self._names.covers(key)
                else self._redact(item, depth - 1, steps)
                for key, item in islice(value.items(), MAX_CONTENT)
            }
        return value


def _cut(text: str) -> str:
    text = text if len(text) <= MAX_CONTENT else text[: MAX_CONTENT - 1] + "…"
    # The exporter would drop a whole batch for an unpaired surrogate.
    return text.encode(errors="replace").decode()


class RunIds(IdGenerator):
    """A generator of ids: spans of runs get ids that follow from the run, and other spans random ids."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()

    @override
    def generate_trace_id(self) -> int:
        ids = wanted_ids.get()
        return self._random.generate_trace_id() if ids is None else ids.trace_id

    @override
    def generate_span_id(self) -> int:
        ids = wanted_ids.get()
        return self._random.generate_span_id() if ids is None else ids.span_id


class _HostResource(Resource):
    """The only resource of its provider. Hashed by identity, it costs the exporter no JSON for each span."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class _RateLimit(logging.Filter):
    """A filter that passes one log record of the SDK's exporters a minute, with a text of Callboard."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_at = -LOG_EVERY_S

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if record.created - self._logged_at < LOG_EVERY_S:
            return False
        self._logged_at = record.created
        record.problem = record.getMessage()[:200]
        record.msg = "traces cannot be exported; spans are lost, and agents continue"
        record.args, record.exc_info, record.levelno = (), None, logging.WARNING
        record.levelname = "WARNING"
        return True


_EXPORT_LOGGERS: Final = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.trace.export",
)


def provider_of(exporter: SpanExporter, *, host: str) -> TracerProvider:
    """Return a provider that sends spans of this host to an exporter, one batch every 0.5 s."""
    # `Resource.create` lets these facts override OTEL_SERVICE_NAME, so the operator's name is read here.
    name = os.environ.get("OTEL_SERVICE_NAME") or "callboard"
    facts = {
        "service.name": name,
        "service.instance.id": host,
        "service.version": version("callboard"),
    }
    resource = Resource.create(facts)
    provider = TracerProvider(
        resource=_HostResource(resource.attributes, resource.schema_url),
        id_generator=RunIds(),
        # `open_tracing` shuts it down within 3 s; at the exit of the process the SDK would wait 30 s.
        shutdown_on_exit=False,
    )
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter,
            max_queue_size=QUEUE,
            schedule_delay_millis=EXPORT_EVERY_S * 1000,
            export_timeout_millis=EXPORT_LIMIT_S * 1000,
        )
    )
    return provider


@asynccontextmanager
async def open_tracing(
    settings: Settings, *, host: str, system: str = "callboard"
) -> AsyncIterator[Tracing]:
    """Yield the tracing of this host, which sends spans to `settings.otlp_endpoint`.

    At the end waiting spans are exported, for at most 3 s.

    Raises:
        ContractError: `settings.otlp_endpoint` is not an HTTP URL.
    """
    endpoint = (settings.otlp_endpoint or "").rstrip("/")
    if not endpoint.startswith(("http://", "https://")):
        name = "CALLBOARD_OTLP_ENDPOINT (or OTEL_EXPORTER_OTLP_ENDPOINT)"
        msg = f"{name} is {endpoint!r}, which is not a URL: http://HOST:4318, for example"
        raise ContractError(msg)
    rate_limit = _RateLimit()
    loggers = [logging.getLogger(name) for name in _EXPORT_LOGGERS]
    for logger in loggers:
        logger.addFilter(rate_limit)
    exporter = OTLPSpanExporter(f"{endpoint}/v1/traces", timeout=EXPORT_LIMIT_S)
    provider = provider_of(exporter, host=host)
    try:
        names = HiddenNames(settings.trace_redact)
        yield Tracing(
            provider,
            system=system,
            ratio=settings.trace_ratio,
            show=Redaction(names) if settings.trace_content else None,
        )
    finally:
        # The SDK would wait 30 seconds for a collector that does not answer.
        shutdown = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
        shutdown.start()
        await asyncio.to_thread(shutdown.join, EXPORT_LIMIT_S)
        for logger in loggers:
            logger.removeFilter(rate_limit)
