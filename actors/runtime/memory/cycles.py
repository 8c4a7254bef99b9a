"""Cycles of runs that wait for each other, found in the rows of the in-memory store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from actors.kernel.runtime.ids import RunId
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.runtime.waits import Wait, WaitCycle
from actors.runtime.memory.records import RunRecord, WaitRow
from actors.runtime.memory.rows import MemoryRows

_STEPS: Final = 1000
"""Number of runs that are followed from one wait, at most."""


def cycles_of(rows: MemoryRows, record: RunRecord) -> tuple[WaitCycle, ...]:
    """Return the run's waits that lead back to itself."""
    found = []
    for row, target in _blockers(rows, record):
        path = _path(rows, target, record)
        if path is not None:
            found.append(_cycle([record, *path], row.wait.position))
    return tuple(found)


def young_cycles(rows: MemoryRows, *, younger_than_s: float) -> list[WaitCycle]:
    """Return every cycle with a wait that is younger, once: the wait of its greatest run id."""
    oldest = rows.clock.now() - timedelta(seconds=younger_than_s)
    found: dict[tuple[RunId, str], WaitCycle] = {}
    for record in rows.waiting.values():
        for row, target in _blockers(rows, record):
            if row.must_since <= oldest:
                continue
            path = _path(rows, target, record)
            if path is None:
                continue
            cycle = _greatest_first(rows, [record, *path])
            found.setdefault((cycle.run_id, cycle.position), cycle)
    return list(found.values())


def _greatest_first(rows: MemoryRows, cycle: Sequence[RunRecord]) -> WaitCycle:
    start = max(range(len(cycle)), key=lambda n: cycle[n].cause.run_id)
    turned = [*cycle[start:], *cycle[:start]]
    following = turned[1 % len(turned)]
    position = next(
        row.wait.position for row, target in _blockers(rows, turned[0]) if target is following
    )
    return _cycle(turned, position)


def _cycle(cycle: Sequence[RunRecord], position: str) -> WaitCycle:
    first = cycle[0].cause
    agents = tuple(record.cause.agent_id for record in cycle)
    return WaitCycle(first.run_id, first.agent_id, position, agents)


def _path(rows: MemoryRows, first: RunRecord, last: RunRecord) -> list[RunRecord] | None:
    """Return the runs from `first` up to `last`, without it; None when no way leads there."""
    came_from: dict[RunId, RunRecord | None] = {first.cause.run_id: None}
    to_visit = [first]
    for record in to_visit:
        if record is last:
            return _way_to(record, came_from)
        if len(to_visit) > _STEPS:
            return None
        for _, target in _blockers(rows, record):
            if target.cause.run_id not in came_from:
                came_from[target.cause.run_id] = record
                to_visit.append(target)
    return None


def _way_to(record: RunRecord, came_from: dict[RunId, RunRecord | None]) -> list[RunRecord]:
    path: list[RunRecord] = []
    before = came_from[record.cause.run_id]
    while before is not None:
        path.insert(0, before)
        before = came_from[before.cause.run_id]
    return path


def _blockers(rows: MemoryRows, record: RunRecord) -> Iterator[tuple[WaitRow, RunRecord]]:
    """Yield the waits without which the run cannot go on, each with the run that it depends on."""
    if not _is_stuck(record):
        return
    for row in record.waits:
        if row.wait.key not in record.answers:
            target = _waited_for(rows, row.wait)
            if target is not None:
                yield row, target


def _is_stuck(record: RunRecord) -> bool:
    """Return True if the run waits and nothing else than its waits lets it go on."""
    if record.status not in (RunStatus.RUNNING, RunStatus.SUSPENDED) or record.parked is not None:
        return False
    if record.wake is not None and record.wake.message:
        return False
    if not any(row.wait.must for row in record.waits):
        return False
    answered = record.answers
    return not any(
        row.wait.key in answered and not answered[row.wait.key].is_taken for row in record.waits
    )


def _waited_for(rows: MemoryRows, wait: Wait) -> RunRecord | None:
    target = rows.runs.get(wait.target_run) if wait.target_run is not None else None
    if target is not None:
        if target.status.is_terminal:
            return None
        return target if target.log else rows.started(target.cause.agent_id)
    return None if wait.agent is None else rows.started(wait.agent)
