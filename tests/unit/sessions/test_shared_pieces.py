"""Sharing between readers of one answer: the event of a piece, and its line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from actors._kernel.hidden import HiddenNames
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind
from actors._runtime.client.live_events import LivePiece
from actors._sessions.events import TextPiece
from actors._sessions.translation import RunTranslator
from compose._web.resources import readers
from compose._web.resources.readers import _SharedLines

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUN = RunId("r")


def piece(n: int) -> LivePiece:
    """Return the n-th piece of an answer."""
    payload: dict[str, JsonValue] = {"text": f"{n} ", "attempt": 1, "n": n}
    return LivePiece(RUN, -1, EntryKind.TEXT_DELTA, "1", payload, NOW, after=-1)


def reader(session: str = "s") -> RunTranslator:
    """Return the translator of one reader."""
    return RunTranslator(session, RUN, AgentId("app", session), HiddenNames())


async def test_readers_share_the_events_and_lines_of_pieces() -> None:
    """However far apart they are, while both have the piece."""
    pieces, lines = [piece(n) for n in range(50)], _SharedLines()
    first, second = reader(), reader()
    mine = [event for p in pieces for event in await first.of(p)]
    others = [event for p in pieces for event in await second.of(p)]

    assert "".join(TextPiece.model_validate(event).payload["text"] for event in mine) == "".join(
        f"{n} " for n in range(50)
    )
    assert all(event is other for event, other in zip(mine, others, strict=True))
    own_lines = [lines.of(event) for event in mine]
    assert all(lines.of(event) is line for event, line in zip(others, own_lines, strict=True))


async def test_a_reader_of_another_session_has_an_event_of_its_own() -> None:
    """An answer that is asked again begins with an empty snapshot for each of them."""
    next_piece, again = piece(1), piece(0)
    first, other = reader(), reader("t")
    for translator, name in ((first, "s"), (other, "t")):
        assert [event.session_id for event in await translator.of(next_piece)] == [name]
        assert [(event.session_id, event.type) for event in await translator.of(again)] == [
            (name, "text_snapshot"),
            (name, "text_delta"),
        ]


async def test_few_lines_are_kept() -> None:
    """The oldest go."""
    lines = _SharedLines()
    for n in range(2 * readers.MOST_SHARED):
        [event] = await reader().of(piece(n))
        lines.of(event)
    assert len(lines._lines) == readers.MOST_SHARED
