"""Endpoints of the pages of flows and their runs."""

from __future__ import annotations

from typing import Final

from compose.web.pages.graphs.evidence import download_evidence
from compose.web.pages.graphs.flows import FlowRunsQuery, show_flow, show_flows
from compose.web.pages.graphs.run_page import StepQuery, show_graph_run
from compose.web.pages.html import PageEndpoint

GRAPH_PAGES: Final = (
    PageEndpoint(method="GET", path="/flows", call=show_flows, says="Flows that are served."),
    PageEndpoint(
        method="GET",
        path="/flows/{flow_app}/{flow}",
        call=show_flow,
        says="A flow: its drawing, its nodes, its runs.",
        query=FlowRunsQuery,
    ),
    PageEndpoint(
        method="GET",
        path="/graph-runs/{graph_run}",
        call=show_graph_run,
        says="A run of a flow, at one of its steps.",
        query=StepQuery,
    ),
    PageEndpoint(
        method="GET",
        path="/graph-runs/{graph_run}/evidence/{evidence}/{text}",
        call=download_evidence,
        says="A text that a tool fetched for a run.",
        media_type="text/plain",
    ),
)
