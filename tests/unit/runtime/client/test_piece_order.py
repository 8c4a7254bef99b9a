"""Pieces of an answer come behind the entries that were written before it began."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from actors.kernel.runtime.ids import RunId
from actors.kernel.runtime.log_entry import EntryKind as K
from actors.kernel.runtime.log_entry import RunLogEntry
from actors.runtime.client.live_events import PieceOrder

AT = datetime(2026, 1, 1, tzinfo=UTC)


def entry(seq: int, kind: str = K.EFFECT_RESULT, position: str = "0") -> RunLogEntry:
    """An entry of the log, or a piece with seq -1."""
    return RunLogEntry(RunId("r"), seq, kind, position, {}, AT)


def piece(position: str) -> RunLogEntry:
    """A piece of the answer at this position."""
    return entry(-1, K.TEXT_DELTA, position)


class Log:
    """The end of a log."""

    def __init__(self, last_seq: int) -> None:
        self.last, self.asked = last_seq, 0

    async def last_seq(self) -> int:
        """Where it ends now."""
        self.asked += 1
        return self.last


async def test_pieces_wait_for_entries_that_were_there_before() -> None:
    """The log is asked once an answer, when it begins; later entries are not waited for."""
    log = Log(2)
    order = PieceOrder(log.last_seq, -1)
    first, second = piece("2"), piece("2")
    assert await order.take(first) == []
    assert await order.take(entry(0)) == [entry(0)]
    assert await order.take(second) == []
    assert await order.take(entry(1)) == [entry(1)]
    log.last = 9
    assert await order.take(entry(2)) == [entry(2), first, second]
    assert await order.take(piece("2")) == [piece("2")]
    assert log.asked == 1
    assert await order.take(piece("4")) == []
    assert log.asked == 2


async def test_pieces_of_an_answer_that_is_there_are_left_out() -> None:
    """Those that waited come in front of it; a new attempt asks the same positions again."""
    log = Log(1)
    order = PieceOrder(log.last_seq, -1)
    assert await order.take(piece("0")) == []
    assert await order.take(piece("5")) == []
    answer = entry(0, K.LLM_CALL)
    assert await order.take(answer) == [piece("0"), answer]
    assert await order.take(entry(1)) == [entry(1), piece("5")]
    assert await order.take(piece("0")) == []
    failed = entry(2, K.RUN_ATTEMPT_FAILED, "")
    log.last = 2
    assert await order.take(failed) == [failed]
    assert await order.take(piece("0")) == [piece("0")]


@pytest.mark.parametrize("seen", [-1, 5])
async def test_a_reader_that_has_all_entries_waits_for_none(seen: int) -> None:
    """One that goes on behind the last entry, and one that does not ask for order."""
    order = PieceOrder(Log(5).last_seq if seen == 5 else None, seen)

    assert await order.take(piece("0")) == [piece("0")]
