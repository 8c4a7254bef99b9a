"""Groups of commits as the array arguments of the SQL functions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final, TypeAlias

from actors.kernel.json import JsonValue
from persistence.postgres.commits.encode import columns, json_text
from persistence.postgres.commits.rare_columns import talk_argument
from persistence.postgres.commits.unit import RUNNING, Unit

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
    """Return the arguments of `commit_turns`, without its last six."""
    fences, numbers = fences_of(units)
    commits: list[tuple[object, ...]] = []
    # spawned runs, bound messages, sent messages, signals, answers, state
    rest: tuple[list[tuple[object, ...]], ...] = ([], [], [], [], [], [])
    for i, (unit, fence) in enumerate(zip(units, numbers, strict=True), 1):
        write, parts = unit.first, unit.parts
        head = (write.lease.run_id, fence, str(write.lease.agent_id), write.expected)
        if parts is None:
            commits.append((*head, False, RUNNING, unit.attempt, *_NOTHING, unit.log_from))
            continue
        commits.append((*head, parts.creates, *parts.then, parts.orphans, unit.log_from))
        groups = (parts.spawned, parts.bound, parts.sent, parts.signals, parts.answers, parts.state)
        for rows, more in zip(rest, groups, strict=True):
            if more:
                rows += [(i, *row) for row in more]
    widths = (14, 5, 6, 3, 3, 4)
    tail = (columns(rows, width) for rows, width in zip(rest, widths, strict=True))
    return [*fences, *columns(commits, 16), *entry_columns(units), *chain.from_iterable(tail)]


def talk_arguments(units: list[Unit]) -> tuple[str | None, list[str]]:
    """Return arguments of `commit_turns`: what few commits have, and the runs that it names."""
    talking = [
        (i, parts)
        for i, unit in enumerate(units, 1)
        if (parts := unit.parts) is not None and parts.talk is not None
    ]
    if not talking:
        return None, []
    argument = talk_argument((i, parts.talk) for i, parts in talking if parts.talk is not None)
    return argument, [run_id for _, parts in talking for run_id in parts.named]


def transcripts_argument(units: list[Unit]) -> str | None:
    """Return what the commits write of conversations as one JSON argument; None: nothing."""
    found: dict[str, list[JsonValue]] = {}
    for i, unit in enumerate(units, 1):
        if (parts := unit.parts) is not None and parts.transcripts is not None:
            for name, rows in parts.transcripts.items():
                found.setdefault(name, []).extend(
                    i if row is None else {"t": i, **row} for row in rows
                )
    return json_text(found, "turns") if found else None


def usage_argument(units: list[Unit]) -> str | None:
    """Return the answers of models that the units record as one JSON argument; None: there are none."""
    found = [
        {"t": i, **row}
        for i, unit in enumerate(units, 1)
        for call in unit.calls
        for row in call.args.usage
    ]
    return json_text(found, "usage") if found else None


def fences_of(units: list[Unit]) -> tuple[list[Column], list[int]]:
    """The different (shard, owner, epoch) as columns, and each unit's number among them."""
    fences: dict[tuple[str, str, int], int] = {}
    numbers = []
    for unit in units:
        lease = unit.first.lease
        key = (lease.shard, lease.owner, lease.epoch)
        numbers.append(fences.setdefault(key, len(fences) + 1))
    return list(zip(*fences, strict=True)), numbers


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
