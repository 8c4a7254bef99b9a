"""The contract of every `RunStore`, third part: rows, pages, timers, tails and refolding."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.commit import Finish, Park, Retry
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import WakeSet
from actors.errors import UnknownRunError
from tests.conformance.bed import DESK, Turns, completed, message, result

if TYPE_CHECKING:
    from datetime import datetime

    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.rows import Arrived, RunRow
    from tests.conformance.bed import Bed

CLERK = AgentId("clerk", "7")
ERROR: dict[str, JsonValue] = {"type": "ValueError", "message": "no"}


def attempt_failed(run: Turns, at: datetime, error: dict[str, JsonValue]) -> NewEntry:
    """Return the entry of a `Retry`."""
    payload: dict[str, JsonValue] = {
        "attempt": run.attempt,
        "error": error,
        "retry_from": run.seq,
        "at": at.isoformat(),
    }
    return NewEntry(EntryKind.RUN_ATTEMPT_FAILED, "", payload)


async def fail_attempt(run: Turns, at: datetime) -> None:
    """Fail the attempt and schedule the next one for `at`."""
    await run.commit(run.turn(attempt_failed(run, at, ERROR), then=Retry(at, ERROR, run.seq)))
    run.attempt += 1


async def park(run: Turns) -> None:
    """Park the run until an operator decides."""
    entry = NewEntry(EntryKind.RUN_PARKED, "", {"reason": "in_doubt"})
    await run.commit(run.turn(entry, then=Park("in_doubt", "3")))


async def row_of(bed: Bed, run_id: RunId) -> RunRow:
    """Return the run's row, which must exist."""
    row = await bed.store.reads.run(run_id)
    assert row is not None
    return row


@pytest.mark.item(113, 174)
async def test_entries_begin_where_asked_and_stop_at_the_present_end(bed: Bed) -> None:
    """`from_seq` is included. A log that ends before it, and an unknown run, return nothing."""
    run = await bed.begin()
    await run.append(*(result(str(n)) for n in range(4)))

    async def seqs(run_id: RunId, from_seq: int) -> list[int]:
        return [e.seq async for e in bed.store.reads.entries(run_id, from_seq=from_seq)]

    assert await seqs(run.run_id, 0) == [0, 1, 2, 3, 4]
    assert await seqs(run.run_id, 3) == [3, 4]
    assert await seqs(run.run_id, 9) == []
    assert await seqs(RunId("0" * 32), 0) == []


async def test_readers_who_ask_at_the_same_time_have_values_of_their_own(bed: Bed) -> None:
    """A change by one reader is invisible to the others, in a result and in an entry of a tail."""
    run = await bed.begin()
    await run.commit(
        run.turn(completed({"said": ["yes"]}), then=Finish(RunStatus.COMPLETED, {"said": ["yes"]}))
    )

    async def tailed() -> list[JsonValue]:
        return [entry.payload async for entry in bed.store.reads.tail(run.run_id)]

    rows = await asyncio.gather(*(row_of(bed, run.run_id) for _ in range(2)))
    tails = await asyncio.gather(tailed(), tailed())
    for mine, others in ([x.result for x in rows], [x[-1] for x in tails]):
        assert mine == others
        assert isinstance(mine, dict)
        mine.clear()
        assert others


@pytest.mark.item(114, 175)
async def test_a_tail_sees_every_entry_once_and_ends_with_the_run(bed: Bed) -> None:
    """Tails that started before the entries, at any seq, get them in order."""
    run = await bed.begin()

    async def read(from_seq: int) -> list[int]:
        return [e.seq async for e in bed.store.reads.tail(run.run_id, from_seq=from_seq)]

    readers = [asyncio.create_task(read(n)) for n in (0, 0, 2)]
    for n in range(5):
        await run.append(result(str(n)))
    await run.suspend(WakeSet(signals=("go",)))
    await run.complete()

    async with asyncio.timeout(10):
        seen = await asyncio.gather(*readers)
    assert seen == [list(range(8)), list(range(8)), list(range(2, 8))]
    assert await read(7) == [7]


@pytest.mark.item(114)
async def test_a_tail_can_be_cancelled_and_taken_up_again(bed: Bed) -> None:
    """A cancelled tail leaves no state. The next one continues with the following seq."""
    run = await bed.begin()
    tail = bed.store.reads.tail(run.run_id)
    first = await anext(tail)
    waiting = asyncio.ensure_future(anext(tail))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    await run.complete("end")

    rest = [e async for e in bed.store.reads.tail(run.run_id, from_seq=first.seq + 1)]
    assert [e.kind for e in rest] == [EntryKind.RUN_COMPLETED]


@pytest.mark.item(164)
async def test_a_tail_does_not_end_with_a_failed_attempt(bed: Bed) -> None:
    """Only the terminal entry ends the tail."""
    run = await bed.begin()
    await fail_attempt(run, bed.in_s(0))
    await run.append(result("0"))
    await run.complete()

    kinds = [e.kind async for e in bed.store.reads.tail(run.run_id)]

    assert kinds.index(EntryKind.RUN_ATTEMPT_FAILED) == 1
    assert kinds[-1] == EntryKind.RUN_COMPLETED


async def test_a_tail_ends_where_its_run_is_forgotten(bed: Bed) -> None:
    """A reader that has read only a part of a deleted log does not wait for more."""
    if bed.backend == "composed":
        pytest.skip("composed lacks forgetting of a log that was given to it")
    run = await bed.begin()
    await run.complete()
    tail = bed.store.reads.tail(run.run_id)
    first = await anext(tail)
    while (await bed.store.retention.forget_agent(DESK)).more:
        pass

    async with asyncio.timeout(10):
        rest = [e async for e in bed.store.reads.tail(run.run_id, from_seq=first.seq + 1)]
        read_ahead = [e async for e in tail]
    assert rest == []
    assert [e.kind for e in read_ahead] in ([], [EntryKind.RUN_COMPLETED])


async def test_a_run_is_loaded_from_its_last_new_beginning(bed: Bed) -> None:
    """The worker gets the last `run.continued` entry and the entries after it, not older ones."""
    run = await bed.begin()
    continued = NewEntry(EntryKind.RUN_CONTINUED, "", {"generation": 1, "input": None})
    await run.append(result("0"), result("1"))
    await run.commit(run.turn(continued))
    await run.append(result("0", "new"))

    (loaded,) = await bed.store.reads.load([run.run_id])

    assert [e.seq for e in loaded.entries] == [3, 4]
    assert loaded.row.last_seq == 4
    assert loaded.messages == ()


async def test_several_runs_are_loaded_at_once_and_unknown_ones_left_out(bed: Bed) -> None:
    """Each run has its own log; a run without entries has an empty one."""
    started, queued = await bed.begin(), await bed.submit("q", agent=CLERK)

    loaded = await bed.store.reads.load([queued.run_id, RunId("0" * 32), started.run_id])

    counts = {x.row.run_id: (len(x.entries), len(x.messages)) for x in loaded}
    assert counts == {queued.run_id: (0, 1), started.run_id: (1, 0)}
    assert await bed.store.reads.load([]) == []


async def test_open_runs_come_in_pages_without_the_ended_ones(bed: Bed) -> None:
    """By run id; the next page starts after the last id. Runs of other shards are not returned."""
    runs = [await bed.begin(agent=AgentId("desk", str(n))) for n in range(10)]
    await runs[3].complete()

    pages: list[RunRow] = []
    after: RunId | None = None
    while page := await bed.store.backlog.open_runs(bed.shards, after=after, limit=4):
        pages += page
        after = page[-1].run_id

    expected = sorted(run.run_id for run in runs if run is not runs[3])
    assert [row.run_id for row in pages] == expected
    assert await bed.store.backlog.open_runs([]) == []


async def test_pending_messages_come_in_pages_by_arrival(bed: Bed) -> None:
    """For shards without the messages, and for one agent. The next page starts where the last one ended."""
    agents = [AgentId("desk", str(n % 3)) for n in range(10)]
    await bed.store.arrivals.deliver([message(n, id=str(n), to=a) for n, a in enumerate(agents)])

    backlog = bed.store.backlog
    receivers: list[tuple[AgentId, int]] = []
    while who := await backlog.who_has_mail(
        bed.shards, after=receivers[-1][1] if receivers else -1, limit=3
    ):
        receivers += who
    mail: list[Arrived] = []
    while page := await backlog.pending_mail(
        agent=agents[1], after=mail[-1].arrival if mail else -1, limit=2
    ):
        mail += page

    assert [agent for agent, _ in receivers] == agents
    assert [row.message.payload for row in mail] == [1, 4, 7]
    assert [row.arrival for row in mail] == [receivers[n][1] for n in (1, 4, 7)]
    assert await backlog.who_has_mail([]) == []


async def test_runs_are_listed_newest_first_by_status_agent_and_parking(bed: Bed) -> None:
    """A run has to match all filters; `limit` counts matching runs."""
    done, parked = await bed.begin(), await bed.begin(agent=CLERK)
    await done.complete()
    await park(parked)
    queued = (await bed.submit()).run_id

    async def list_runs(**of: object) -> list[RunId]:
        return [row.run_id for row in await bed.store.lists.runs(**of)]  # type: ignore[arg-type]

    assert set(await list_runs()) == {queued, parked.run_id, done.run_id}
    assert await list_runs(limit=1) == [queued]
    assert await list_runs(agent=DESK) == [queued, done.run_id]
    assert await list_runs(agent=DESK, status=[RunStatus.COMPLETED]) == [done.run_id]
    assert await list_runs(parked=True) == [parked.run_id]
    assert set(await list_runs(parked=False)) == {queued, done.run_id}


@pytest.mark.item(125, 208)
async def test_the_run_of_an_agent_is_the_one_that_holds_it(bed: Bed) -> None:
    """Started runs come first, also while they wait, then the oldest queued run. Ended runs are ignored."""
    first, second = await bed.submit(), await bed.submit(sender="submit:others")
    holder = await Turns(bed, second.run_id).start()
    await holder.suspend(WakeSet(signals=("go",)))

    holding_row = await bed.store.lists.find_run_for_agent(DESK)
    await holder.complete()
    queued = await bed.store.lists.find_run_for_agent(DESK)

    assert holding_row is not None
    assert queued is not None
    assert (holding_row.run_id, holding_row.status) == (second.run_id, RunStatus.SUSPENDED)
    assert (queued.run_id, queued.status) == (first.run_id, RunStatus.PENDING)
    assert await bed.store.lists.find_run_for_agent(CLERK) is None


@pytest.mark.item(133)
async def test_timers_of_waiting_runs_are_found_when_due_earliest_first(bed: Bed) -> None:
    """Timers of suspensions and back-offs, but not of parked, running or ended runs, nor after the window."""
    runs = [await bed.begin(agent=AgentId("desk", str(n))) for n in range(7)]
    await runs[0].suspend(WakeSet(at=bed.in_s(60)))
    await fail_attempt(runs[1], bed.in_s(30))
    await runs[2].suspend(WakeSet(at=bed.in_s(-5), signals=("go",)))
    await runs[3].suspend(WakeSet(at=bed.in_s(90_000)))
    await runs[4].suspend(WakeSet(signals=("go",)))
    await runs[5].suspend(WakeSet(at=bed.in_s(20)))
    await park(runs[5])
    await runs[6].suspend(WakeSet(at=bed.in_s(20)))
    await runs[6].complete()

    due = await bed.store.backlog.due(bed.shards, within_s=600)

    assert [timer.run_id for timer in due] == [runs[n].run_id for n in (2, 1, 0)]
    assert [timer.agent_id for timer in due] == [runs[n].agent for n in (2, 1, 0)]
    assert [t.run_id for t in await bed.store.backlog.due(bed.shards, within_s=600, limit=1)] == [
        runs[2].run_id
    ]
    assert [t.run_id for t in await bed.store.backlog.due(bed.shards, within_s=0)] == [
        runs[2].run_id
    ]
    assert await bed.store.backlog.due([], within_s=600) == []


@pytest.mark.item(163, 166)
async def test_a_failed_attempt_waits_as_a_pending_run(bed: Bed) -> None:
    """The attempt is counted, the error is kept, and the run does not start before its time."""
    run = await bed.begin()
    at = bed.in_s(30)

    await fail_attempt(run, at)

    row = await row_of(bed, run.run_id)
    assert (row.status, row.attempt, row.error) == (RunStatus.PENDING, 1, ERROR)
    assert (row.wake_at, row.wake) == (at, None)


@pytest.mark.item(158)
async def test_what_a_suspended_run_waits_for_can_be_read(bed: Bed) -> None:
    """The row has the whole wake set, and its time as the timer."""
    run = await bed.begin()
    wake = WakeSet(at=bed.in_s(60), signals=("a", "b"), message=True, runs=("r",))

    await run.suspend(wake)

    row = await row_of(bed, run.run_id)
    assert (row.status, row.wake, row.wake_at) == (RunStatus.SUSPENDED, wake, wake.at)


STATES = [
    "pending",
    "running",
    "suspended",
    "resumed",
    "backing off",
    "second attempt",
    "parked",
    "unparked",
    "parked after a failure",
    "continued",
    "completed",
    "completed after a failure",
    "failed",
    "cancelled",
    "cancelled before it began",
]


async def drive(bed: Bed, state: str) -> Turns:
    """Bring a run into that state."""
    run = Turns(bed, (await bed.submit()).run_id)
    cancelled = NewEntry(EntryKind.RUN_CANCELLED, "", {"reason": "enough"})
    if state == "cancelled before it began":
        run.attempt = 0
        await run.commit(run.turn(cancelled, then=Finish(RunStatus.CANCELLED)))
    if run.attempt == 0 or state == "pending":
        return run
    await run.start()
    await run.append(result("0", {"b": 1, "a": 2}))
    if state in ("suspended", "resumed"):
        await run.suspend(WakeSet(at=bed.in_s(60), signals=("x",), message=True, runs=("r",)))
    if state in ("backing off", "second attempt", "completed after a failure"):
        await fail_attempt(run, bed.in_s(30))
    if state in ("parked", "unparked"):
        await park(run)
    if state == "parked after a failure":
        await fail_attempt(run, bed.in_s(0))
        await run.append(NewEntry(EntryKind.RUN_RESUMED, "", {"reason": "retry"}))
        again = attempt_failed(run, bed.in_s(0), {"type": "OSError", "message": "again"})
        stop = NewEntry(EntryKind.RUN_PARKED, "", {"reason": "retries"})
        await run.commit(run.turn(again, stop, then=Park("retries")))
    if state == "continued":
        await fail_attempt(run, bed.in_s(0))
        await run.commit(
            run.turn(NewEntry(EntryKind.RUN_CONTINUED, "", {"generation": 1, "input": 3}))
        )
        run.attempt = 1
        await run.append(result("0"))
    if state in ("resumed", "second attempt", "unparked", "completed after a failure"):
        await run.append(NewEntry(EntryKind.RUN_RESUMED, "", {"reason": "signal"}))
    if state.startswith("completed"):
        await run.complete({"z": 1, "a": [1.0, None]})
    if state == "failed":
        failed = NewEntry(EntryKind.RUN_FAILED, "", {"status": "failed", "error": ERROR})
        await run.commit(run.turn(failed, then=Finish(RunStatus.FAILED, error=ERROR)))
    if state == "cancelled":
        cancel_requested = NewEntry(EntryKind.CANCEL_REQUESTED, "", {"reason": "enough"})
        await bed.store.arrivals.request_cancel(run.run_id, reason="enough")
        await run.commit(run.turn(cancel_requested, cancelled, then=Finish(RunStatus.CANCELLED)))
    return run


@pytest.mark.item(45, 170, 171)
@pytest.mark.parametrize("state", STATES)
async def test_the_log_alone_tells_the_row(bed: Bed, state: str) -> None:
    """Refolding the entries gives the stored row, in every state of a run."""
    run = await drive(bed, state)

    row, refolded = await row_of(bed, run.run_id), await bed.store.operators.refold(run.run_id)

    assert refolded == row
    assert repr(refolded.result) == repr(row.result)


async def test_an_unknown_run_has_no_row(bed: Bed) -> None:
    """Reading returns None; refolding raises an error."""
    assert await bed.store.reads.run(RunId("0" * 32)) is None
    with pytest.raises(UnknownRunError):
        await bed.store.operators.refold(RunId("0" * 32))


@pytest.mark.item(160)
async def test_the_end_of_a_run_is_written_once(bed: Bed) -> None:
    """Of two concurrent terminal entries one is written and the other is refused."""
    run = await bed.begin()
    turns = [run.turn(completed(n), then=Finish(RunStatus.COMPLETED, n)) for n in ("one", "two")]

    await asyncio.gather(*(bed.store.commits.commit(turn) for turn in turns))

    kinds = [e.kind async for e in bed.store.reads.entries(run.run_id)]
    assert kinds.count(EntryKind.RUN_COMPLETED) == 1
    assert (await row_of(bed, run.run_id)) == await bed.store.operators.refold(run.run_id)
