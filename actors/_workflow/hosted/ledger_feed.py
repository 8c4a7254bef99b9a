"""Runs of flows as readers get them: the ledger of a run as a feed, and lists of an app's runs.

The feed has the records after a place, and new records as the log gets them. Lists begin with the newest run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, NamedTuple

from typing_extensions import override

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.log_entry import RunLogEntry
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.stores.runs import ListStore, RunFilter
from actors._runtime.runtime import Runtime
from actors._workflow.hosted.flow_address import flow_and_id
from actors._workflow.hosted.step_entry import Folded

_REACH: Final = 1024
"""Number of entries before the end that are searched first for a generation's start.

Each further search takes eight times as many.
"""


class LedgerPlace(NamedTuple):
    """The place of a record: the entry of the log, and its number within that entry, from 0."""

    seq: int
    n: int

    @override
    def __str__(self) -> str:
        return f"{self.seq}.{self.n}"


BEGIN: Final = LedgerPlace(-1, -1)
"""The place before the first record."""


class PlacedRecord(NamedTuple):
    """A whole record of a ledger and its place."""

    place: LedgerPlace
    record: dict[str, Any]


async def ledger_feed(
    runtime: Runtime, run_id: RunId, *, after: LedgerPlace = BEGIN, follow: bool = False
) -> AsyncGenerator[PlacedRecord, None]:
    """Yield the records of a run after a place, in order. They do not depend on where a reader begins.

    The log is read from the last ``run.continued`` before that place. A short log is read from its start.

    Args:
        runtime: The runtime that reads the log.
        run_id: The run.
        after: The place of the last record that the reader has.
        follow: Wait for new records until the run has ended.

    Raises:
        RunSweptError: The run's log was deleted.
    """
    begin = await fold_from(runtime, run_id, after.seq)
    read = runtime.tail if follow else runtime.entries
    # A reader that stops early would leave the inner generator to the garbage collector, with its subscription.
    async with aclosing(_placed_records(read(run_id, from_seq=begin))) as records:
        async for record in records:
            if isinstance(record, PlacedRecord) and record.place > after:
                yield record


async def live_feed(
    runtime: Runtime, run_id: RunId, *, after: LedgerPlace = BEGIN
) -> AsyncGenerator[PlacedRecord | RunLogEntry, None]:
    """Yield the records of `ledger_feed` as they arrive, and between them pieces of answers of models.

    A piece has no place and is not stored, see `Client.tail`. ``data`` in its payload has the ``node_id`` and
    the ``step_id`` of the step that asks the model.
    """
    begin = await fold_from(runtime, run_id, after.seq)
    entries = runtime.tail(run_id, from_seq=begin, live=True, whole=True)
    async with aclosing(_placed_records(entries)) as updates:
        async for update in updates:
            if isinstance(update, RunLogEntry) or update.place > after:
                yield update


async def fold_from(runtime: Runtime, run_id: RunId, seq: int) -> int:
    """Return the entry from which a reader folds a log up to entry `seq`.

    A short log is folded from entry 0.
    """
    return 0 if seq < _REACH else await begin_of_generation(runtime, run_id, seq)


async def begin_of_generation(runtime: Runtime, run_id: RunId, seq: int) -> int:
    """Return the number of the last ``run.continued`` up to an entry, or 0 if there is none."""
    begin, low, reach = 0, seq, _REACH
    # Backwards and eight times as far each time: the start is usually near the end, and a log may be long.
    while not begin and low > 0:
        low, reach = max(0, seq - reach), 8 * reach
        async for entry in runtime.entries(run_id, from_seq=low):
            if entry.seq > seq:
                break
            if entry.kind == K.RUN_CONTINUED:
                begin = entry.seq
    return begin


async def _placed_records(
    entries: AsyncIterator[RunLogEntry],
) -> AsyncGenerator[PlacedRecord | RunLogEntry, None]:
    fold = Folded()
    async for entry in entries:
        if entry.seq < 0:  # a piece of an answer of a model, which is in no log
            yield entry
            continue
        for n, record in enumerate(fold.fold(entry)):
            yield PlacedRecord(LedgerPlace(entry.seq, n), record)


PAGE: Final = 500
"""Number of rows per read when the runs of one flow are listed."""
MOST_READ: Final = 5_000
"""Maximum number of rows that are read for one page."""


class FlowRunPage(NamedTuple):
    """A page of runs.

    `next` is the run after which the next page starts, or None if there are no more runs.
    """

    rows: list[RunRow]
    next: RunId | None


def flow_of(row: RunRow) -> str:
    """Return the name of a run's flow."""
    return flow_and_id(row.agent_id)[0]


async def run_of_id(lists: ListStore, agent_id: AgentId) -> RunRow | None:
    """Return the newest run of the agent of a graph's run, or None if there is none."""
    return next(iter(await lists.runs(agent=agent_id, limit=1)), None)


async def flow_runs(
    lists: ListStore,
    among: RunFilter,
    *,
    flow: str | None = None,
    status: Sequence[RunStatus] = (),
    limit: int = 100,
) -> FlowRunPage:
    """Return a page of the runs of an app, of one flow or of all.

    The runs of one flow are found by reading all runs of the app, at most 5,000 rows for a page. So such a page
    may have few runs or none and still have a `next`.

    Args:
        lists: The store of the rows.
        among: The filter: the app as `type`, the tenant, and `next` of the previous page as `after`.
        flow: The name of the flow; None for all flows.
        status: The statuses of the rows; empty for any status.
        limit: Maximum number of runs on the page.
    """
    size = limit + 1 if flow is None else PAGE
    runs: list[RunRow] = []
    for _ in range(MOST_READ // PAGE):
        rows = await lists.runs(status=status, among=among, limit=size)
        runs += [row for row in rows if flow in (None, flow_of(row))]
        if len(runs) > limit:
            return FlowRunPage(runs[:limit], runs[limit - 1].run_id)
        if len(rows) < size:
            return FlowRunPage(runs, None)
        among = replace(among, after=rows[-1].run_id)
    return FlowRunPage(runs, among.after)
