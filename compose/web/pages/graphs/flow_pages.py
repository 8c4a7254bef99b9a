"""The pages of flows: the list, and a flow with its nodes, drawing and runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from actors.kernel.runtime.ids import RunId
from actors.kernel.stores.runs import RunFilter
from actors.kernel.text import is_name
from actors.kernel.workflow.errors import NoSuchRunError
from actors.workflow.bundles import INSTALLED_APP
from actors.workflow.hosted.ledger_feed import flow_of, flow_runs
from compose.web.endpoint import Done, NoQuery, StrictModel, WebCall
from compose.web.graphs.bundles import bundles_of, installed_spec
from compose.web.graphs.flows import RowPhase, app_of, flows_of, phase_of
from compose.web.pages.graphs.drawing import GraphMarks, svg_of
from compose.web.pages.graphs.flow_shelf import FlowShelf, ShownFlow
from compose.web.pages.html import page

COUNTED: Final = 500
"""Number of an app's newest runs that are counted by status."""
_LISTED: Final = 25


class FlowRunsQuery(StrictModel):
    """The query of a flow's page: the run after which its list of runs starts; by default the newest run."""

    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedFlow:
    """A flow, and the numbers of its runs by status among the newest runs of its app.

    `nodes`, the number of nodes, is None for an installed flow, because the list does not read bundles.
    """

    app: str
    flow: str
    nodes: int | None
    counts: dict[RowPhase, int]


def shelf_of(call: WebCall) -> FlowShelf:
    """Return this process's cache of shown flows."""
    found: FlowShelf = call.api.kept.setdefault(FlowShelf, FlowShelf())
    return found


async def show_flows(call: WebCall, _: NoQuery, __: None) -> Done:
    """Return the page of flows: the flows that are served here, and the installed flows."""
    nodes: dict[str, dict[str, int | None]] = {
        app: {name: len(spec.nodes) for name, spec in flows.specs.items()}
        for app, flows in flows_of(call.runtime).items()
    }
    for record in await bundles_of(call).list():
        names = record.manifest.graph_names.values()
        nodes.setdefault(INSTALLED_APP, {}).update(dict.fromkeys(names))
    found = []
    for app, flows in nodes.items():
        among = RunFilter(type=app, tenant=call.principal.tenant)
        rows = await call.runtime.store.lists.runs(among=among, limit=COUNTED)
        counts = Counter((flow_of(row), phase_of(row)) for row in rows)
        for name, count in flows.items():
            own = {phase: n for (flow, phase), n in counts.items() if flow == name}
            found.append(CountedFlow(app=app, flow=name, nodes=count, counts=own))
    return page(call.request, "graphs/flows.html", flows=found, counted=COUNTED)


async def _shown(call: WebCall) -> tuple[str, str, ShownFlow]:
    """Return the app, the full name and the description of the flow that the path names."""
    app, flow = call.names["flow_app"], call.names["flow"]
    if app == INSTALLED_APP and (spec := await installed_spec(call, flow)) is not None:
        return app, spec.workflow_id, await shelf_of(call).installed(spec)
    app = app_of(call, flow, app)
    shown = await shelf_of(call).shown(flows_of(call.runtime)[app], flow)
    assert shown is not None
    return app, flow, shown


async def show_flow(call: WebCall, query: FlowRunsQuery, _: None) -> Done:
    """Return the page of a flow."""
    if query.after is not None and not is_name(query.after):
        raise NoSuchRunError(query.after[:100])
    app, flow, shown = await _shown(call)
    after = None if query.after is None else RunId(query.after)
    among = RunFilter(type=app, tenant=call.principal.tenant, after=after)
    runs = await flow_runs(call.runtime.store.lists, among, flow=flow, limit=_LISTED)
    marks = GraphMarks(notes={one.name: one.kind for one in shown.nodes})
    title = f"Drawing of the flow {flow}; the list of nodes has the same content"
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
