"""Trace contexts: OpenTelemetry's of the running code, and those of messages and runs."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, TraceFlags

from actors.kernel.agent.agent import RunMeta
from actors.kernel.agent.message import Message
from actors.kernel.tracing import TRACE_PARENT, SpanPlace, caused_by, parse_traceparent

wanted_ids: ContextVar[SpanPlace | None] = ContextVar("callboard_wanted_ids", default=None)
"""Trace and span id of the span that is being started here and now; None: any."""

executing: ContextVar[RunMeta | None] = ContextVar("callboard_run", default=None)
"""The run whose code executes here; None: none. For log lines."""


def current_traceparent() -> str | None:
    """Return the span that is current in OpenTelemetry's context, as a ``traceparent``."""
    here = trace.get_current_span().get_span_context()
    if not here.is_valid:
        return None
    return SpanPlace(here.trace_id, here.span_id, here.trace_flags).header()


def traceparent_for(message: Message) -> str | None:
    """Return what causes a message from outside: what its metadata names, else the current span."""
    return caused_by(message.metadata) or current_traceparent()


def with_traceparent(message: Message) -> Message:
    """Return the message with the current span as its cause. It stays as it is if it names a cause already."""
    if TRACE_PARENT in message.metadata or (here := current_traceparent()) is None:
        return message
    return replace(message, metadata={**message.metadata, TRACE_PARENT: here})


def context_of(place: SpanPlace) -> SpanContext:
    """Return a span of another process, as OpenTelemetry names it."""
    return SpanContext(
        place.trace_id, place.span_id, is_remote=True, trace_flags=TraceFlags(place.flags & 1)
    )


def below(place: SpanPlace | None) -> Context:
    """Return a context whose current span is `place`, and which holds nothing else of this task's."""
    if place is None:
        return Context()
    return trace.set_span_in_context(trace.NonRecordingSpan(context_of(place)), Context())


def link_to(traceparent: str | None) -> tuple[Link, ...]:
    """Return a link to the span that a ``traceparent`` names, or none."""
    place = parse_traceparent(traceparent)
    return () if place is None else (Link(context_of(place)),)


def nanoseconds(at: datetime) -> int:
    """Return an instant as spans have it, to the microsecond."""
    return round(at.timestamp() * 1_000_000) * 1000
