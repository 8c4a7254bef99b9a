"""Trace context and the ids of spans: pure rules."""

from __future__ import annotations

import pytest

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.tracing import (
    SpanPlace,
    caused_by,
    execution_span_id,
    parent_span,
    parse_traceparent,
    root_span,
    trace_id_of,
)

CALLER = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def row(run: str = "r", **more: object) -> RunRow:
    """A run."""
    return RunRow(RunId(run), AgentId("desk", "a"), RunStatus.RUNNING, **more)  # type: ignore[arg-type]


@pytest.mark.item(483)
def test_a_traceparent_comes_back_as_it_was() -> None:
    """What is read is written the same."""
    span_place = parse_traceparent(CALLER)

    assert span_place is not None
    assert (span_place.header(), span_place.is_sampled) == (CALLER, True)


@pytest.mark.item(483)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-" + "0" * 32 + "-" + "b" * 16 + "-01",
        "00-" + "a" * 32 + "-" + "0" * 16 + "-01",
        "ff-" + "a" * 32 + "-" + "b" * 16 + "-01",
        CALLER + "-more",
        CALLER.upper(),
        CALLER + "\n",
    ],
)
def test_what_is_no_traceparent_is_none(text: str) -> None:
    """Rubbish from outside starts a trace of its own instead of breaking anything."""
    assert parse_traceparent(text) is None
    assert caused_by({"traceparent": text}) is None
    assert trace_id_of(row(trace=text)) == trace_id_of(row())


@pytest.mark.item(483)
def test_a_later_version_of_the_header_is_read() -> None:
    """Fields that a later version appends are left alone."""
    assert parse_traceparent("01" + CALLER[2:] + "-more") == parse_traceparent(CALLER)
    assert caused_by({"traceparent": "01" + CALLER[2:] + "-more" * 99}) == CALLER


@pytest.mark.item(483)
def test_a_tree_of_runs_is_one_trace() -> None:
    """A child has its root's trace id and its parent's root span as parent, with no row read."""
    root = row("root")
    child = row("child", parent=RunId("root"), root=RunId("root"))

    assert trace_id_of(child) == trace_id_of(root) != trace_id_of(row("other"))
    assert parent_span(child, root_span(child)) == root_span(root)
    assert parent_span(root, root_span(root)) is None


@pytest.mark.item(483)
def test_a_foreign_caller_is_the_parent() -> None:
    """The caller's trace goes on, and its span is the parent; of children the spawning run is."""
    root = row("root", trace=CALLER)
    child = row("child", parent=RunId("root"), root=RunId("root"), trace=CALLER)

    assert parent_span(root, root_span(root)) == parse_traceparent(CALLER)
    assert root_span(root).trace_id == int("a" * 32, 16) == root_span(child).trace_id
    assert parent_span(child, root_span(child)) == root_span(root)


@pytest.mark.item(483)
def test_turns_have_ids_of_their_own() -> None:
    """Two turns of a run, and the same turn of two runs, differ."""
    ids = {execution_span_id(RunId(run), seq) for run in ("r", "s") for seq in (-1, 0, 7)}

    assert len(ids | {root_span(row("r")).span_id}) == 7


@pytest.mark.item(483)
def test_a_ratio_decides_by_the_trace_alone() -> None:
    """All hosts agree on which traces are recorded; a caller's decision stands."""
    sampled = [root_span(row(str(n)), 0.25).is_sampled for n in range(400)]
    child = row("c", parent=RunId("1"), root=RunId("1"))

    assert 50 < sum(sampled) < 150
    assert root_span(child, 0.25).is_sampled == sampled[1]
    assert not root_span(row("r"), 0.0).is_sampled
    assert root_span(row("r", trace=CALLER), 0.0).is_sampled
    assert not root_span(row("r", trace=CALLER[:-1] + "0")).is_sampled


def test_a_place_knows_its_flags() -> None:
    """Bit 0 alone says that a trace is recorded."""
    assert not SpanPlace(1, 1, 2).is_sampled
