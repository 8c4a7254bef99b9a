"""The contract of every `EventLog`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors.errors import ConcurrentAppendError, InvalidEntryError
from tests.conformance.bed import completed, result, started

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.ids import RunId
    from actors._kernel.runtime.log_entry import EventLog
    from tests.conformance.source import Source


async def fill(log: EventLog, run_id: RunId, count: int) -> None:
    """Append this many entries to an empty log."""
    await log.append(run_id, started(), expected_seq=-1)
    for n in range(count - 1):
        await log.append(run_id, result(str(n), n), expected_seq=n)


async def seqs(log: EventLog, run_id: RunId, from_seq: int = 0) -> list[int]:
    """Return the numbers of a finite read."""
    return [entry.seq async for entry in log.read(run_id, from_seq=from_seq)]


@pytest.mark.item(111, 148, 173, 174, 176)
async def test_entries_are_numbered_from_0_without_gaps(source: Source) -> None:
    """Append returns the entry's number. A read starts at the requested one."""
    log, run_id = source.event_log(), await source.new_run()
    empty = await log.last_seq(run_id)

    first = await log.append(run_id, started(), expected_seq=-1)
    second = await log.append(run_id, result("0"), expected_seq=0)

    assert (empty, first, second, await log.last_seq(run_id)) == (-1, 0, 1, 1)
    assert await seqs(log, run_id) == [0, 1]
    assert await seqs(log, run_id, 1) == [1]
    assert await seqs(log, run_id, 2) == []


@pytest.mark.item(112, 173)
@pytest.mark.parametrize("expected", [-1, 1, 7])
async def test_a_writer_that_is_wrong_about_the_end_is_refused(
    source: Source, expected: int
) -> None:
    """The error has the run and both last seqs. Nothing is written."""
    log, run_id = source.event_log(), await source.new_run()
    await log.append(run_id, started(), expected_seq=-1)

    with pytest.raises(ConcurrentAppendError) as caught:
        await log.append(run_id, result("0"), expected_seq=expected)

    error = caught.value
    assert (error.run_id, error.expected, error.actual) == (run_id, expected, 0)
    assert await seqs(log, run_id) == [0]


@pytest.mark.item(251)
async def test_an_entry_that_fits_no_kind_is_refused(source: Source) -> None:
    """The check comes before any write."""
    log, run_id = source.event_log(), await source.new_run()

    with pytest.raises(InvalidEntryError):
        await log.append(run_id, NewEntry(EntryKind.RUN_STARTED, "", {}), expected_seq=-1)

    assert await log.last_seq(run_id) == -1


@pytest.mark.item(113)
async def test_a_read_ends_at_the_present_end(source: Source) -> None:
    """Entries that are appended during the read are not returned."""
    log, run_id = source.event_log(), await source.new_run()
    await fill(log, run_id, 5)

    async with asyncio.timeout(20):
        assert await seqs(log, run_id) == [0, 1, 2, 3, 4]


@pytest.mark.item(114, 175)
async def test_a_tail_begun_before_the_writer_sees_all_once_and_ends(source: Source) -> None:
    """Several readers, each from its own seq, until the terminal entry."""
    log, run_id = source.event_log(), await source.new_run()

    async def read(from_seq: int) -> list[int]:
        return [entry.seq async for entry in log.tail(run_id, from_seq=from_seq)]

    readers = [asyncio.create_task(read(n)) for n in (0, 0, 3)]
    await asyncio.sleep(0)
    await fill(log, run_id, 5)
    await log.append(run_id, completed(), expected_seq=4)

    async with asyncio.timeout(10):
        assert await asyncio.gather(*readers) == [list(range(6)), list(range(6)), [3, 4, 5]]


@pytest.mark.item(114)
async def test_a_tail_may_be_cancelled_while_it_waits(source: Source) -> None:
    """It ends at once. The log can be written and read as before."""
    log, run_id = source.event_log(), await source.new_run()
    await log.append(run_id, started(), expected_seq=-1)
    tail = log.tail(run_id)
    await anext(tail)
    waiting = asyncio.ensure_future(anext(tail))
    await asyncio.sleep(0)

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    await log.append(run_id, completed(), expected_seq=0)
    assert [entry.seq async for entry in log.tail(run_id, from_seq=1)] == [1]


@pytest.mark.item(180)
async def test_a_recorded_payload_cannot_be_changed_from_outside(source: Source) -> None:
    """Given and returned objects are copies."""
    log, run_id = source.event_log(), await source.new_run()
    value: dict[str, JsonValue] = {"b": [1.0], "a": None}
    await log.append(run_id, started(), expected_seq=-1)
    await log.append(run_id, result("0", value), expected_seq=0)

    value["b"] = "changed"
    async for entry in log.read(run_id, from_seq=1):
        entry.payload["value"] = "changed"

    (entry,) = [entry async for entry in log.read(run_id, from_seq=1)]
    assert repr(entry.payload["value"]) == "{'b': [1.0], 'a': None}"
    assert (entry.run_id, entry.position, entry.kind) == (run_id, "0", EntryKind.EFFECT_RESULT)
    assert entry.ts.utcoffset() is not None


async def test_logs_of_two_runs_do_not_mix(source: Source) -> None:
    """Each run has its own numbers and entries."""
    log = source.event_log()
    first, second = await source.new_run(), await source.new_run()

    await fill(log, first, 3)
    await fill(log, second, 1)

    assert (await seqs(log, first), await seqs(log, second)) == ([0, 1, 2], [0])
