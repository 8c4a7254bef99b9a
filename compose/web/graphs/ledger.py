"""Ledgers of flow runs: in pages, or as a stream of new records."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from pydantic import JsonValue
from pydantic_core import to_json
from starlette.responses import Response

from actors.kernel.runtime.log_entry import EntryKind as K
from actors.kernel.runtime.log_entry import RunLogEntry
from actors.kernel.runtime.rows import RunRow
from actors.runtime.replay.verdict import row_of
from actors.sessions.errors import CursorError
from actors.workflow.hosted.ledger_feed import (
    BEGIN,
    LedgerPlace,
    PlacedRecord,
    ledger_feed,
    live_feed,
)
from compose.web.endpoint import Done, ShownModel, StrictModel, WebCall, WebEndpoint
from compose.web.graphs.flows import GraphPhase, named, phase_of
from compose.web.graphs.graph_runs import graph_run
from compose.web.resources.events import parse_log_place
from compose.web.resources.pages import Limit
from compose.web.resources.readers import cursor_of, streamed
from compose.web.streams import EventLine, wants_stream

_PIECES: Final[dict[str, str]] = {K.TEXT_DELTA: "text_delta", K.REASONING_DELTA: "reasoning_delta"}


class LedgerQuery(StrictModel):
    """The query of a ledger.

    Attributes:
        after: A `cursor`. The header Last-Event-ID takes precedence.
        live: Whether a stream also has pieces of answers of models.
        limit: Maximum number of records of a page.
    """

    after: str | None = None
    live: bool = True
    limit: Limit = 100


class LedgerJson(ShownModel):
    """A page of a ledger.

    Attributes:
        run: The run.
        status: The status in the run's row.
        records: Complete step records, in the order of their chain.
        next: `after` of the next page; null if there are no more records so far.
        cursor: `after` for later records; null if there are no records yet.
    """

    run: str
    status: GraphPhase
    records: list[dict[str, JsonValue]]
    next: str | None
    cursor: str | None


def _behind(call: WebCall, row: RunRow, query: LedgerQuery) -> LedgerPlace:
    """Return the place after which the request reads records.

    Raises:
        CursorError: The run has no record there.
    """
    cursor = cursor_of(call.request, query.after)
    if cursor is None:
        return BEGIN
    place = LedgerPlace(*parse_log_place(cursor, f"run {row.run_id}"))
    if place.seq > row.last_seq:
        raise CursorError(cursor[:60], f"run {row.run_id}", f"its log ends at {row.last_seq}")
    return place


async def _page(call: WebCall, row: RunRow, after: LedgerPlace, limit: int) -> list[PlacedRecord]:
    """Return up to `limit` records, and one more if there is one."""
    found: list[PlacedRecord] = []
    async with aclosing(ledger_feed(call.runtime, row.run_id, after=after)) as records:
        async for one in records:
            found.append(one)
            if len(found) > limit:
                break
    return found


async def _lines(
    call: WebCall, row: RunRow, after: LedgerPlace, *, live: bool
) -> AsyncGenerator[EventLine, None]:
    """Yield records as they arrive, with pieces of answers between them. The last line is the run's end."""
    feed: AsyncGenerator[PlacedRecord | RunLogEntry, None]
    if live:
        feed = live_feed(call.runtime, row.run_id, after=after)
    else:
        feed = ledger_feed(call.runtime, row.run_id, after=after, follow=True)
    async with aclosing(feed) as found:
        async for one in found:
            if isinstance(one, PlacedRecord):
                yield EventLine("step", to_json(one.record), str(one.place))
            elif one.kind in _PIECES:
                yield _piece(one)
    ended = await row_of(call.runtime.store, row.run_id)
    yield EventLine("end", named(ended).model_dump_json().encode())


def _piece(entry: RunLogEntry) -> EventLine:
    """Return the line of a piece, which has no id; one that is all of an answer so far is a snapshot."""
    said: dict[str, JsonValue] = {**entry.payload}
    told, is_whole = said.pop("data", None), said.pop("whole", False)
    more = told if isinstance(told, dict) else {}
    name = "text_snapshot" if is_whole and entry.kind == K.TEXT_DELTA else _PIECES[entry.kind]
    return EventLine(name, to_json({**more, **said}))


async def read(call: WebCall, query: LedgerQuery, _: None) -> Done:
    """Return a page of records, or a stream that ends with the run.

    If a stream's client has read an ended run to its end, the response is 204: a browser then does not
    reconnect.
    """
    row = await graph_run(call)
    after = _behind(call, row, query)
    if wants_stream(call.request, unless_said=False):
        is_read = row.status.is_terminal and after != BEGIN
        if is_read and not await _page(call, row, after, 0):
            return Response(status_code=204)
        return streamed(call, _lines(call, row, after, live=query.live))
    found = await _page(call, row, after, query.limit)
    page = found[: query.limit]
    cursor = page[-1].place if page else after
    shown = None if cursor == BEGIN else str(cursor)
    return LedgerJson(
        run=row.run_id,
        status=phase_of(row),
        records=[one.record for one in page],
        next=shown if len(found) > query.limit else None,
        cursor=shown,
    )


ENDPOINTS: Final = (
    WebEndpoint(
        method="GET",
        path="/v1/graph-runs/{graph_run}/ledger",
        call=read,
        says="Read the ledger of a run of a flow.",
        streams=True,
        query=LedgerQuery,
        answer=LedgerJson,
    ),
)
