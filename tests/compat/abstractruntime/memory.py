"""Names of the source over the filters of spans and the recorder of evidence: only its tests need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actors._workflow.machine.records import OpenStep, apply_delta
from actors._workflow.notes.evidence import EvidenceRecorder as Recorder
from actors._workflow.notes.evidence import evidence_of
from actors._workflow.notes.spans import SpanFilter, newest_first, spans_of
from actors.workflow import Effect, EffectOutcome, EffectType

if TYPE_CHECKING:
    from actors.workflow import RunState

__all__ = ["ActiveContextPolicy", "EvidenceRecorder", "TimeRange"]


@dataclass(frozen=True)
class TimeRange:
    """Two instants."""

    start: str | None = None
    end: str | None = None


class ActiveContextPolicy:
    """The search in the index of a run."""

    def __init__(self, *, run_store: Any, artifact_store: Any = None) -> None:
        self._runs = run_store
        del artifact_store

    def filter_spans(self, run_id: str, **criteria: Any) -> list[dict[str, Any]]:
        """Return the spans of a run that fit."""
        return self.filter_spans_from_run(self._runs.load(run_id), **criteria)

    @staticmethod
    def filter_spans_from_run(
        run: RunState,
        *,
        artifact_store: Any = None,
        time_range: TimeRange | None = None,
        tags: dict[str, str] | None = None,
        limit: int = 1000,
    ) -> list[dict[str, Any]]:
        """Return the spans of a run that fit."""
        del artifact_store
        when = time_range or TimeRange()
        words = {name: [value] for name, value in (tags or {}).items()}
        span_filter = SpanFilter(since=when.start, until=when.end, tags=words)
        return newest_first(filter(span_filter.fits, spans_of(run.vars)))[:limit]


@dataclass(frozen=True)
class EvidenceStats:
    """The count of what was recorded."""

    recorded: int


class EvidenceRecorder:
    """The recorder, as the source calls it: it changes what it is given."""

    def __init__(self, *, artifact_store: Any) -> None:
        self._recorder = Recorder(artifact_store)

    def record_tool_calls(
        self, *, run: RunState, node_id: str, tool_calls: Any, tool_results: dict[str, Any]
    ) -> EvidenceStats:
        """Record the calls of an effect."""
        effect = Effect(EffectType.TOOL_CALLS, {"tool_calls": tool_calls})
        opened = OpenStep(
            seq=0,
            node_id=node_id,
            effect=effect,
            next_node=None,
            changed={},
            attempt=1,
            key="k",
            step_id="s",
            started_at=run.created_at,
        )
        at = run.created_at
        evidence = self._recorder.record(EffectOutcome.completed(tool_results), run, opened, at)
        tool_results |= evidence.result
        run.vars = apply_delta(run.vars, evidence.changes or {})
        return EvidenceStats(len(evidence_of(run)))
