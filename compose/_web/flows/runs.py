"""Runs of flows: list, show, answer waits, cancel, control, and their ledgers.

A pause, a steer, a limit or a snapshot applies between two steps. An event ends the waits for it. A ledger is
read in pages, or as a stream of new records.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field, JsonValue, model_validator
from pydantic_core import to_json
from starlette.responses import Response

from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.log_entry import RunLogEntry
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import TERMINAL
from actors._kernel.runtime.scheduler import RunStatus as RowStatus
from actors._kernel.stores.administration import Facts
from actors._kernel.stores.runs import RunFilter
from actors._kernel.text import is_name
from actors._kernel.workflow.effects import WaitReason, WaitState
from actors._kernel.workflow.errors import NoSuchRunError
from actors._kernel.workflow.run_state import RunState, open_waits
from actors._runtime.replay.verdict import row_of
from actors._sessions.errors import CursorError
from actors._workflow.hosted.ledger_feed import (
    BEGIN,
    LedgerPlace,
    PlacedRecord,
    flow_of,
    flow_runs,
    ledger_feed,
    live_feed,
)
from actors._workflow.hosted.runs import FlowRuns
from actors._workflow.machine.records import is_paused
from actors._workflow.machine.variables import LIMITS, limit_status
from actors.errors import UnknownRunError
from compose._web.endpoint import (
    Endpoints,
    ShownModel,
    StrictModel,
    WebCall,
    json_response,
    thing_of_run,
)
from compose._web.flows.flows import (
    GraphPhase,
    GraphRunNameJson,
    flow_apps,
    flows_of,
    phase_of,
    run_name_json,
    start_at,
)
from compose._web.resources.events import parse_log_place
from compose._web.resources.pages import Limit, Paged
from compose._web.resources.readers import cursor_of, stream_response
from compose._web.resources.runs import CancelJson
from compose._web.streams import EventLine, wants_stream

endpoint: Final = Endpoints()

StatusFilter: TypeAlias = Literal[
    "running", "pending", "suspended", "completed", "failed", "cancelled"
]
"""A status of runs in a list. ``running`` is any open run."""
_ROWS: Final[dict[StatusFilter, tuple[RowStatus, ...]]] = {
    "running": tuple(status for status in RowStatus if status not in TERMINAL),
    "pending": (RowStatus.PENDING,),
    "suspended": (RowStatus.SUSPENDED,),
    "completed": (RowStatus.COMPLETED,),
    "failed": (RowStatus.FAILED,),
    "cancelled": (RowStatus.CANCELLED,),
}
_WITHIN: Final = (WaitReason.UNTIL, WaitReason.SUBWORKFLOW)
"""Reasons of waits that no client can answer."""
_RUNS: Final = "/v1/graph-runs"
RUN: Final = f"{_RUNS}/{{graph_run}}"
_PIECES: Final[dict[str, str]] = {K.TEXT_DELTA: "text_delta", K.REASONING_DELTA: "reasoning_delta"}


class GraphWaitJson(ShownModel):
    """A wait of a run.

    Attributes:
        reason: The reason of the wait.
        key: The key that an answer has to name.
        prompt: The question for a person.
        choices: The answers to choose from.
        allow_free_text: True if answers beside `choices` are accepted.
        until: The instant at which the wait ends by itself.
        run: The sub-graph's run whose end the wait needs; null for other waits.
        sub_waiting: The first wait of that run. An answer to it has to go to that run.
    """

    reason: WaitReason
    key: str | None
    prompt: str | None
    choices: list[str] | None
    allow_free_text: bool
    until: str | None
    run: str | None = None
    sub_waiting: GraphWaitJson | None = None


class ListedGraphRunJson(ShownModel):
    """A flow run in a list.

    Attributes:
        run: The run's id.
        flow: The run's flow.
        app: The flow's app.
        status: The run's status. In a list, a waiting run is ``running``.
        parked: The reason why the run is parked for an operator; null if it is not.
        parent: The run that started it as a sub-graph.
        created_at: When the run was started.
        updated_at: When the last entry was written.
    """

    run: str
    flow: str
    app: str
    status: GraphPhase
    parked: str | None
    parent: str | None
    created_at: datetime | None
    updated_at: datetime | None


class GraphRunJson(ListedGraphRunJson):
    """A flow run. See `ListedGraphRunJson`.

    Attributes:
        node: The next node, or the node at which the run waits or ended.
        session: The session of the run; null if it has none.
        waits: The current waits. A wait for an answer is listed once its answer would be accepted.
        wait: The first of `waits`; null if there is none.
        vars: The run's vars.
        output: The result of a completed run.
        error: The error of a failed or cancelled run.
        limits: See `limit_status`.
        is_paused: True if the run is paused.
    """

    node: str
    session: str | None
    waits: list[GraphWaitJson]
    wait: GraphWaitJson | None
    vars: dict[str, JsonValue]
    output: JsonValue
    error: str | None
    limits: dict[str, JsonValue]
    is_paused: bool


class GraphRunsJson(ShownModel):
    """A page of runs, newest first. `next` is null on the last page.

    A page of one flow reads at most 5,000 runs of its app. It may therefore have few runs, or none, and a
    `next`.
    """

    runs: list[ListedGraphRunJson]
    next: str | None


class GraphRunsQuery(Paged):
    """The query of a list of runs: by flow, app and statuses, which commas separate."""

    flow: str | None = None
    app: str | None = None
    status: Annotated[
        tuple[StatusFilter, ...],
        BeforeValidator(lambda text: text.split(",") if isinstance(text, str) else text),
    ] = ()


class ReplyJson(StrictModel):
    """An answer to a wait."""

    payload: JsonValue


def runs_at(call: WebCall, app: str) -> FlowRuns:
    """Return the runs of an app in the principal's tenant."""
    return FlowRuns(call.runtime, app, tenant=call.principal.tenant)


async def graph_run(call: WebCall) -> RunRow:
    """Return the run that the path names, if its flow is served here or installed."""
    return await flow_run_of(call, call.names["graph_run"])


async def flow_run_of(call: WebCall, id_: str) -> RunRow:
    """Return the run of this id. Its flow has to be served here, or installed.

    Raises:
        NoSuchRunError: The principal's tenant has no such run.
    """
    try:
        row = await row_of(call.runtime.store, RunId(id_))
    except UnknownRunError:
        raise NoSuchRunError(id_[:100]) from None
    is_own_tenant = row.agent_id.tenant == call.principal.tenant
    # The key of a flow's agent has a colon: any app's runs may be named in a client's own application.
    if not (is_own_tenant and ":" in row.agent_id.key and flow_apps(call, row.agent_id.type)):
        raise NoSuchRunError(id_[:100])
    return row


def audit_run(
    call: WebCall, row: RunRow, *, before: Facts | None = None, after: Facts | None = None
) -> None:
    """Note a change of a run for the audit."""
    call.audit(thing_of_run(row.run_id), agent=row.agent_id, before=before, after=after)


def _facts(row: RunRow) -> dict[str, Any]:
    return {
        "run": row.run_id,
        "flow": flow_of(row),
        "app": row.agent_id.type,
        "status": phase_of(row),
        "parked": row.parked,
        "parent": row.parent,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }


def _wait(wait: WaitState) -> GraphWaitJson:
    return GraphWaitJson(
        reason=wait.reason,
        key=wait.wait_key,
        prompt=wait.prompt,
        choices=wait.choices,
        allow_free_text=wait.allow_free_text,
        until=wait.until,
    )


async def _with_sub(call: WebCall, wait: WaitState, *, max_depth: int = 16) -> GraphWaitJson:
    """Return a wait. A wait for a sub-graph's end also has the sub-graph's first wait, to 16 levels."""
    wait_json = _wait(wait)
    if wait.reason is not WaitReason.SUBWORKFLOW or not max_depth:
        return wait_json
    run_id = str((wait.details or {}).get("sub_run_id"))
    try:
        _, waits = await state_and_waits(call, await row_of(call.runtime.store, RunId(run_id)))
    except (UnknownRunError, NoSuchRunError):
        waits = []  # the sub-graph's run was swept
    sub_wait = await _with_sub(call, waits[0], max_depth=max_depth - 1) if waits else None
    return wait_json.model_copy(update={"run": run_id, "sub_waiting": sub_wait})


@endpoint.get(_RUNS, scope="flows:run")
async def list_graph_runs(call: WebCall, query: GraphRunsQuery) -> GraphRunsJson:
    """List runs of flows, newest first."""
    if query.after is not None and not is_name(query.after):
        raise NoSuchRunError(query.after[:100])
    apps = flow_apps(call, query.app)
    flow = query.flow
    if flow is not None:
        app, flow = await start_at(call, flow, query.app)
        apps = [app]
    status = tuple({s for phase in query.status for s in _ROWS[phase]})
    after = None if query.after is None else RunId(query.after)
    rows, nexts = list[RunRow](), list[RunId | None]()
    for app in apps:
        run_filter = RunFilter(type=app, tenant=call.principal.tenant, after=after)
        page = await flow_runs(
            call.runtime.store.lists, run_filter, flow=flow, status=status, limit=query.limit
        )
        rows += page.rows
        nexts.append(page.next)
    # Each page is full or complete, so the newest runs of all apps are among these.
    if len(apps) > 1:
        rows.sort(key=lambda row: (row.created_at, row.run_id), reverse=True)
        is_more = len(rows) > query.limit or any(nexts)
        rows = rows[: query.limit]
        nexts = [rows[-1].run_id if is_more else None]
    runs = [ListedGraphRunJson.model_validate(_facts(row)) for row in rows]
    return GraphRunsJson(runs=runs, next=nexts[0] if nexts else None)


async def state_and_waits(call: WebCall, row: RunRow) -> tuple[RunState, list[WaitState]]:
    """Return a run's current state and its waits. A wait for an answer is left out until it accepts one."""
    runs = runs_at(call, row.agent_id.type)
    answerable = {wait.wait_key for wait in await runs.waits(row.run_id)}
    state = await runs.state(row.run_id)  # read last: it has these waits, or later ones
    waits = [
        wait for wait in open_waits(state) if wait.reason in _WITHIN or wait.wait_key in answerable
    ]
    return state, waits


@endpoint.get(RUN, scope="flows:run")
async def show(call: WebCall) -> GraphRunJson:
    """Show a run of a flow."""
    row = await graph_run(call)
    state, pending_waits = await state_and_waits(call, row)
    waits = [await _with_sub(call, wait) for wait in pending_waits]
    facts = {
        **_facts(row),
        "status": state.status,
        "node": state.current_node,
        "session": state.session_id,
        "waits": waits,
        "wait": waits[0] if waits else None,
        "vars": state.vars,
        "output": state.output,
        "error": state.error,
        "limits": limit_status(state),
        "is_paused": is_paused(state),
    }
    return GraphRunJson.model_validate(facts)


@endpoint.post(f"{RUN}/waits/{{wait}}", scope="flows:run", action="wait.answer")
async def reply(call: WebCall, body: ReplyJson) -> GraphRunNameJson:
    """Answer a wait, once.

    A wait takes one answer, and the run continues.
    """
    row = await graph_run(call)
    runs = runs_at(call, row.agent_id.type)
    audit_run(call, row, after={"wait": call.names["wait"]})
    await runs.resume(row.run_id, call.names["wait"], body.payload)
    return run_name_json(row)


@endpoint.post(f"{RUN}/cancel", scope="flows:operate", action="run.cancel")
async def cancel(call: WebCall, body: CancelJson) -> GraphRunNameJson:
    """Ask a run to stop.

    Its descendants stop, too. A run that has ended is not changed.
    """
    row = await graph_run(call)
    if not row.status.is_terminal:
        before, after = {"status": str(row.status)}, {"reason": body.reason}
        audit_run(call, row, before=before, after=after)
    await runs_at(call, row.agent_id.type).cancel(row.run_id, reason=body.reason)
    return run_name_json(await graph_run(call))


class PauseJson(StrictModel):
    """A request to pause a run."""

    reason: str | None = Field(default=None, max_length=1000)


class SteerJson(StrictModel):
    """A message to a run: a text, or an object with a role and content."""

    message: str | dict[str, JsonValue]


class SnapshotQuery(StrictModel):
    """The query of a snapshot."""

    name: str = Field(default="", max_length=200)


class SnapshotJson(ShownModel):
    """A snapshot of a run. See `Snapshot`."""

    snapshot_id: str
    run_id: str
    step_id: str | None
    name: str
    description: str
    tags: list[str]
    created_at: str
    run_state: dict[str, JsonValue]
    spec_hash: str | None


class LimitsJson(StrictModel):
    """Limits of a run, by name. Unknown names are ignored."""

    updates: dict[str, JsonValue]


@endpoint.post(f"{RUN}/pause", scope="flows:operate", action="run.pause")
async def pause(call: WebCall, body: PauseJson) -> GraphRunNameJson:
    """Pause a run between two of its steps."""
    row = await graph_run(call)
    audit_run(call, row, after={"paused": True, "reason": body.reason})
    await runs_at(call, row.agent_id.type).pause_run(row.run_id, body.reason)
    return run_name_json(row)


@endpoint.post(f"{RUN}/resume", scope="flows:operate", action="run.resume")
async def unpause(call: WebCall) -> GraphRunNameJson:
    """Resume a paused run."""
    row = await graph_run(call)
    audit_run(call, row, after={"paused": False})
    await runs_at(call, row.agent_id.type).resume_run(row.run_id)
    return run_name_json(row)


@endpoint.post(f"{RUN}/steer", scope="flows:operate", action="run.steer")
async def steer(call: WebCall, body: SteerJson) -> GraphRunNameJson:
    """Add a message to the inbox of a run."""
    row = await graph_run(call)
    audit_run(call, row)
    await runs_at(call, row.agent_id.type).steer(row.run_id, body.message)
    return run_name_json(row)


@endpoint.post(f"{RUN}/limits", scope="flows:operate", action="run.limits")
async def limit(call: WebCall, body: LimitsJson) -> GraphRunNameJson:
    """Change limits of a run."""
    row = await graph_run(call)
    runs = runs_at(call, row.agent_id.type)
    limits = (await runs.state(row.run_id)).vars.get(LIMITS, {})
    before = {name: limits.get(name) for name in body.updates}
    audit_run(call, row, before=before, after=body.updates)
    await runs.update_limits(row.run_id, body.updates)
    return run_name_json(row)


@endpoint.get(f"{RUN}/snapshot", scope="flows:run")
async def snapshot(call: WebCall, query: SnapshotQuery) -> SnapshotJson | Response:
    """Download a snapshot of a run as a file.

    The file is for `callboard graphs restore`. The snapshot is not stored.
    """
    row = await graph_run(call)
    flows = flows_of(call.runtime).get(row.agent_id.type, row.agent_id.type)
    runs = FlowRuns(call.runtime, flows, tenant=call.principal.tenant)
    snapshot_json = SnapshotJson.model_validate(
        (await runs.snapshot(row.run_id, query.name, keep=False)).to_dict()
    )
    file = f'attachment; filename="snapshot-{row.run_id}.json"'
    return json_response(snapshot_json, headers={"content-disposition": file})


class GraphEventJson(StrictModel):
    """An event.

    Attributes:
        name: The event name that waits refer to.
        scope: The scope of waits that the event ends.
        key: Id of the scope's session, flow or run. A global event has none.
        id: Id of the event; by default a new one. An event of one id ends at most one wait of each run.
        payload: The event's data, which the waits receive.
    """

    name: str = Field(min_length=1)
    scope: Literal["session", "workflow", "run", "global"] = "global"
    key: str | None = Field(default=None, min_length=1)
    id: str | None = Field(default=None, min_length=1)
    payload: JsonValue = None

    @model_validator(mode="after")
    def _has_a_key(self) -> GraphEventJson:
        if (self.key is None) != (self.scope == "global"):
            raise ValueError(
                "give `key` with the scopes session, workflow and run, and with no other"
            )
        return self


class EmittedJson(ShownModel):
    """The result of an event: how many waits it ended, and the ids of at most 1,000 resumed runs."""

    event_id: str
    wait_key: str
    delivered: int
    resumed: list[str]


@endpoint.post("/v1/events", scope="flows:run", action=None)
async def emit(call: WebCall, body: GraphEventJson) -> EmittedJson:
    """Emit an event to all runs that wait for it.

    All waits of the tenant for it end.
    """
    key = {} if body.key is None else {f"{body.scope}_id": body.key}
    result = await runs_at(call, "").emit(
        body.name, body.payload, event_id=body.id, scope=body.scope, **key
    )
    return EmittedJson.model_validate(result)


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


def _start_position(call: WebCall, row: RunRow, query: LedgerQuery) -> LedgerPlace:
    """Return the place after which the request reads records.

    Raises:
        CursorError: The run has no record there.
    """
    cursor = cursor_of(call.request, query.after)
    if cursor is None:
        return BEGIN
    position = LedgerPlace(*parse_log_place(cursor, f"run {row.run_id}"))
    if position.seq > row.last_seq:
        raise CursorError(cursor[:60], f"run {row.run_id}", f"its log ends at {row.last_seq}")
    return position


async def _page(call: WebCall, row: RunRow, after: LedgerPlace, limit: int) -> list[PlacedRecord]:
    """Return up to `limit` records, and one more if there is one."""
    records: list[PlacedRecord] = []
    async with aclosing(ledger_feed(call.runtime, row.run_id, after=after)) as feed:
        async for record in feed:
            records.append(record)
            if len(records) > limit:
                break
    return records


async def _lines(
    call: WebCall, row: RunRow, after: LedgerPlace, *, live: bool
) -> AsyncGenerator[EventLine, None]:
    """Yield records as they arrive, with pieces of answers between them. The last line is the run's end."""
    feed: AsyncGenerator[PlacedRecord | RunLogEntry, None]
    if live:
        feed = live_feed(call.runtime, row.run_id, after=after)
    else:
        feed = ledger_feed(call.runtime, row.run_id, after=after, follow=True)
    async with aclosing(feed) as items:
        async for item in items:
            if isinstance(item, PlacedRecord):
                yield EventLine("step", to_json(item.record), str(item.place))
            elif item.kind in _PIECES:
                yield _piece(item)
    ended_row = await row_of(call.runtime.store, row.run_id)
    yield EventLine("end", run_name_json(ended_row).model_dump_json().encode())


def _piece(entry: RunLogEntry) -> EventLine:
    """Return the line of a piece, which has no id; one that is all of an answer so far is a snapshot."""
    payload: dict[str, JsonValue] = {**entry.payload}
    data, is_whole = payload.pop("data", None), payload.pop("whole", False)
    fields = data if isinstance(data, dict) else {}
    name = "text_snapshot" if is_whole and entry.kind == K.TEXT_DELTA else _PIECES[entry.kind]
    return EventLine(name, to_json({**fields, **payload}))


@endpoint.get("/v1/graph-runs/{graph_run}/ledger", scope="flows:run", streams=True)
async def read(call: WebCall, query: LedgerQuery) -> LedgerJson | Response:
    """Read the ledger of a run of a flow.

    A stream ends with the run.

    If a stream's client has read an ended run to its end, the response is 204: a browser then does not
    reconnect.
    """
    row = await graph_run(call)
    after = _start_position(call, row, query)
    if wants_stream(call.request, default=False):
        is_read = row.status.is_terminal and after != BEGIN
        if is_read and not await _page(call, row, after, 0):
            return Response(status_code=204)
        return stream_response(call, _lines(call, row, after, live=query.live))
    records = await _page(call, row, after, query.limit)
    page = records[: query.limit]
    cursor = page[-1].place if page else after
    cursor_text = None if cursor == BEGIN else str(cursor)
    return LedgerJson(
        run=row.run_id,
        status=phase_of(row),
        records=[record.record for record in page],
        next=cursor_text if len(records) > query.limit else None,
        cursor=cursor_text,
    )
