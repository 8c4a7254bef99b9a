"""Two names of the source over the filters of spans: only its tests need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actors.workflow.memory.spans import SpanFilter, newest_first, spans_of

if TYPE_CHECKING:
    from actors.workflow import RunState

__all__ = ["ActiveContextPolicy", "TimeRange"]


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

    def filter_spans(self, run_id: str, **wanted: Any) -> list[dict[str, Any]]:
        """Return the spans of a run that fit."""
        return self.filter_spans_from_run(self._runs.load(run_id), **wanted)

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
        words = {name: [one] for name, one in (tags or {}).items()}
        wanted = SpanFilter(since=when.start, until=when.end, tags=words)
        return newest_first(filter(wanted.fits, spans_of(run.vars)))[:limit]
