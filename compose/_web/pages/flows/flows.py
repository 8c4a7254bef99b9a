"""The pages of flows: the list, and a flow with its nodes, drawing and runs.

Facts of nodes, hash and layout are computed once per flow, in a thread, and are then cached. A drawing is also
served as an SVG file.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from actors._kernel.runtime.ids import RunId
from actors._kernel.stores.runs import RunFilter
from actors._kernel.text import is_name
from actors._kernel.workflow.errors import NoSuchRunError
from actors._runtime.loop.tasks import in_thread
from actors._workflow.bundles import INSTALLED_APP
from actors._workflow.hosted.flows import Flows
from actors._workflow.hosted.ledger_feed import flow_of, flow_runs
from actors._workflow.machine.spec import EffectPolicy, RetryPolicy, WorkflowSpec
from compose._web.endpoint import Endpoints, StrictModel, WebCall
from compose._web.flows.flows import (
    RowPhase,
    app_of,
    bundles_of,
    flows_of,
    installed_spec,
    phase_of,
    spec_named,
)
from compose._web.pages.flows.drawing import (
    Edge,
    GraphLayout,
    GraphMarks,
    NodeFacts,
    facts_of,
    layout_of,
    standalone,
    svg_of,
)
from compose._web.pages.html import PageEndpoint, page
from compose._web.problems import HttpProblem, ProblemError

endpoint: Final = Endpoints(PageEndpoint)
drawing_endpoint: Final = Endpoints()
"""The endpoint of the API that needs the packages of the pages."""

COUNTED: Final = 500
"""Number of an app's newest runs that are counted by status."""
_LISTED: Final = 25
MOST_INSTALLED: Final = 64
"""Maximum number of installed flows that are kept with their drawings."""
_SVG: Final = "image/svg+xml"
_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "x-content-type-options": "nosniff",
}


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
    shelf: FlowShelf = call.api.caches.setdefault(FlowShelf, FlowShelf())
    return shelf


@endpoint.get("/flows", scope="flows:run")
async def show_flows(call: WebCall) -> Response:
    """Return the page of flows: the flows that are served here, and the installed flows."""
    nodes: dict[str, dict[str, int | None]] = {
        app: {name: len(spec.nodes) for name, spec in flows.specs.items()}
        for app, flows in flows_of(call.runtime).items()
    }
    for record in await bundles_of(call).list():
        names = record.manifest.graph_names.values()
        nodes.setdefault(INSTALLED_APP, {}).update(dict.fromkeys(names))
    counted_flows = []
    for app, flows in nodes.items():
        run_filter = RunFilter(type=app, tenant=call.principal.tenant)
        rows = await call.runtime.store.lists.runs(among=run_filter, limit=COUNTED)
        counts = Counter((flow_of(row), phase_of(row)) for row in rows)
        for name, count in flows.items():
            counts_of_flow = {phase: n for (flow, phase), n in counts.items() if flow == name}
            counted_flows.append(
                CountedFlow(app=app, flow=name, nodes=count, counts=counts_of_flow)
            )
    return page(call.request, "flows/flows.html", flows=counted_flows, counted=COUNTED)


async def _find_flow(call: WebCall) -> tuple[str, str, ShownFlow]:
    """Return the app, the full name and the description of the flow that the path names."""
    app, flow = call.names["flow_app"], call.names["flow"]
    if app == INSTALLED_APP and (spec := await installed_spec(call, flow)) is not None:
        return app, spec.workflow_id, await shelf_of(call).find_installed(spec)
    app = app_of(call, flow, app)
    view = await shelf_of(call).find_served(flows_of(call.runtime)[app], flow)
    assert view is not None
    return app, flow, view


@endpoint.get("/flows/{flow_app}/{flow}", scope="flows:run")
async def show_flow(call: WebCall, query: FlowRunsQuery) -> Response:
    """Return the page of a flow."""
    if query.after is not None and not is_name(query.after):
        raise NoSuchRunError(query.after[:100])
    app, flow, view = await _find_flow(call)
    after = None if query.after is None else RunId(query.after)
    run_filter = RunFilter(type=app, tenant=call.principal.tenant, after=after)
    runs = await flow_runs(call.runtime.store.lists, run_filter, flow=flow, limit=_LISTED)
    marks = GraphMarks(notes={node.name: node.kind for node in view.nodes})
    title = f"Drawing of the flow {flow}; the list of nodes has the same content"
    return page(
        call.request,
        "flows/flow.html",
        app=app,
        flow=flow,
        shown=view,
        svg=None if view.layout is None else svg_of(view.layout, marks, title=title),
        runs=[(row, phase_of(row)) for row in runs.rows],
        next=runs.next,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFlow:
    """A flow in the form that pages show.

    Attributes:
        spec: The graph.
        hash: The graph's hash.
        nodes: Facts of the graph's nodes, the entry node first.
        edges: The moves that the code of nodes names.
        layout: The layout; None if the flow is not drawn.
    """

    spec: WorkflowSpec
    hash: str
    nodes: tuple[NodeFacts, ...]
    edges: frozenset[Edge]
    layout: GraphLayout | None


class FlowShelf:
    """The shown flows of this process: the served flows, and the most recently shown installed flows."""

    def __init__(self) -> None:
        self._served_flows: dict[tuple[str, str], ShownFlow] = {}
        self._installed_flows: dict[str, ShownFlow] = {}

    async def find_served(self, app: Flows, flow: str) -> ShownFlow | None:
        """Return a flow of an app; None if the app no longer has it."""
        spec = app.specs.get(flow)
        if spec is None:
            return None
        view = self._served_flows.get((app.app, flow))
        # Another graph may have been registered under the name since.
        if view is None or view.spec is not spec:
            view = await in_thread(shown_flow, spec, app.effect_policy)
            self._served_flows[app.app, flow] = view
        return view

    async def find_installed(self, spec: WorkflowSpec) -> ShownFlow:
        """Return an installed flow."""
        view = self._installed_flows.pop(spec.workflow_id, None)
        if view is None or view.spec is not spec:
            view = await in_thread(shown_flow, spec, RetryPolicy())
        self._installed_flows[spec.workflow_id] = view
        if len(self._installed_flows) > MOST_INSTALLED:
            del self._installed_flows[next(iter(self._installed_flows))]
        return view


def shown_flow(spec: WorkflowSpec, policy: EffectPolicy) -> ShownFlow:
    """Return a flow with its layout. `policy` gives the number of attempts of effects."""
    nodes = sorted(facts_of(spec, policy), key=lambda node: node.name != spec.entry_node)
    edges = [(node.name, target) for node in nodes for target in node.goes_to]
    layout = layout_of([node.name for node in nodes], edges)
    return ShownFlow(
        spec=spec, hash=spec.hash, nodes=tuple(nodes), edges=frozenset(edges), layout=layout
    )


@drawing_endpoint.get("/v1/flows/{flow}/svg", scope="flows:run", media_type=_SVG)
async def draw(call: WebCall) -> Response:
    """Return the drawing of a flow."""
    spec = await spec_named(call)
    svg = await in_thread(_drawing_of, spec)
    if svg is None:
        problem = f"flow {spec.workflow_id} is too large to be drawn, or graphlay is not installed"
        remedy = "pip install 'callboard[web]' at the server"
        raise ProblemError(HttpProblem(422, "not_drawn", problem, remedy, spec.workflow_id))
    return Response(svg, media_type=_SVG, headers=_HEADERS)


def _drawing_of(spec: WorkflowSpec) -> str | None:
    view = shown_flow(spec, RetryPolicy())
    if view.layout is None:
        return None
    notes = {node.name: node.kind for node in view.nodes}
    return standalone(svg_of(view.layout, GraphMarks(notes=notes), title=spec.workflow_id))
