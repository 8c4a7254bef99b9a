"""Flows that are served, and the start of their runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MethodType
from typing import Final, Literal, TypeAlias

from pydantic import Field, JsonValue, field_validator

from actors.kernel.runtime.ids import RunId
from actors.kernel.runtime.rows import RunRow
from actors.kernel.runtime.scheduler import RunStatus
from actors.runtime.runtime import Runtime, host_of
from actors.workflow.bundles import INSTALLED_APP
from actors.workflow.hosted.flow_address import flow_address
from actors.workflow.hosted.flows import Flows
from actors.workflow.hosted.ledger_feed import run_of_id
from actors.workflow.hosted.runs import FlowRuns
from actors.workflow.machine.variables import check_callers
from compose.web.endpoint import (
    Done,
    NoQuery,
    ShownModel,
    StrictModel,
    WebCall,
    WebEndpoint,
    json_response,
)
from compose.web.graphs.bundles import InstalledFlowJson, bundles_of, shown_bundle
from compose.web.problems import HttpProblem, ProblemError
from compose.web.resources.runs import KEY

RowPhase: TypeAlias = Literal["running", "completed", "failed", "cancelled"]
"""The status of a run in its row. There a waiting run is ``running``."""
GraphPhase: TypeAlias = RowPhase | Literal["waiting"]
"""The status of a run. Lists read rows only, so they never show ``waiting``."""

_ENDED: Final[Mapping[RunStatus, RowPhase]] = {
    RunStatus.COMPLETED: "completed",
    RunStatus.FAILED: "failed",
    RunStatus.CANCELLED: "cancelled",
}


class FlowJson(ShownModel):
    """A flow.

    Attributes:
        flow: The flow's name.
        app: The type of its runs' agents.
        entry: The node at which a run starts.
        nodes: The names of all nodes.
        hash: Hash of the nodes' names and code, 32 hexadecimal digits.
    """

    flow: str
    app: str
    entry: str
    nodes: list[str]
    hash: str


class FlowsJson(ShownModel):
    """The flows that are served here, by name, and the installed flows, newest version first."""

    flows: list[FlowJson]
    installed: list[InstalledFlowJson] = Field(default_factory=list)


class OfFlowApp(StrictModel):
    """The app of the flow that the path names. Required if two apps have a flow of this name."""

    app: str | None = None


class NewGraphRunJson(StrictModel):
    """A flow run to start.

    Attributes:
        vars: The initial vars. Names that start with an underscore are reserved for the runtime, except
            `_limits`.
        actor_id: The actor for whom the run acts.
        session_id: The session of the run, for events of the scope ``session``.
    """

    vars: dict[str, JsonValue] = Field(default_factory=dict)
    actor_id: str | None = None
    session_id: str | None = None

    @field_validator("vars")
    @classmethod
    def _are_the_callers(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        check_callers(value)
        return value


class GraphRunNameJson(ShownModel):
    """The id and status of a flow run."""

    run: str
    status: GraphPhase


def flows_of(runtime: Runtime) -> Mapping[str, Flows]:
    """Return the flows that are registered with a runtime, by app."""
    factories = host_of(runtime).worker.env.agents.factories
    owners = {app: one.__self__ for app, one in factories.items() if isinstance(one, MethodType)}
    return {app: one for app, one in sorted(owners.items()) if isinstance(one, Flows)}


def app_of(call: WebCall, flow: str, app: str | None) -> str:
    """Return the app that has a flow.

    Raises:
        ProblemError: No app has the flow, or several have it and none was named.
    """
    served = flows_of(call.runtime)
    apps = [name for name, one in served.items() if flow in one.specs and app in (None, name)]
    if not apps:
        raise unknown_flow(flow)
    if len(apps) > 1:
        problem = f"flow {flow} exists in each of the apps {', '.join(apps)}"
        raise ProblemError(
            HttpProblem(422, "ambiguous_flow", problem, "name one of them with ?app=", flow)
        )
    return apps[0]


async def start_at(call: WebCall, flow: str, app: str | None) -> tuple[str, str]:
    """Return the app and the full name of a flow that is served here or installed.

    Raises:
        ProblemError: See `app_of`.
    """
    served = flows_of(call.runtime)
    if app == INSTALLED_APP or not any(flow in one.specs for one in served.values()):
        found = await bundles_of(call).find_flow(flow) if app in {None, INSTALLED_APP} else None
        if found is not None:
            record, flow_id = found
            return INSTALLED_APP, record.manifest.graph_names[flow_id]
    return app_of(call, flow, app), flow


def unknown_flow(flow: str) -> ProblemError:
    """Return the error to raise for an unknown flow."""
    problem, remedy = f"no flow {flow} is served here or installed", "GET /v1/flows lists flows"
    return ProblemError(HttpProblem(404, "unknown_flow", problem, remedy, flow))


def phase_of(row: RunRow) -> RowPhase:
    """Return the status of a run according to its row."""
    return _ENDED.get(row.status, "running")


def named(row: RunRow) -> GraphRunNameJson:
    """Return the id and status of a run."""
    return GraphRunNameJson(run=row.run_id, status=phase_of(row))


def _told(app: str, flows: Flows) -> list[FlowJson]:
    return [
        FlowJson(
            flow=name, app=app, entry=spec.entry_node, nodes=sorted(spec.nodes), hash=spec.hash
        )
        for name, spec in flows.specs.items()
    ]


async def list_flows(call: WebCall, _: NoQuery, __: None) -> Done:
    """Return the flows. Descriptions are cached per app, because a hash reads the source of all nodes."""
    known: dict[str, tuple[Flows, list[FlowJson]]] = call.api.kept.setdefault(FlowJson, {})
    found: list[FlowJson] = []
    for app, flows in flows_of(call.runtime).items():
        if app not in known or known[app][0] is not flows:
            known[app] = flows, _told(app, flows)
        found += known[app][1]
    installed = [shown_bundle(one) for one in await bundles_of(call).list()]
    return FlowsJson(flows=sorted(found, key=lambda one: (one.flow, one.app)), installed=installed)


async def start(call: WebCall, query: OfFlowApp, body: NewGraphRunJson) -> Done:
    """Start a run durably: 201, or 200 if the Idempotency-Key has started it before."""
    app, flow = await start_at(call, call.names["flow"], query.app)
    runs = FlowRuns(call.runtime, app, tenant=call.principal.tenant)
    whose = {"actor_id": body.actor_id, "session_id": body.session_id}
    return await started_once(
        call, app, flow, lambda key: runs.start(flow, vars=body.vars, id=key, **whose)
    )


async def started_once(
    call: WebCall, app: str, flow: str, start: Callable[[str | None], Awaitable[RunId]]
) -> Done:
    """Start a flow run: 201, or 200 with the run that the request's Idempotency-Key has started before."""
    key = call.request.headers.get(KEY)
    if key is not None:
        agent = flow_address(app, flow, key, call.principal.tenant)
        known = await run_of_id(call.runtime.store.lists, agent)
        if known is not None:
            return json_response(named(known), headers=_location(known.run_id))
    run_id = await start(key)
    started = GraphRunNameJson(run=run_id, status="running")
    return json_response(started, 201, _location(run_id))


def _location(run_id: RunId) -> dict[str, str]:
    return {"location": f"/v1/graph-runs/{run_id}"}


ENDPOINTS: Final = (
    WebEndpoint(
        method="GET",
        path="/v1/flows",
        call=list_flows,
        says="List flows, with their nodes.",
        answer=FlowsJson,
    ),
    WebEndpoint(
        method="POST",
        path="/v1/flows/{flow}/runs",
        call=start,
        says="Start a run of a flow; a repeated Idempotency-Key returns the same run.",
        query=OfFlowApp,
        body=NewGraphRunJson,
        answer=GraphRunNameJson,
        status=201,
    ),
)
