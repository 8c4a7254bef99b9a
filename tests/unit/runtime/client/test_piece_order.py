"""Pieces of an answer come behind the entries that were written before it began."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.log_entry import RunLogEntry
from actors._runtime.client.live_events import LivePiece, PieceOrder

AT = datetime(2026, 1, 1, tzinfo=UTC)


def entry(
    seq: int, kind: str = K.EFFECT_RESULT, position: str = "0", **payload: JsonValue
) -> RunLogEntry:
    """An entry of the log, or a piece with seq -1."""
    return RunLogEntry(RunId("r"), seq, kind, position, payload, AT)


def piece(position: str, n: int = 1) -> RunLogEntry:
    """A piece of the answer at this position; number 0 begins one."""
    return entry(-1, K.TEXT_DELTA, position, n=n)


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
    answer = entry(0, K.LLM_CALL, status="ok")
    assert await order.take(answer) == [piece("0"), answer]
    assert await order.take(entry(1)) == [entry(1), piece("5")]
    assert await order.take(piece("0")) == []
    failed = entry(2, K.RUN_ATTEMPT_FAILED, "")
    log.last = 2
    assert await order.take(failed) == [failed]
    assert await order.take(piece("0")) == [piece("0")]


@pytest.mark.parametrize("last_seq", [-1, 5])
async def test_a_reader_that_has_all_entries_waits_for_none(last_seq: int) -> None:
    """One that goes on behind the last entry, and one that does not ask for order."""
    order = PieceOrder(Log(5).last_seq if last_seq == 5 else None, last_seq)

    assert await order.take(piece("0")) == [piece("0")]


@pytest.mark.parametrize(
    "behind", [entry(1, K.RUN_ATTEMPT_FAILED, ""), entry(1, K.RUN_CONTINUED, "")]
)
async def test_an_answer_that_is_asked_for_again_may_come_before_the_entry_that_says_so(
    behind: RunLogEntry,
) -> None:
    """Its first pieces wait for that entry, although the position has an answer."""
    log = Log(0)
    order = PieceOrder(log.last_seq, -1)
    answer = entry(0, K.LLM_CALL, status="ok")
    assert await order.take(answer) == [answer]
    log.last = 1
    assert await order.take(piece("0", 0)) == []
    assert await order.take(piece("0")) == []
    assert await order.take(behind) == [behind, piece("0", 0), piece("0")]


async def test_pieces_behind_a_failed_call_are_those_of_the_next_one() -> None:
    """A reader without order, who hears of the new attempt late, sees them, too; late ones of an answer not."""
    order = PieceOrder(None, -1)
    failed, answer = entry(0, K.LLM_CALL, status="error"), entry(2, K.LLM_CALL, status="ok")
    assert await order.take(failed) == [failed]
    assert await order.take(piece("0", 0)) == [piece("0", 0)]
    assert await order.take(answer) == [answer]
    assert await order.take(piece("0", 4)) == []


async def test_late_pieces_of_an_answer_are_not_kept_for_the_next_attempt() -> None:
    """They came while entries were missing, and the answer was among those."""
    log = Log(1)
    order = PieceOrder(log.last_seq, -1)
    answer, end = entry(0, K.LLM_CALL, status="ok"), entry(1)
    assert await order.take(answer) == [answer]
    assert await order.take(piece("0", 3)) == []
    assert await order.take(end) == [end]
    failed = entry(2, K.RUN_ATTEMPT_FAILED, "")
    assert await order.take(failed) == [failed]


async def test_a_piece_that_names_the_last_durable_entry_asks_nothing() -> None:
    """It waits for that entry."""
    log = Log(9)
    order = PieceOrder(log.last_seq, -1)
    first = LivePiece(RunId("r"), -1, K.TEXT_DELTA, "2", {"n": 0}, AT, after=1)
    second = replace(first, payload={"n": 1})

    assert await order.take(first) == []
    assert await order.take(entry(0)) == [entry(0)]
    assert await order.take(entry(1)) == [entry(1), first]
    assert await order.take(second) == [second]
    assert log.asked == 0
