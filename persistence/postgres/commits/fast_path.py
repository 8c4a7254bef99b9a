"""The fast path of a group of commits: the shapes that nearly all have, as the arguments of `commit_fast`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final, TypeAlias

from actors.kernel.runtime.commit import Commit, Continue, Finish, Suspend
from actors.kernel.runtime.ids import AgentId
from actors.kernel.runtime.scheduler import RunStatus
from persistence.postgres.commits.encode import columns
from persistence.postgres.commits.rare_columns import FEW_WAITS, WAITING
from persistence.postgres.commits.unit import RUNNING, Unit
from persistence.postgres.commits.unit_columns import (
    Column,
    entry_columns,
    fences_of,
    transcripts_argument,
    usage_argument,
)

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
    """Return the arguments of `commit_fast`; None: a commit is not for it."""
    if any(unit.log_from is not None or not unit.calls[-1].args.is_usual for unit in units):
        return None
    fences, numbers = fences_of(units)
    commits: Rows = []
    ending: list[str] = []
    # created runs, bound messages, sent messages, signals, answers, state, replies
    rest: tuple[Rows, ...] = ([], [], [], [], [], [], [])
    created, bound, sent, signals, answers, state, replies = rest
    waiting: list[str] = []
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
            created += [(i, *row[3:6], *row[7:]) for row in parts.spawned]
        elif status == RunStatus.COMPLETED.value:
            ending.append(run_id)
        bound += [(i, sender, key) for _, _, sender, key in parts.bound]
        sent += parts.sent
        signals += parts.signals
        answers += parts.answers
        state += parts.state
        if (talk := parts.talk) is not None:
            replies += [(i, *row.values()) for row in talk["answers"]]
            if WAITING in talk:
                waiting.append(run_id)
                waits += [(run_id, *(row[name] for name in _WAIT)) for row in talk["waits"]]
    _, *entries = entry_columns(units)
    tail = zip(rest, (10, 3, 5, 2, 2, 3, 8), strict=True)
    return [
        *fences,
        sorted(_types_of(units)),
        *columns(commits, 10),
        ending,
        *entries,
        *chain.from_iterable(columns(rows, width) for rows, width in tail),
        waiting,
        *columns(waits, 8),
        transcripts_argument(units),
        usage_argument(units),
    ]


def _types_of(units: list[Unit]) -> set[str]:
    """The types of agents that get rows: they are not declared anew meanwhile."""

    def found() -> Iterator[str]:
        for unit in units:
            if unit.parts is not None and unit.parts.creates:
                yield unit.first.lease.agent_id.type
            yield from (out.target.type for out in unit.outgoing)

    return set(found())
