"""Groups of commits as the array arguments of the SQL functions.

The shapes that nearly all commits have go as the arguments of `commit_fast`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, TypeAlias

from actors._kernel.json import JsonValue
from actors._kernel.runtime.commit import Commit, Continue, Finish, Suspend
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.scheduler import RunStatus
from persistence._postgres.commits.encode import columns, json_text
from persistence._postgres.commits.unit import FEW_WAITS, RUNNING, WAITING, Unit, relations_argument

Column: TypeAlias = "Sequence[object]"
COMMIT_ARGUMENTS: Final = 60
_NOTHING: Final = (None,) * 8


def append_arguments(units: list[Unit]) -> list[Column | str | None]:
    """Return the arguments of `append_entries`."""
    fences, numbers = fences_of(units)
    return [
        *fences,
        [unit.first.lease.run_id for unit in units],
        numbers,
        [unit.first.expected for unit in units],
        [unit.attempt for unit in units],
        *entry_columns(units),
        usage_argument(units),
    ]


def commit_arguments(units: list[Unit]) -> list[Column]:
    """Return the arguments of `commit_runs`, without its last six."""
    fences, numbers = fences_of(units)
    commits: list[tuple[object, ...]] = []
    # spawned runs, bound messages, sent messages, signals, answers, state
    groups_of_rows: tuple[list[tuple[object, ...]], ...] = ([], [], [], [], [], [])
    for i, (unit, fence) in enumerate(zip(units, numbers, strict=True), 1):
        write, parts = unit.first, unit.parts
        head = (write.lease.run_id, fence, str(write.lease.agent_id), write.expected)
        if parts is None:
            commits.append((*head, False, RUNNING, unit.attempt, *_NOTHING, unit.log_from))
            continue
        commits.append((*head, parts.creates, *parts.then, parts.orphans, unit.log_from))
        groups: tuple[Sequence[tuple[object, ...]], ...] = (
            *(parts.spawned, parts.bound, parts.sent),
            *(parts.signals, parts.answers, parts.state),
        )
        for rows, more in zip(groups_of_rows, groups, strict=True):
            if more:
                rows += [(i, *row) for row in more]
    widths = (14, 5, 6, 3, 3, 4)
    tail = (columns(rows, width) for rows, width in zip(groups_of_rows, widths, strict=True))
    return [*fences, *columns(commits, 16), *entry_columns(units), *chain.from_iterable(tail)]


def relation_arguments(units: list[Unit]) -> tuple[str | None, list[str]]:
    """Return arguments of `commit_runs`: what few commits have, and the runs that it names."""
    numbered_parts = [
        (i, parts)
        for i, unit in enumerate(units, 1)
        if (parts := unit.parts) is not None and parts.relations is not None
    ]
    if not numbered_parts:
        return None, []
    argument = relations_argument(
        (i, parts.relations) for i, parts in numbered_parts if parts.relations is not None
    )
    return argument, [run_id for _, parts in numbered_parts for run_id in parts.named]


def transcripts_argument(units: list[Unit]) -> str | None:
    """Return what the commits write of conversations as one JSON argument, or None if nothing."""
    rows_by_name: dict[str, list[JsonValue]] = {}
    for i, unit in enumerate(units, 1):
        if (parts := unit.parts) is not None and parts.transcripts is not None:
            for name, rows in parts.transcripts.items():
                rows_by_name.setdefault(name, []).extend(
                    i if row is None else {"t": i, **row} for row in rows
                )
    return json_text(rows_by_name, "turns") if rows_by_name else None


def usage_argument(units: list[Unit]) -> str | None:
    """Return the answers of models that the units record as one JSON argument, or None if there are none."""
    usage_rows = [
        {"t": i, **row}
        for i, unit in enumerate(units, 1)
        for call in unit.calls
        for row in call.args.usage
    ]
    return json_text(usage_rows, "usage") if usage_rows else None


def fences_of(units: list[Unit]) -> tuple[list[Column], list[int]]:
    """The different (shard, owner, epoch) as columns, and each unit's number among them."""
    numbers_by_fence: dict[tuple[str, str, int], int] = {}
    numbers = []
    for unit in units:
        lease = unit.first.lease
        key = (lease.shard, lease.owner, lease.epoch)
        numbers.append(numbers_by_fence.setdefault(key, len(numbers_by_fence) + 1))
    return list(zip(*numbers_by_fence, strict=True)), numbers


def entry_columns(units: list[Unit]) -> list[Column]:
    """turn, run, seq, kind, position and payload of every entry."""
    numbers: list[int] = []
    runs: list[str] = []
    seqs: list[int] = []
    for i, unit in enumerate(units, 1):
        count, first = len(unit.rows), unit.first.expected + 1
        if count == 1:
            numbers.append(i)
            runs.append(unit.first.lease.run_id)
            seqs.append(first)
        else:
            numbers += [i] * count
            runs += [unit.first.lease.run_id] * count
            seqs += range(first, first + count)
    rows = chain.from_iterable(unit.rows for unit in units)
    return [numbers, runs, seqs, *columns(rows, 3)]


Rows: TypeAlias = "list[tuple[object, ...]]"

FAST_ARGUMENTS: Final = 64
_WAIT: Final = ("position", "key", "kind", "agent", "must", "request", "expires_at")


def is_usual(commit: Commit, *, brokered: bool) -> bool:
    """Return True if the fast path can write such a commit; see `commit_fast.sql`."""
    then, create = commit.then, commit.create
    ends_well = isinstance(then, Finish) and (then.status, then.dead_letter) == (
        RunStatus.COMPLETED,
        None,
    )
    is_odd = (
        commit.spawned
        or commit.follows
        or commit.budget
        or commit.withdraw
        or commit.unless_answered
        or commit.any_order
        or (create is not None and create.parent is not None)
        or any(brokered or not isinstance(out.target, AgentId) for out in commit.outgoing)
        or (commit.waits is not None and len(commit.waits) > FEW_WAITS)
        or any(wait.target_run is not None for wait in commit.waits or ())
    )
    return (ends_well or isinstance(then, Continue | Suspend)) and not is_odd


def fast_arguments(units: list[Unit]) -> list[Column | str | None] | None:
    """Return the arguments of `commit_fast`, or None if a commit is not for it."""
    if any(unit.log_from is not None or not unit.calls[-1].args.is_usual for unit in units):
        return None
    fences, numbers = fences_of(units)
    commits: Rows = []
    completed_runs: list[str] = []
    # created runs, bound messages, sent messages, signals, answers, state, replies
    groups_of_rows: tuple[Rows, ...] = ([], [], [], [], [], [], [])
    created_rows, bound_rows, sent_rows, signals, answers, state, replies = groups_of_rows
    waiting_runs: list[str] = []
    waits: Rows = []
    for i, (unit, fence) in enumerate(zip(units, numbers, strict=True), 1):
        lease, parts = unit.first.lease, unit.parts
        run_id, agent = lease.run_id, str(lease.agent_id)
        head = (run_id, fence, agent, unit.first.expected)
        if parts is None:
            commits.append((*head, False, RUNNING, unit.attempt, None, None, None))
            continue
        status, attempt, wake, wake_at, _, result, *_ = parts.then
        commits.append((*head, parts.creates, status, attempt, wake, wake_at, result))
        if parts.creates:
            # hash, priority and retry policy; then all from the root on
            created_rows += [(i, *row[3:6], *row[7:]) for row in parts.spawned]
        elif status == RunStatus.COMPLETED.value:
            completed_runs.append(run_id)
        bound_rows += [(i, sender, key) for _, _, sender, key in parts.bound]
        sent_rows += parts.sent
        signals += parts.signals
        answers += parts.answers
        state += parts.state
        if (relations := parts.relations) is not None:
            replies += [(i, *row.values()) for row in relations["answers"]]
            if WAITING in relations:
                waiting_runs.append(run_id)
                waits += [(run_id, *(row[name] for name in _WAIT)) for row in relations["waits"]]
    _, *entries = entry_columns(units)
    tail = zip(groups_of_rows, (10, 3, 5, 2, 2, 3, 8), strict=True)
    return [
        *fences,
        sorted(_types_of(units)),
        *columns(commits, 10),
        completed_runs,
        *entries,
        *chain.from_iterable(columns(rows, width) for rows, width in tail),
        waiting_runs,
        *columns(waits, 8),
        transcripts_argument(units),
        usage_argument(units),
    ]


def _types_of(units: list[Unit]) -> set[str]:
    """The types of agents that get rows: they are not declared anew meanwhile."""

    def types() -> Iterator[str]:
        for unit in units:
            if unit.parts is not None and unit.parts.creates:
                yield unit.first.lease.agent_id.type
            yield from (out.target.type for out in unit.outgoing)

    return set(types())
