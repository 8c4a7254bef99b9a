"""The pages of flows: which ones are served, and one with its nodes, its drawing and its runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from actors.kernel.runtime.ids import RunId
from actors.kernel.store.lists import RunFilter
from actors.kernel.text import is_name
from actors.kernel.workflow.errors import NoSuchRunError
from actors.workflow.actor.run_lists import flow_of, flow_runs
from compose.web.endpoint import Done, NoQuery, StrictModel, WebCall
from compose.web.graphs.flows import RowPhase, app_of, flows_of, phase_of
from compose.web.pages.graphs.drawing import GraphMarks, svg_of
from compose.web.pages.graphs.flow_shelf import FlowShelf
from compose.web.pages.html import page

COUNTED: Final = 500
"""Number of an app's newest runs that are counted."""
_LISTED: Final = 25


class FlowRunsQuery(StrictModel):
    """The query of a flow's page: its runs behind one of them; by default the newest."""

    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedFlow:
    """A flow with the numbers of its runs by state, among the newest ones of its app."""

    app: str
    flow: str
    nodes: int
    counts: dict[RowPhase, int]


def shelf_of(call: WebCall) -> FlowShelf:
    """Return the flows that this process has shown."""
    found: FlowShelf = call.api.kept.setdefault(FlowShelf, FlowShelf())
    return found


async def show_flows(call: WebCall, _: NoQuery, __: None) -> Done:
    """Return the page of flows."""
    found = []
    for app, flows in flows_of(call.runtime).items():
        among = RunFilter(type=app, tenant=call.principal.tenant)
        rows = await call.runtime.store.lists.runs(among=among, limit=COUNTED)
        counts = Counter((flow_of(row), phase_of(row)) for row in rows)
        for name, spec in flows.specs.items():
            own = {phase: n for (flow, phase), n in counts.items() if flow == name}
            found.append(CountedFlow(app=app, flow=name, nodes=len(spec.nodes), counts=own))
    return page(call.request, "graphs/flows.html", flows=found, counted=COUNTED)


async def show_flow(call: WebCall, query: FlowRunsQuery, _: None) -> Done:
    """Return the page of a flow."""
    if query.after is not None and not is_name(query.after):
        raise NoSuchRunError(query.after[:100])
    flow = call.names["flow"]
    app = app_of(call, flow, call.names["flow_app"])
    shown = shelf_of(call).shown(flows_of(call.runtime)[app], flow)
    assert shown is not None
    after = None if query.after is None else RunId(query.after)
    among = RunFilter(type=app, tenant=call.principal.tenant, after=after)
    runs = await flow_runs(call.runtime.store.lists, among, flow=flow, limit=_LISTED)
    marks = GraphMarks(notes={one.name: one.kind for one in shown.nodes})
    title = f"Drawing of the flow {flow}; the list of nodes says the same"
    return page(
        call.request,
        "graphs/flow.html",
        app=app,
        flow=flow,
        shown=shown,
        svg=None if shown.layout is None else svg_of(shown.layout, marks, title=title),
        runs=[(row, phase_of(row)) for row in runs.rows],
        next=runs.next,
    )
