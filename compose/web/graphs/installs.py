"""Installed flows: install, show, input schema, remove."""

from __future__ import annotations

from functools import partial
from typing import Final, Literal

from pydantic import JsonValue
from starlette.responses import Response

from actors.workflow.bundles import (
    BundleRecord,
    WorkflowBundleError,
    WorkflowBundleRegistryError,
    packed_flow,
)
from actors.workflow.bundles.bundle import input_schema
from actors.workflow.bundles.packing import unpacked
from actors.workflow.bundles.stored import BUNDLE_TYPE, inputs_of
from actors.workflow.documents.findings import FlowError
from actors.workflow.machine.spec import WorkflowSpec
from compose.web.endpoint import (
    Done,
    NoQuery,
    ShownModel,
    StrictModel,
    WebCall,
    WebEndpoint,
    json_response,
)
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
from compose.web.resources.artifacts import NEVER_SHOWN

MAX_BUNDLE_BYTES: Final = 64 * 2**20
"""Largest body of an install."""
_OCTETS: Final = "application/octet-stream"
_CORRECT: Final = "correct the flow; `callboard flows check` finds the same mistakes"


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


async def install(call: WebCall, query: InstallQuery, _: None) -> Done:
    """Install a flow: 201, or 200 if the same content is already installed, or for a dry run."""
    data = await read_body(call.request, MAX_BUNDLE_BYTES)
    try:
        async with graphs_of(call).installing:
            packed = await unpacked(partial(packed_flow, version=query.version), data)
            record, is_new = await bundles_of(call).install(
                packed, by=call.principal.name, dry_run=query.dry_run
            )
            if query.dry_run:
                return json_response(shown_bundle(record))
            if is_new:
                after = {"version": record.manifest.bundle_version, "hash": record.hash}
                call.audit(_thing(record), after=after)
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


async def download(call: WebCall, _: NoQuery, __: None) -> Done:
    """Return the file of an installed bundle."""
    record = await _found(call)
    headers = {
        "content-disposition": f'attachment; filename="{record.manifest.ref}.flow"',
        **NEVER_SHOWN,
    }
    try:
        data = await bundles_of(call).read(record)
    except WorkflowBundleRegistryError:  # removed meanwhile
        raise unknown_flow(call.names["flow"]) from None
    return Response(data, headers=headers, media_type=BUNDLE_TYPE)


async def schema(call: WebCall, _: NoQuery, __: None) -> Done:
    """Return the JSON Schema of the initial vars of a flow's runs."""
    found = await bundles_of(call).find_flow(call.names["flow"])
    if found is None:
        await spec_named(call)
        told = input_schema({})
    else:
        record, flow_id = found
        told = await inputs_of(bundles_of(call), record, flow_id)
    return InputSchemaJson.model_validate(told)


async def remove(call: WebCall, _: NoQuery, __: None) -> Done:
    """Remove a version of a bundle, or all versions by its id. A version with open runs is not removed."""
    flow, bundles = call.names["flow"], bundles_of(call)
    found = await bundles.versions(flow)
    if not found:
        raise unknown_flow(flow)
    call.audit(_thing(found[0]), before={"flow": flow, "hash": found[0].hash})
    try:
        if not await bundles.remove_found(found):
            raise unknown_flow(flow)
    except WorkflowBundleRegistryError as exc:
        raise _conflict("open_runs", exc) from None
    return Response(status_code=204)


async def _found(call: WebCall) -> BundleRecord:
    found = await bundles_of(call).find_flow(call.names["flow"])
    if found is None:
        raise unknown_flow(call.names["flow"])
    return found[0]


def _thing(record: BundleRecord) -> str:
    return f"flow:{record.manifest.bundle_id}"


async def spec_named(call: WebCall) -> WorkflowSpec:
    """Return the graph of the served or installed flow that the path names."""
    flow = call.names["flow"]
    served = (one.specs[flow] for one in flows_of(call.runtime).values() if flow in one.specs)
    spec = next(served, None) or await installed_spec(call, flow)
    if spec is None:
        raise unknown_flow(flow)
    return spec


def _conflict(code: str, exc: WorkflowBundleRegistryError) -> ProblemError:
    detail = f"bundle {exc.bundle}: {exc.problem}"
    return ProblemError(HttpProblem(409, code, detail, exc.remedy, exc.bundle))


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
    WebEndpoint(
        method="GET",
        path=f"{_FLOW}/bundle",
        call=download,
        says="Download the bundle of an installed flow.",
        media_type=BUNDLE_TYPE,
    ),
    WebEndpoint(
        method="GET",
        path=f"{_FLOW}/schema",
        call=schema,
        says="Return the JSON Schema of the initial vars of a flow's runs.",
        answer=InputSchemaJson,
    ),
    WebEndpoint(
        method="DELETE", path=_FLOW, call=remove, says="Remove an installed flow.", status=204
    ),
)
