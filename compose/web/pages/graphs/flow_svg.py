"""Drawings of served and installed flows, as SVG files."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from actors.runtime.loop.tasks import in_thread
from actors.workflow.machine.spec import RetryPolicy, WorkflowSpec
from compose.web.endpoint import Done, NoQuery, WebCall, WebEndpoint
from compose.web.graphs.installs import spec_named
from compose.web.pages.graphs.drawing import GraphMarks, standalone, svg_of
from compose.web.pages.graphs.flow_shelf import shown_flow
from compose.web.problems import HttpProblem, ProblemError

_SVG: Final = "image/svg+xml"
_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "x-content-type-options": "nosniff",
}


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
