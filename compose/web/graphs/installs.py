"""Flows that are installed over HTTP, shown, drawn and removed."""

from __future__ import annotations

from functools import partial
from typing import Final

from pydantic import JsonValue
from starlette.responses import JSONResponse, Response

from actors.workflow.bundles import (
    BundleRecord,
    WorkflowBundleError,
    WorkflowBundleRegistryError,
    packed_flow,
)
from actors.workflow.bundles.inputs import input_schema
from actors.workflow.bundles.unpacking import unpacked
from actors.workflow.documents.findings import FlowError
from actors.workflow.machine.policy import RetryPolicy
from actors.workflow.machine.spec import WorkflowSpec
from compose.web.endpoint import Done, NoQuery, StrictModel, WebCall, WebEndpoint, json_response
from compose.web.graphs.bundles import (
    InstalledFlowJson,
    bundles_of,
    graphs_of,
    installed_spec,
    shown_bundle,
)
from compose.web.graphs.flows import flows_of, unknown_flow
from compose.web.limits import read_body
from compose.web.problems import HttpProblem, ProblemError

MAX_BUNDLE_BYTES: Final = 64 * 2**20
"""Of the body of an install."""
_OCTETS: Final = "application/octet-stream"
_CORRECT: Final = "correct the flow; `callboard flows check` finds the same mistakes"
_SVG: Final = "image/svg+xml"
_SCHEMA: Final = "application/schema+json"
_NOT_KEPT: Final = {"cache-control": "no-store"}


class InstallQuery(StrictModel):
    """The query of an install: the version of a flow that says none."""

    version: str | None = None


async def install(call: WebCall, query: InstallQuery, _: None) -> Done:
    """Install a flow: 201, or 200 if the same content is installed already."""
    data = await read_body(call.request, MAX_BUNDLE_BYTES)
    try:
        async with graphs_of(call).installing:
            packed = await unpacked(partial(packed_flow, version=query.version), data)
            record, is_new = await bundles_of(call).install(packed, by=call.principal.name)
    except FlowError as exc:
        found = [
            {"where": f"{one.file}#{one.pointer}", "problem": one.problem, "remedy": one.remedy}
            for one in exc.findings
        ]
        detail = "; ".join(f"{one['where']}: {one['problem']}" for one in found[:3])
        raise ProblemError(
            HttpProblem(422, "flow_refused", detail, _CORRECT, errors=found)
        ) from None
    except WorkflowBundleError as exc:
        problem = HttpProblem(422, "bundle_refused", f"{exc.bundle}: {exc.problem}", exc.remedy)
        raise ProblemError(problem) from None
    except WorkflowBundleRegistryError as exc:
        raise _conflict("flow_exists", exc) from None
    place = {"location": f"/v1/flows/{record.manifest.ref}"}
    return json_response(shown_bundle(record), 201 if is_new else 200, place)


async def show(call: WebCall, _: NoQuery, __: None) -> Done:
    """Return an installed bundle."""
    return shown_bundle(await _found(call))


async def draw(call: WebCall, _: NoQuery, __: None) -> Done:
    """Return the drawing of a flow."""
    try:
        from compose.web.pages.graphs.drawing import GraphMarks, standalone, svg_of  # noqa: PLC0415 - an extra
        from compose.web.pages.graphs.flow_shelf import shown_flow  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        raise _not_drawn(501, f"there is no package {exc.name!r} here") from exc
    spec = await _spec(call)
    shown = shown_flow(spec, RetryPolicy())
    if shown.layout is None:
        raise _not_drawn(422, f"flow {spec.workflow_id} is too large to be drawn")
    notes = {one.name: one.kind for one in shown.nodes}
    svg = standalone(svg_of(shown.layout, GraphMarks(notes=notes), title=spec.workflow_id))
    headers = {
        **_NOT_KEPT,
        "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    }
    return Response(svg, media_type=_SVG, headers=headers)


async def schema(call: WebCall, _: NoQuery, __: None) -> Done:
    """Return the JSON Schema of the vars that a run of a flow begins with."""
    found = await bundles_of(call).find_flow(call.names["flow"])
    told: dict[str, JsonValue]
    if found is None:
        await _spec(call)
        told = input_schema({})
    else:
        record, flow_id = found
        bundle = await bundles_of(call).load(record)
        told = input_schema(bundle.flow_json(flow_id))
    return JSONResponse(told, headers=_NOT_KEPT, media_type=_SCHEMA)


async def remove(call: WebCall, _: NoQuery, __: None) -> Done:
    """Remove a version of a bundle, or all by its id. One with open runs stays."""
    try:
        if not await bundles_of(call).remove(call.names["flow"]):
            raise unknown_flow(call.names["flow"])
    except WorkflowBundleRegistryError as exc:
        raise _conflict("open_runs", exc) from None
    return Response(status_code=204)


async def _found(call: WebCall) -> BundleRecord:
    found = await bundles_of(call).find_flow(call.names["flow"])
    if found is None:
        raise unknown_flow(call.names["flow"])
    return found[0]


async def _spec(call: WebCall) -> WorkflowSpec:
    """Return the graph that the path names: of a flow that is served here, or installed."""
    flow = call.names["flow"]
    served = (one.specs[flow] for one in flows_of(call.runtime).values() if flow in one.specs)
    spec = next(served, None) or await installed_spec(call, flow)
    if spec is None:
        raise unknown_flow(flow)
    return spec


def _conflict(code: str, exc: WorkflowBundleRegistryError) -> ProblemError:
    detail = f"bundle {exc.bundle}: {exc.problem}"
    return ProblemError(HttpProblem(409, code, detail, exc.remedy, exc.bundle))


def _not_drawn(status: int, why: str) -> ProblemError:
    return ProblemError(HttpProblem(status, "not_drawn", why, "pip install 'callboard[web]'"))


_FLOWS: Final = "/v1/flows"
_FLOW: Final = f"{_FLOWS}/{{flow}}"
ENDPOINTS: Final = (
    WebEndpoint(
        method="POST",
        path=_FLOWS,
        call=install,
        says="Install a flow document, a VisualFlow or a bundle.",
        query=InstallQuery,
        answer=InstalledFlowJson,
        status=201,
        takes=_OCTETS,
    ),
    WebEndpoint(
        method="GET",
        path=_FLOW,
        call=show,
        says="Show an installed flow.",
        answer=InstalledFlowJson,
    ),
    WebEndpoint(method="GET", path=f"{_FLOW}/svg", call=draw, says="Draw a flow.", media_type=_SVG),
    WebEndpoint(
        method="GET",
        path=f"{_FLOW}/schema",
        call=schema,
        says="Return the JSON Schema of the vars that runs of a flow begin with.",
        media_type=_SCHEMA,
    ),
    WebEndpoint(
        method="DELETE", path=_FLOW, call=remove, says="Remove an installed flow.", status=204
    ),
)
