"""Flows that are served or installed: list, install, show, remove, and the start of their runs.

The graphs of installed flows are cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import MethodType
from typing import Final, Literal, TypeAlias

from pydantic import Field, JsonValue, field_validator
from starlette.responses import Response

from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime.runtime import Runtime, host_of
from actors._workflow.bundles import (
    INSTALLED_APP,
    BundleRecord,
    StoredBundles,
    WorkflowBundleError,
    WorkflowBundleManifest,
    WorkflowBundleRegistryError,
    packed_flow,
)
from actors._workflow.bundles.bundle import input_schema
from actors._workflow.bundles.packing import unpacked
from actors._workflow.bundles.stored import BUNDLE_TYPE, inputs_of
from actors._workflow.bundles.stored import graphs_of as loaded_graphs
from actors._workflow.documents.findings import FlowError
from actors._workflow.hosted.flow_address import flow_address
from actors._workflow.hosted.flows import Flows
from actors._workflow.hosted.ledger_feed import run_of_id
from actors._workflow.hosted.runs import FlowRuns
from actors._workflow.machine.spec import WorkflowSpec
from actors._workflow.machine.variables import check_callers
from compose._web.endpoint import Endpoints, ShownModel, StrictModel, WebCall, json_response
from compose._web.problems import HttpProblem, ProblemError
from compose._web.requests import read_body
from compose._web.resources.artifacts import NEVER_SHOWN
from compose._web.resources.runs import KEY

endpoint: Final = Endpoints()

MOST_KEPT: Final = 32
"""Maximum number of bundles whose graphs a process caches."""
RowPhase: TypeAlias = Literal["running", "completed", "failed", "cancelled"]
"""The status of a run in its row. There a waiting run is ``running``."""
GraphPhase: TypeAlias = RowPhase | Literal["waiting"]
"""The status of a run. Lists read rows only, so they never show ``waiting``."""
_ENDED: Final[Mapping[RunStatus, RowPhase]] = {
    RunStatus.COMPLETED: "completed",
    RunStatus.FAILED: "failed",
    RunStatus.CANCELLED: "cancelled",
}
MAX_BUNDLE_BYTES: Final = 64 * 2**20
"""Largest body of an install."""
_OCTETS: Final = "application/octet-stream"
_CORRECT: Final = "correct the flow; `callboard flows check` finds the same mistakes"
_FLOWS: Final = "/v1/flows"
_FLOW: Final = f"{_FLOWS}/{{flow}}"


class InstalledFlowJson(ShownModel):
    """An installed bundle of flows.

    Attributes:
        flow: ``id@version`` of the bundle, which names its entry flow.
        hash: SHA-256 of the bundle's content.
        title: Title of the entry flow.
        flows: Names of all flows of the bundle.
        interfaces: Names of the interfaces that the entry flow implements.
        size_bytes: Size of the bundle's file.
        installed_by: The principal that installed it; empty if it is not installed.
        installed_at: The instant of the install; null if it is not installed.
        manifest: The bundle's manifest.
    """

    flow: str
    hash: str
    title: str
    flows: list[str]
    interfaces: list[str]
    size_bytes: int
    installed_by: str
    installed_at: datetime | None
    manifest: WorkflowBundleManifest


@dataclass(slots=True)
class InstalledGraphs:
    """Cache of the graphs of installed flows in one process.

    Attributes:
        installing: Lock around the check of a bundle, so that a process unpacks one bundle at a time.
        specs_by_hash: Graphs by the hash of their bundle, in the order of their last use.
    """

    installing: asyncio.Lock = field(default_factory=asyncio.Lock)
    specs_by_hash: dict[str, Mapping[str, WorkflowSpec]] = field(default_factory=dict)


def bundles_of(call: WebCall) -> StoredBundles:
    """Return the installed bundles of the principal's tenant."""
    store = call.runtime.store
    return StoredBundles(store.data.flow_bundles, store.data.artifacts, call.principal.tenant)


def graphs_of(call: WebCall) -> InstalledGraphs:
    """Return this process's cache of installed flows."""
    cache: InstalledGraphs = call.api.caches.setdefault(InstalledGraphs, InstalledGraphs())
    return cache


async def specs_of(call: WebCall, record: BundleRecord) -> Mapping[str, WorkflowSpec]:
    """Return the graphs of a bundle by name.

    Raises:
        WorkflowBundleRegistryError: The bundle was removed meanwhile.
        FlowError: A flow of the bundle cannot be compiled here.
    """
    cache = graphs_of(call).specs_by_hash
    # Removed and added again: the order of the cache is the order of use.
    specs = cache.pop(record.hash, None)
    if specs is None:
        specs = await loaded_graphs(bundles_of(call), record)
    cache[record.hash] = specs
    if len(cache) > MOST_KEPT:
        del cache[next(iter(cache))]
    return specs


async def installed_spec(call: WebCall, flow: str) -> WorkflowSpec | None:
    """Return the graph of an installed flow; None if no installed flow has this name."""
    match = await bundles_of(call).find_flow(flow)
    if match is None:
        return None
    record, flow_id = match
    return (await specs_of(call, record)).get(record.manifest.graph_names[flow_id])


def bundle_json(record: BundleRecord) -> InstalledFlowJson:
    """Return a bundle in the form in which clients receive it."""
    manifest = record.manifest
    return InstalledFlowJson(
        flow=manifest.ref,
        hash=record.hash,
        title=manifest.entry.name or manifest.bundle_id,
        flows=sorted(manifest.graph_names.values()),
        interfaces=[*manifest.entry.interfaces],
        size_bytes=record.size_bytes,
        installed_by=record.installed_by,
        installed_at=record.installed_at,
        manifest=manifest,
    )


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
    # The factory of an app of flows is a method of its `Flows`.
    owners_by_app = {
        app: factory.__self__
        for app, factory in factories.items()
        if isinstance(factory, MethodType)
    }
    return {app: flows for app, flows in sorted(owners_by_app.items()) if isinstance(flows, Flows)}


def flow_apps(call: WebCall, app: str | None = None) -> list[str]:
    """Return the apps whose runs a request may name: those served here, and that of installed flows.

    Args:
        call: The request.
        app: Only this app, or None for all. A client's own application serves none, and may name any.
    """
    if app is not None and call.api.is_client:
        return [app]
    return [name for name in (INSTALLED_APP, *flows_of(call.runtime)) if app in {None, name}]


def app_of(call: WebCall, flow: str, app: str | None) -> str:
    """Return the app that has a flow.

    Raises:
        ProblemError: No app has the flow, or several have it and none was named.
    """
    flows_by_app = flows_of(call.runtime)
    apps = [
        name for name, flows in flows_by_app.items() if flow in flows.specs and app in (None, name)
    ]
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
        ProblemError: No app has the flow, or several have it and none was named.
    """
    if call.api.is_client and app not in {None, INSTALLED_APP}:
        return app, flow
    flows_by_app = flows_of(call.runtime)
    if app == INSTALLED_APP or not any(flow in flows.specs for flows in flows_by_app.values()):
        match = await bundles_of(call).find_flow(flow) if app in {None, INSTALLED_APP} else None
        if match is not None:
            record, flow_id = match
            return INSTALLED_APP, record.manifest.graph_names[flow_id]
    return app_of(call, flow, app), flow


def unknown_flow(flow: str) -> ProblemError:
    """Return the error to raise for an unknown flow."""
    problem, remedy = f"no flow {flow} is served here or installed", "GET /v1/flows lists flows"
    return ProblemError(HttpProblem(404, "unknown_flow", problem, remedy, flow))


def phase_of(row: RunRow) -> RowPhase:
    """Return the status of a run according to its row."""
    return _ENDED.get(row.status, "running")


def run_name_json(row: RunRow) -> GraphRunNameJson:
    """Return the id and status of a run."""
    return GraphRunNameJson(run=row.run_id, status=phase_of(row))


def _flows_json(app: str, flows: Flows) -> list[FlowJson]:
    return [
        FlowJson(
            flow=name, app=app, entry=spec.entry_node, nodes=sorted(spec.nodes), hash=spec.hash
        )
        for name, spec in flows.specs.items()
    ]


@endpoint.get("/v1/flows", scope="flows:run")
async def list_flows(call: WebCall) -> FlowsJson:
    """List flows, with their nodes.

    Descriptions are cached per app, because a hash reads the source of all nodes.
    """
    cache: dict[str, tuple[Flows, list[FlowJson]]] = call.api.caches.setdefault(FlowJson, {})
    flow_models: list[FlowJson] = []
    for app, flows in flows_of(call.runtime).items():
        # Other flows may have been registered for the app since.
        if app not in cache or cache[app][0] is not flows:
            cache[app] = flows, _flows_json(app, flows)
        flow_models += cache[app][1]
    installed_flows = [bundle_json(record) for record in await bundles_of(call).list()]
    return FlowsJson(
        flows=sorted(flow_models, key=lambda flow: (flow.flow, flow.app)), installed=installed_flows
    )


@endpoint.post("/v1/flows/{flow}/runs", scope="flows:run", action=None, status=201)
async def start(
    call: WebCall, query: OfFlowApp, body: NewGraphRunJson
) -> GraphRunNameJson | Response:
    """Start a run of a flow; a repeated Idempotency-Key returns the same run.

    Respond 201, or 200 if the Idempotency-Key has started it before.
    """
    app, flow = await start_at(call, call.names["flow"], query.app)
    runs = FlowRuns(call.runtime, app, tenant=call.principal.tenant)
    owner_ids = {"actor_id": body.actor_id, "session_id": body.session_id}
    return await start_once(
        call, app, flow, lambda key: runs.start(flow, vars=body.vars, id=key, **owner_ids)
    )


async def start_once(
    call: WebCall, app: str, flow: str, start: Callable[[str | None], Awaitable[RunId]]
) -> Response:
    """Start a flow run: 201, or 200 with the run that the request's Idempotency-Key has started before."""
    key = call.request.headers.get(KEY)
    if key is not None:
        agent = flow_address(app, flow, key, call.principal.tenant)
        existing = await run_of_id(call.runtime.store.lists, agent)
        if existing is not None:
            return json_response(run_name_json(existing), headers=_location(existing.run_id))
    run_id = await start(key)
    new_run = GraphRunNameJson(run=run_id, status="running")
    return json_response(new_run, 201, _location(run_id))


def _location(run_id: RunId) -> dict[str, str]:
    return {"location": f"/v1/graph-runs/{run_id}"}


class InputSchemaJson(ShownModel):
    """The JSON Schema of the initial vars of a flow's runs."""

    type: Literal["object"]
    properties: dict[str, JsonValue]
    additionalProperties: bool  # noqa: N815 - the name of JSON Schema


class InstallQuery(StrictModel):
    """The query of an install.

    Attributes:
        version: The version of a flow document that has none.
        dry_run: Check the flow and install nothing.
    """

    version: str | None = None
    dry_run: bool = False


@endpoint.post(_FLOWS, scope="flows:install", action="flow.install", status=201, takes=_OCTETS)
async def install(call: WebCall, query: InstallQuery) -> InstalledFlowJson | Response:
    """Install a flow document, a VisualFlow or a bundle.

    Respond 201, or 200 if the same content is already installed, or for a dry run.
    """
    data = await read_body(call.request, MAX_BUNDLE_BYTES)
    try:
        async with graphs_of(call).installing:
            bundle_data = await unpacked(partial(packed_flow, version=query.version), data)
            record, is_new = await bundles_of(call).install(
                bundle_data, by=call.principal.name, dry_run=query.dry_run
            )
            if query.dry_run:
                return json_response(bundle_json(record))
            if is_new:
                after = {"version": record.manifest.bundle_version, "hash": record.hash}
                call.audit(_thing(record), after=after)
    except FlowError as exc:
        errors = [
            {
                "where": f"{finding.file}#{finding.pointer}",
                "problem": finding.problem,
                "remedy": finding.remedy,
            }
            for finding in exc.findings
        ]
        detail = "; ".join(f"{error['where']}: {error['problem']}" for error in errors[:3])
        raise ProblemError(
            HttpProblem(422, "flow_refused", detail, _CORRECT, errors=errors)
        ) from None
    except WorkflowBundleError as exc:
        problem = HttpProblem(422, "bundle_refused", f"{exc.bundle}: {exc.problem}", exc.remedy)
        raise ProblemError(problem) from None
    except WorkflowBundleRegistryError as exc:
        raise _conflict("flow_exists", exc) from None
    headers = {"location": f"/v1/flows/{record.manifest.ref}"}
    return json_response(bundle_json(record), 201 if is_new else 200, headers)


@endpoint.get(_FLOW, scope="flows:run")
async def show(call: WebCall) -> InstalledFlowJson:
    """Show an installed flow."""
    return bundle_json(await _find_bundle(call))


@endpoint.get(f"{_FLOW}/bundle", scope="flows:run", media_type=BUNDLE_TYPE)
async def download(call: WebCall) -> Response:
    """Download the bundle of an installed flow."""
    record = await _find_bundle(call)
    headers = {
        "content-disposition": f'attachment; filename="{record.manifest.ref}.flow"',
        **NEVER_SHOWN,
    }
    try:
        data = await bundles_of(call).read(record)
    except WorkflowBundleRegistryError:  # removed meanwhile
        raise unknown_flow(call.names["flow"]) from None
    return Response(data, headers=headers, media_type=BUNDLE_TYPE)


@endpoint.get(f"{_FLOW}/schema", scope="flows:run")
async def schema(call: WebCall) -> InputSchemaJson:
    """Return the JSON Schema of the initial vars of a flow's runs."""
    match = await bundles_of(call).find_flow(call.names["flow"])
    if match is None:
        await spec_named(call)
        schema_json = input_schema({})
    else:
        record, flow_id = match
        schema_json = await inputs_of(bundles_of(call), record, flow_id)
    return InputSchemaJson.model_validate(schema_json)


@endpoint.delete(_FLOW, scope="flows:install", action="flow.remove", status=204)
async def remove(call: WebCall) -> Response:
    """Remove an installed flow.

    A name without a version removes all versions. A version with open runs is not removed.
    """
    flow, bundles = call.names["flow"], bundles_of(call)
    records = await bundles.versions(flow)
    if not records:
        raise unknown_flow(flow)
    call.audit(_thing(records[0]), before={"flow": flow, "hash": records[0].hash})
    try:
        if not await bundles.remove_found(records):
            raise unknown_flow(flow)
    except WorkflowBundleRegistryError as exc:
        raise _conflict("open_runs", exc) from None
    return Response(status_code=204)


async def _find_bundle(call: WebCall) -> BundleRecord:
    match = await bundles_of(call).find_flow(call.names["flow"])
    if match is None:
        raise unknown_flow(call.names["flow"])
    return match[0]


def _thing(record: BundleRecord) -> str:
    return f"flow:{record.manifest.bundle_id}"


async def spec_named(call: WebCall) -> WorkflowSpec:
    """Return the graph of the served or installed flow that the path names."""
    flow = call.names["flow"]
    specs = (flows.specs[flow] for flows in flows_of(call.runtime).values() if flow in flows.specs)
    spec = next(specs, None) or await installed_spec(call, flow)
    if spec is None:
        raise unknown_flow(flow)
    return spec


def _conflict(code: str, exc: WorkflowBundleRegistryError) -> ProblemError:
    detail = f"bundle {exc.bundle}: {exc.problem}"
    return ProblemError(HttpProblem(409, code, detail, exc.remedy, exc.bundle))
