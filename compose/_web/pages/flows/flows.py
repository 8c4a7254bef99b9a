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
from compose._web.endpoint import Done, NoQuery, StrictModel, WebCall, WebEndpoint
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
from compose._web.pages.html import page
from compose._web.problems import HttpProblem, ProblemError

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
    return page(call.request, "flows/flows.html", flows=found, counted=COUNTED)


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
        "flows/flow.html",
        app=app,
        flow=flow,
        shown=shown,
        svg=None if shown.layout is None else svg_of(shown.layout, marks, title=title),
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
        self._kept: dict[tuple[str, str], ShownFlow] = {}
        self._installed: dict[str, ShownFlow] = {}

    async def shown(self, app: Flows, flow: str) -> ShownFlow | None:
        """Return a flow of an app; None if the app no longer has it."""
        spec = app.specs.get(flow)
        if spec is None:
            return None
        known = self._kept.get((app.app, flow))
        if known is None or known.spec is not spec:
            known = await in_thread(shown_flow, spec, app.effect_policy)
            self._kept[app.app, flow] = known
        return known

    async def installed(self, spec: WorkflowSpec) -> ShownFlow:
        """Return an installed flow."""
        known = self._installed.pop(spec.workflow_id, None)
        if known is None or known.spec is not spec:
            known = await in_thread(shown_flow, spec, RetryPolicy())
        self._installed[spec.workflow_id] = known
        if len(self._installed) > MOST_INSTALLED:
            del self._installed[next(iter(self._installed))]
        return known


def shown_flow(spec: WorkflowSpec, policy: EffectPolicy) -> ShownFlow:
    """Return a flow with its layout. `policy` gives the number of attempts of effects."""
    nodes = sorted(facts_of(spec, policy), key=lambda one: one.name != spec.entry_node)
    edges = [(one.name, target) for one in nodes for target in one.goes_to]
    layout = layout_of([one.name for one in nodes], edges)
    return ShownFlow(
        spec=spec, hash=spec.hash, nodes=tuple(nodes), edges=frozenset(edges), layout=layout
    )


async def draw(call: WebCall, _: NoQuery, __: None) -> Done:
    """Return the drawing of a flow."""
    spec = await spec_named(call)
    svg = await in_thread(_drawing_of, spec)
    if svg is None:
        problem = f"flow {spec.workflow_id} is too large to be drawn, or graphlay is not installed"
        remedy = "pip install 'callboard[web]' at the server"
        raise ProblemError(HttpProblem(422, "not_drawn", problem, remedy, spec.workflow_id))
    return Response(svg, media_type=_SVG, headers=_HEADERS)


def _drawing_of(spec: WorkflowSpec) -> str | None:
    shown = shown_flow(spec, RetryPolicy())
    if shown.layout is None:
        return None
    notes = {one.name: one.kind for one in shown.nodes}
    return standalone(svg_of(shown.layout, GraphMarks(notes=notes), title=spec.workflow_id))


DRAWING: Final = WebEndpoint(
    method="GET", path="/v1/flows/{flow}/svg", call=draw, says="Draw a flow.", media_type=_SVG
)
