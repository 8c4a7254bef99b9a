"""Runs of flows: list, show, answer waits, cancel."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from pydantic import JsonValue

from actors.errors import UnknownRunError
from actors.kernel.runtime.ids import RunId
from actors.kernel.runtime.rows import RunRow
from actors.kernel.runtime.scheduler import TERMINAL
from actors.kernel.runtime.scheduler import RunStatus as RowStatus
from actors.kernel.stores.administration import Facts
from actors.kernel.stores.runs import RunFilter
from actors.kernel.text import is_name
from actors.kernel.workflow.effects import WaitReason, WaitState
from actors.kernel.workflow.errors import NoSuchRunError
from actors.kernel.workflow.run_state import RunState, open_waits
from actors.runtime.replay.verdict import row_of
from actors.workflow.bundles import INSTALLED_APP
from actors.workflow.hosted.ledger_feed import flow_of, flow_runs
from actors.workflow.hosted.runs import FlowRuns
from actors.workflow.machine.records import is_paused
from actors.workflow.machine.variables import limit_status
from compose.web.changes import thing_of_run
from compose.web.endpoint import Done, NoQuery, ShownModel, StrictModel, WebCall, WebEndpoint
from compose.web.graphs.flows import (
    GraphPhase,
    GraphRunNameJson,
    RowPhase,
    flows_of,
    named,
    phase_of,
    start_at,
)
from compose.web.resources.pages import Paged
from compose.web.resources.runs import CancelJson

_ROWS: Final[dict[RowPhase, tuple[RowStatus, ...]]] = {
    "running": tuple(status for status in RowStatus if status not in TERMINAL),
    "completed": (RowStatus.COMPLETED,),
    "failed": (RowStatus.FAILED,),
    "cancelled": (RowStatus.CANCELLED,),
}
_WITHIN: Final = (WaitReason.UNTIL, WaitReason.SUBWORKFLOW)
"""Reasons of waits that no client can answer."""


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
        waits: The current waits. A wait for an answer is listed once its answer would be accepted.
        wait: The first of `waits`; null if there is none.
        vars: The run's vars.
        output: The result of a completed run.
        error: The error of a failed or cancelled run.
        limits: See `limit_status`.
        is_paused: True if the run is paused.
    """

    node: str
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
    """The query of a list of runs: by flow, app and status."""

    flow: str | None = None
    app: str | None = None
    status: RowPhase | None = None


class ReplyJson(StrictModel):
    """An answer to a wait."""

    payload: JsonValue


def runs_at(call: WebCall, app: str) -> FlowRuns:
    """Return the runs of an app in the principal's tenant."""
    return FlowRuns(call.runtime, app, tenant=call.principal.tenant)


async def graph_run(call: WebCall) -> RunRow:
    """Return the run that the path names. See `flow_run_of`."""
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
    is_ones_own = row.agent_id.tenant == call.principal.tenant
    if not is_ones_own or row.agent_id.type not in {INSTALLED_APP, *flows_of(call.runtime)}:
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


async def _with_sub(call: WebCall, wait: WaitState, *, deepest: int = 16) -> GraphWaitJson:
    """Return a wait. A wait for a sub-graph's end also has the sub-graph's first wait, to 16 levels."""
    shown = _wait(wait)
    if wait.reason is not WaitReason.SUBWORKFLOW or not deepest:
        return shown
    run = str((wait.details or {}).get("sub_run_id"))
    try:
        _, waits = await present(call, await row_of(call.runtime.store, RunId(run)))
    except (UnknownRunError, NoSuchRunError):
        waits = []  # the sub-graph's run was swept
    below = await _with_sub(call, waits[0], deepest=deepest - 1) if waits else None
    return shown.model_copy(update={"run": run, "sub_waiting": below})


async def list_graph_runs(call: WebCall, query: GraphRunsQuery, _: None) -> Done:
    """Return a page of runs."""
    if query.after is not None and not is_name(query.after):
        raise NoSuchRunError(query.after[:100])
    apps = [app for app in (INSTALLED_APP, *flows_of(call.runtime)) if query.app in {None, app}]
    flow = query.flow
    if flow is not None:
        app, flow = await start_at(call, flow, query.app)
        apps = [app]
    status = () if query.status is None else _ROWS[query.status]
    after = None if query.after is None else RunId(query.after)
    rows, nexts = list[RunRow](), list[RunId | None]()
    for app in apps:
        among = RunFilter(type=app, tenant=call.principal.tenant, after=after)
        page = await flow_runs(
            call.runtime.store.lists, among, flow=flow, status=status, limit=query.limit
        )
        rows += page.rows
        nexts.append(page.next)
    if len(apps) > 1:
        rows.sort(key=lambda row: (row.created_at, row.run_id), reverse=True)
        is_more = len(rows) > query.limit or any(nexts)
        rows = rows[: query.limit]
        nexts = [rows[-1].run_id if is_more else None]
    shown = [ListedGraphRunJson.model_validate(_facts(row)) for row in rows]
    return GraphRunsJson(runs=shown, next=nexts[0] if nexts else None)


async def present(call: WebCall, row: RunRow) -> tuple[RunState, list[WaitState]]:
    """Return a run's current state and its waits. A wait for an answer is left out until it accepts one."""
    runs = runs_at(call, row.agent_id.type)
    answerable = {one.wait_key for one in await runs.waits(row.run_id)}
    state = await runs.state(row.run_id)  # read last: it has these waits, or later ones
    waits = [
        one for one in open_waits(state) if one.reason in _WITHIN or one.wait_key in answerable
    ]
    return state, waits


async def show(call: WebCall, _: NoQuery, __: None) -> Done:
    """Return a run with its state and its waits."""
    row = await graph_run(call)
    state, open_ = await present(call, row)
    waits = [await _with_sub(call, one) for one in open_]
    facts = {
        **_facts(row),
        "status": state.status,
        "node": state.current_node,
        "waits": waits,
        "wait": waits[0] if waits else None,
        "vars": state.vars,
        "output": state.output,
        "error": state.error,
        "limits": limit_status(state),
        "is_paused": is_paused(state),
    }
    return GraphRunJson.model_validate(facts)


async def reply(call: WebCall, _: NoQuery, body: ReplyJson) -> Done:
    """Answer a wait. A wait takes one answer, and the run continues."""
    row = await graph_run(call)
    runs = runs_at(call, row.agent_id.type)
    audit_run(call, row, after={"wait": call.names["wait"]})
    await runs.resume(row.run_id, call.names["wait"], body.payload)
    return named(row)


async def cancel(call: WebCall, _: NoQuery, body: CancelJson) -> Done:
    """Request a run and its descendants to stop. A run that has ended is not changed."""
    row = await graph_run(call)
    if not row.status.is_terminal:
        before, after = {"status": str(row.status)}, {"reason": body.reason}
        audit_run(call, row, before=before, after=after)
    await runs_at(call, row.agent_id.type).cancel(row.run_id, reason=body.reason)
    return named(await graph_run(call))


_RUNS: Final = "/v1/graph-runs"
RUN: Final = f"{_RUNS}/{{graph_run}}"
ENDPOINTS: Final = (
    WebEndpoint(
        method="GET",
        path=_RUNS,
        call=list_graph_runs,
        says="List runs of flows, newest first.",
        query=GraphRunsQuery,
        answer=GraphRunsJson,
    ),
    WebEndpoint(
        method="GET", path=RUN, call=show, says="Show a run of a flow.", answer=GraphRunJson
    ),
    WebEndpoint(
        method="POST",
        path=f"{RUN}/waits/{{wait}}",
        call=reply,
        says="Answer a wait, once.",
        body=ReplyJson,
        answer=GraphRunNameJson,
    ),
    WebEndpoint(
        method="POST",
        path=f"{RUN}/cancel",
        call=cancel,
        says="Ask a run to stop.",
        body=CancelJson,
        answer=GraphRunNameJson,
    ),
)
