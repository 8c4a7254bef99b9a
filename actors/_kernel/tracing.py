"""W3C trace context, and how the ids of a run's spans follow from the run. Pure.

One conversation is one trace on however many hosts, so ids are not handed out: every host derives the
same trace id from the root run, and the same span id for a run's root span from the run. What a run
sends carries these, so a replay writes the same bytes again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from actors._kernel.runtime.ids import RunId, derive_id
from actors._kernel.runtime.rows import RunRow

TRACE_PARENT: Final = "traceparent"
"""The trace context's name in a message's metadata and among its headers."""

SAMPLED: Final = 1
"""The flag of a trace that is recorded."""

_FORM: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_TOP: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class SpanPlace:
    """A span as others name it.

    Attributes:
        trace_id: 128 bits, not 0.
        span_id: 64 bits, not 0.
        flags: The trace flags of W3C; bit 0: recorded.
    """

    trace_id: int
    span_id: int
    flags: int = SAMPLED

    @property
    def is_sampled(self) -> bool:
        """True if the trace is recorded."""
        return bool(self.flags & SAMPLED)

    def header(self) -> str:
        """Return it as a ``traceparent``."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"


def parse_traceparent(text: str | None) -> SpanPlace | None:
    """Return what a ``traceparent`` names; None when there is none, or it is not one."""
    match = _FORM.fullmatch(text or "")
    if match is None:
        return None
    version, trace, span, flags, more = match.groups()
    if version == "00" and more is not None:
        return None
    return SpanPlace(int(trace, 16), int(span, 16), int(flags, 16))


def caused_by(metadata: Mapping[str, str]) -> str | None:
    """Return the ``traceparent`` in a message's metadata, if it is one, in the form of this version."""
    span_place = parse_traceparent(metadata.get(TRACE_PARENT))
    return None if span_place is None else span_place.header()


def trace_id_of(row: RunRow) -> str:
    """Return the trace of a run, as 32 hexadecimal digits: its caller's, else its tree's own."""
    caller = parse_traceparent(row.trace)
    if caller is not None:
        return f"{caller.trace_id:032x}"
    return derive_id("trace", row.root or row.run_id)


def root_span_id(run_id: RunId | str) -> int:
    """Return the id of a run's root span, the same on every host."""
    return int(derive_id("span", run_id)[:16], 16) or 1


def execution_span_id(run_id: RunId, seq: int) -> int:
    """Return the id of the span of the execution that wrote the entry after `seq`, which exists."""
    return int(derive_id("turn", run_id, seq)[:16], 16) or 1


def root_span(row: RunRow, ratio: float = 1.0) -> SpanPlace:
    """Return the root span of a run.

    Args:
        row: The run.
        ratio: Which part of all traces that no caller decided about is recorded, 0 to 1. The trace id
            alone decides, so all hosts with the same ratio agree.
    """
    trace_id = int(trace_id_of(row), 16)
    caller = parse_traceparent(row.trace)
    if caller is None:
        flags = SAMPLED if trace_id % _TOP < round(ratio * _TOP) else 0
    else:
        flags = caller.flags & SAMPLED
    return SpanPlace(trace_id, root_span_id(row.run_id), flags)


def parent_span(row: RunRow, own: SpanPlace) -> SpanPlace | None:
    """Return the parent of a run's root span `own`: its parent's, else the caller's, or None."""
    if row.parent is not None:
        return replace(own, span_id=root_span_id(row.parent))
    return parse_traceparent(row.trace)
