"""Forks: runs that continue from another run's log as if its host had died right after one of the entries.

What is recorded up to that entry is replayed and happens no second time; all behind it is executed
anew. A place in the middle of something that is answered to the other run, or that may have happened
outside, is refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from actors.errors import ContractError, LeaseLostError
from actors.kernel.json import JsonValue, Unreadable
from actors.kernel.runtime.commit import Commit, Committed, Finish
from actors.kernel.runtime.ids import RunId
from actors.kernel.runtime.log_entry import EntryKind, NewEntry, RunLogEntry
from actors.kernel.runtime.rows import RunRow
from actors.kernel.runtime.scheduler import RunStatus, ShardLease
from actors.kernel.runtime.sources import fold
from actors.kernel.stores.run_store import RunStore
from actors.kernel.stores.runs import Submitted
from actors.runtime.replay.history import History
from actors.runtime.replay.summary import row_of
from actors.runtime.worker.held_shards import run_lease

MAX_FORKED_ENTRIES: Final = 50_000
"""A copy is written at once: a longer log would hold the store up for seconds."""

_OUTSIDE: Final = {
    EntryKind.EFFECT_INTENT: "an effect that had begun",
    EntryKind.TOOL_CALLED: "a tool call that had begun",
    EntryKind.ASK_SENT: "a question whose answer goes to the other run",
}


async def fork_run(store: RunStore, run_id: RunId, *, at_seq: int, copy: int) -> Submitted:
    """Queue a run that continues after entry `at_seq`; see `OperatorStore.fork`.

    Raises:
        UnknownRunError: There is no such run, or it was swept.
        ContractError: The log does not reach so far, or nothing can go on from there.
    """
    row = await row_of(store, run_id)
    if row.swept:
        raise ContractError(f"run {run_id} was swept: its log is not kept any more")
    if not 0 <= at_seq <= row.last_seq:
        msg = f"run {run_id} has entries 0 to {row.last_seq}, none with seq {at_seq}"
        raise ContractError(msg)
    if at_seq >= MAX_FORKED_ENTRIES:
        msg = f"seq {at_seq} of run {run_id}: logs of up to {MAX_FORKED_ENTRIES} entries are forked"
        raise ContractError(msg)
    entries = [entry async for entry in _until(store, run_id, at_seq)]
    refuse_open(entries)
    for child in History.of(entries).left_behind:
        await _refuse_open_child(store, entries, child)
    return await store.operators.fork(run_id, at_seq=at_seq, copy=copy)


def refuse_open(entries: Sequence[RunLogEntry]) -> None:
    """Check that a run can continue after the last of these entries without executing an effect twice.

    Raises:
        ContractError: It cannot; names the entry and one to fork at instead.
    """
    last = entries[-1]
    run_id = last.run_id
    if last.is_terminal:
        msg = f"entry {last.seq} is the end of run {run_id}: nothing goes on behind it; fork at "
        raise ContractError(f"{msg}{last.seq - 1} or before")
    for place in History.of(entries).places.values():
        begun = place.begin
        what = _OUTSIDE.get(EntryKind(begun.kind)) if begun is not None else None
        if begun is None or what is None or place.end is not None or place.abandoned is not None:
            continue
        name = begun.payload.get("name") or begun.payload.get("target") or ""
        msg = f"entry {last.seq} of run {run_id} is inside of {what}: {name} (entry {begun.seq}, "
        remedy = f"position {begun.position}); fork at {begun.seq - 1} or before, or behind its end"
        raise ContractError(msg + remedy)


async def _refuse_open_child(store: RunStore, entries: Sequence[RunLogEntry], child: str) -> None:
    row = await store.reads.run(RunId(child))
    if row is None or row.status.is_terminal:
        return
    seq = next(
        entry.seq
        for entry in entries
        if entry.kind == EntryKind.CHILD_SPAWNED and entry.payload["child"] == child
    )
    msg = (
        f"child {child} ({row.agent_id}) is open and belongs to run {entries[-1].run_id}: fork at "
    )
    raise ContractError(f"{msg}{seq - 1} or before, or once the child has ended")


async def begin_fork(store: RunStore, shard: ShardLease, row: RunRow) -> None:
    """Give a fork whose agent is free its log: the other run's entries, whole or not at all.

    After an earlier crash the run is queued, after a later one it counts as broken off; both continue. When the
    other run was swept meanwhile, the fork fails with an error that says so.

    Raises:
        LeaseLostError: The shard is not this host's any more.
        ConcurrentAppendError: It was begun already.
        PersistenceError: The outcome is unknown; read again.
    """
    point = row.fork
    assert point is not None, "only forks begin like this"
    entries = [entry async for entry in _until(store, point.run_id, point.seq)]
    if len(entries) <= point.seq:
        await _fail(store, shard, row, f"run {point.run_id} was swept before its fork had its turn")
        return
    for entry in entries:
        if isinstance(problem := entry.payload.get("unreadable"), Unreadable):
            await _fail(store, shard, row, f"entry {entry.seq} of run {point.run_id} {problem}")
            return
    resumed = RunLogEntry(
        row.run_id, point.seq + 1, EntryKind.RUN_RESUMED, "", {"reason": "forked"}, entries[-1].ts
    )
    copied = [*entries, resumed]
    attempt = fold(row, copied).attempt
    lease = run_lease(shard, row, attempt=attempt)
    new = [NewEntry(EntryKind(e.kind), e.position, e.payload) for e in copied]
    await store.commits.append(lease, new, expected_seq=-1)


async def _fail(store: RunStore, shard: ShardLease, row: RunRow, text: str) -> None:
    error: dict[str, JsonValue] = {"type": "actors.errors:ContractError", "message": text}
    entries = (
        NewEntry(EntryKind.RUN_STARTED, "", {"agent": str(row.agent_id)}),
        NewEntry(EntryKind.RUN_FAILED, "", {"status": "failed", "error": error}),
    )
    then = Finish(RunStatus.FAILED, error=error)
    outcome = await store.commits.commit(Commit(run_lease(shard, row), -1, entries, then))
    if not isinstance(outcome, Committed):
        raise LeaseLostError(shard.shard, shard.owner, shard.epoch)


async def _until(store: RunStore, run_id: RunId, last: int) -> AsyncIterator[RunLogEntry]:
    async for entry in store.reads.entries(run_id):
        if entry.seq > last:
            return
        yield entry
