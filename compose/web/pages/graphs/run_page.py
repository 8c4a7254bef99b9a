"""The page of a flow run: its drawing, one step, its waits, and its ledger."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final

from markupsafe import Markup

from actors.kernel.runtime.rows import RunRow
from actors.kernel.stores.flows import RunSnapshot, SnapshotFilter
from actors.kernel.workflow.errors import NoSuchRunError
from actors.kernel.workflow.run_state import RunState
from actors.workflow.hosted.ledger_feed import BEGIN, LedgerPlace, flow_of
from actors.workflow.machine.records import is_paused
from compose.web.changes import thing_of_run
from compose.web.endpoint import Done, StrictModel, WebCall
from compose.web.graphs.bundles import installed_spec
from compose.web.graphs.flows import flows_of
from compose.web.graphs.graph_runs import flow_run_of, graph_run, present
from compose.web.pages.graphs.drawing import svg_of
from compose.web.pages.graphs.evidence import shown_evidence
from compose.web.pages.graphs.flow_pages import shelf_of
from compose.web.pages.graphs.flow_shelf import ShownFlow
from compose.web.pages.graphs.graph_steps import LedgerPart, read_part
from compose.web.pages.graphs.graph_view import (
    GraphPath,
    marks_of,
    node_states,
    public_vars,
    shown_waits,
    sub_runs,
)
from compose.web.pages.html import page
from compose.web.resources.audit import changes_of
from compose.web.resources.events import parse_log_place

_MOST_ABOVE: Final = 16
_LISTED: Final = 20
"""Maximum number of snapshots that are listed."""
_AROUND: Final = 60
"""Maximum number of records of the ledger that are listed before, and after, the shown record."""


class StepQuery(StrictModel):
    """The query of a run's page: the position in the log of the step to show; by default the current state."""

    step: str | None = None


async def show_graph_run(call: WebCall, query: StepQuery, _: None) -> Done:
    """Return the page of a run.

    The current state is read last. The page therefore receives later records as events and misses none.
    """
    row = await graph_run(call)
    place = None
    if query.step is not None:
        place = LedgerPlace(*parse_log_place(query.step, f"run {row.run_id}"))
    part = await read_part(call.runtime, row, place)
    state, open_ = await present(call, row)
    flow = await _shown(call, row)
    values = _at(part, place, flow, state)
    base = str(call.request.scope.get("root_path", ""))
    return page(
        call.request,
        "graphs/run.html",
        row=row,
        app=row.agent_id.type,
        flow_name=flow_of(row),
        flow=flow,
        state=state,
        part=part,
        chain=part.chain(),
        waits=shown_waits(state, open_),
        is_paused=is_paused(state),
        may_operate="flows:operate" in call.principal.scopes,
        cursor=_cursor(row, part),
        children=sub_runs(part.steps),
        evidence=shown_evidence(call, row, state),
        above=await _above(call, row),
        snapshots=await _snapshots(call, row),
        most_snapshots=_LISTED,
        svg=_drawn(flow, values, base),
        **values,
        **await changes_of(call, thing_of_run(row.run_id)),
    )


async def _shown(call: WebCall, row: RunRow) -> ShownFlow | None:
    """Return the flow of a run; None if this process no longer has it."""
    app, flow = row.agent_id.type, flow_of(row)
    served = flows_of(call.runtime).get(app)
    if served is not None:
        return await shelf_of(call).shown(served, flow)
    spec = await installed_spec(call, flow)
    return None if spec is None else await shelf_of(call).installed(spec)


def _at(
    part: LedgerPart, place: LedgerPlace | None, flow: ShownFlow | None, state: RunState
) -> dict[str, Any]:
    """Return the values of one step and of the steps around it, for the template."""
    steps = part.steps
    index = len(steps) - 1
    if place is not None:
        index = max(0, bisect_right(steps, place, key=lambda one: one.place) - 1)
    is_present = place is None or (index == len(steps) - 1 and part.later is None)
    run = state if is_present or not steps else steps[index].after
    path = GraphPath.of(steps[: index + 1])
    nodes = node_states(flow, path, run, sub_runs(steps[: index + 1]))
    step = steps[index] if steps else None
    own, runtimes = public_vars(run.vars if step is None or place is None else step.vars)
    low, high = max(0, index - _AROUND), index + _AROUND + 1
    return {
        "nodes": nodes,
        "path": path,
        "dashed": flow is not None and not flow.edges.issuperset(path.edges),
        "step": step,
        "index": index,
        "is_present": is_present,
        "listed": [*enumerate(steps)][low:high],
        "vars": own,
        "runtime_vars": runtimes,
    }


def _drawn(flow: ShownFlow | None, values: dict[str, Any], base: str) -> Markup | None:
    if flow is None or flow.layout is None:
        return None
    title = "Drawing of the run on its flow; the list of nodes has the same content"
    marks = marks_of(flow, values["nodes"], values["path"], runs_at=f"{base}/graph-runs")
    return svg_of(flow.layout, marks, title=title)


async def _above(call: WebCall, row: RunRow) -> list[tuple[str, str]]:
    """Return flow and id of the runs of flows above a run, the highest first."""
    found: list[tuple[str, str]] = []
    while row.parent is not None and len(found) < _MOST_ABOVE:
        try:
            row = await flow_run_of(call, row.parent)
        except NoSuchRunError:  # an agent's run, or a run of an app that is not served here
            break
        found.insert(0, (flow_of(row), row.run_id))
    return found


async def _snapshots(call: WebCall, row: RunRow) -> list[RunSnapshot]:
    """Return the newest stored snapshots of a run."""
    among = SnapshotFilter(apps=[row.agent_id.type], run=row.run_id)
    rows = call.runtime.store.run_snapshots
    return await rows.list(call.principal.tenant, among, limit=_LISTED)


def _cursor(row: RunRow, part: LedgerPart) -> str:
    """Return the cursor after which the page receives new records; empty if there are no records yet."""
    if part.later is not None:
        return f"{row.last_seq}.0"
    last = part.steps[-1].place if part.steps else BEGIN
    return "" if last == BEGIN else str(last)
