"""`callboard flows check|draw|schema|import`: check and draw flow documents, and flows of other programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from actors._workflow.bundles import open_workflow_bundle
from actors._workflow.documents.document import FlowDocument
from actors._workflow.documents.findings import FlowFinding
from actors._workflow.machine.spec import RetryPolicy, WorkflowSpec
from actors._workflow.visual.loading import check_flow, load_flow
from actors._workflow.visual.report import report_flow
from compose._commands.deployment import DEPLOYMENT, Deployment
from compose._commands.options import DebugFlag, Flag
from compose._commands.output import Exit, NoDataError, print_json
from compose._commands.terminal import print_table, say


async def check(
    *files: Path, version: str | None = None, deployment: Deployment = DEPLOYMENT
) -> int:
    """Print all mistakes of flow documents and of VisualFlow. The exit code is 1 if there is an error.

    With `--server` or a database it checks whether the files would be installed there, also bundles, and
    installs nothing.

    `--json` prints one JSON object: `findings`, each with file, pointer, problem, remedy and level.

    Examples: `callboard flows check refund.json flows/*.yaml`; `callboard flows check refund.json --json`;
    `callboard flows check refund.json --server http://127.0.0.1:8123`

    Parameters
    ----------
    files
        Flow documents: JSON, or YAML if the name ends with .yaml or .yml; or VisualFlow JSON.
    version
        With --server or a database: version of a flow whose document has no version.
    """
    if not files:
        raise NoDataError("no file was named: give the path of a flow document")
    findings: list[FlowFinding] = []
    if deployment.is_named:
        from compose._client.callboard import InstalledBundles  # noqa: PLC0415 - as in `Deployment.open`

        async with deployment.open() as callboard:
            bundles = InstalledBundles(callboard)
            for file in files:
                findings += await bundles.mistakes(str(file), _read(file), version)
    else:
        for file in files:
            with _reading(file, "a flow document"):
                findings += check_flow(file)
    if deployment.json:
        print_json({"findings": [finding.to_dict() for finding in findings]})
    for finding in [] if deployment.json else findings:
        say(f"{finding.level}: {finding}" if finding.level == "warning" else str(finding))
    is_refused = any(finding.level == "error" for finding in findings)
    if not deployment.json and not is_refused:
        say(f"{len(files)} flow document{'s are' if len(files) > 1 else ' is'} right")
    return Exit.FAILED if is_refused else Exit.OK


def schema(*, json: Flag = False, debug: DebugFlag = False) -> int:
    """Print the JSON Schema of flow documents, for editors.

    Example: `callboard flows schema > flow.schema.json`

    Parameters
    ----------
    json
        Accepted without effect, because the output is always JSON.
    """
    del json, debug
    print_json(FlowDocument.model_json_schema())
    return Exit.OK


async def draw(
    file: Path,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    flow: str | None = None,
    deployment: Deployment = DEPLOYMENT,
) -> int:
    """Draw a flow as SVG, like the pages of `callboard serve`. The command needs the extra `web`.

    `--json` prints one JSON object with name and drawing.

    Examples: `callboard flows draw refund.json -o refund.svg`;
    `callboard flows draw shop.flow --flow refund > refund.svg`;
    `callboard flows draw refund@1.2 --server http://127.0.0.1:8123 -o refund.svg`

    Parameters
    ----------
    file
        A flow document or a bundle. With --server: a flow of the server, by the name ID, ID@VERSION or
        ID@VERSION.FLOW. The server draws it.
    output
        The file to write. Default: standard output.
    flow
        The flow of a bundle. Default: the bundle's entry flow.
    """
    deployment.refuse_with_server(flow=flow)
    if deployment.server is not None:
        name = str(file)
        async with deployment.open() as callboard:
            svg = await callboard.flows.svg(name)
    else:
        with _reading(file):
            if file.suffix == ".flow":
                bundle = open_workflow_bundle(file)
                spec = bundle.spec(flow or bundle.manifest.entry.flow_id)
            else:
                spec = load_flow(file)
        name, svg = spec.workflow_id, _draw_svg(spec, file)
    if output is not None:
        try:
            output.write_text(svg, encoding="utf-8")
        except OSError as exc:
            raise NoDataError(f"{output}: {exc.strerror or exc}. Name another file") from exc
    elif deployment.json:
        print_json({"flow": name, "svg": svg})
    else:
        sys.stdout.write(svg)
    return Exit.OK


def _draw_svg(spec: WorkflowSpec, file: Path) -> str:
    from compose._web.pages.flows.drawing import GraphMarks, standalone, svg_of  # noqa: PLC0415 - of an extra
    from compose._web.pages.flows.flows import shown_flow  # noqa: PLC0415

    flow = shown_flow(spec, RetryPolicy())
    if flow.layout is None:
        problem = f"{file}: it is too large to be drawn, or the package graphlay is not installed"
        raise NoDataError(f"{problem}. Install callboard[web]")
    notes = {node.name: node.kind for node in flow.nodes}
    return standalone(svg_of(flow.layout, GraphMarks(notes=notes), title=spec.workflow_id))


def _read(file: Path) -> bytes:
    with _reading(file):
        return file.read_bytes()


@contextmanager
def _reading(file: Path, what: str = "a flow") -> Iterator[None]:
    """Convert an OSError to a NoDataError that names the file."""
    try:
        yield
    except OSError as exc:
        raise NoDataError(f"{file}: {exc.strerror or exc}. Give the path of {what}") from exc


def import_flow(*, report: Path, json: Flag = False, debug: DebugFlag = False) -> int:
    """Report the features that a VisualFlow uses, node by node, and the unsupported ones.

    The exit code is 1 if a feature is not supported. The command writes nothing. A flow without unsupported
    features runs without changes: pack it, or let a host serve it.

    Examples: `callboard flows import --report drawn.json`; `callboard flows import --report drawn.json --json`

    Parameters
    ----------
    report
        JSON file of the VisualFlow.
    json
        Print one JSON object: `supported`, `types`, `nodes` with id, type, needs and findings, and `findings`.
    """
    del debug  # `compose._cli` reads this option for every command
    try:
        flow_report = report_flow(report)
    except OSError as exc:
        problem = f"{report}: {exc.strerror or exc}"
        raise NoDataError(f"{problem}. Give the path of a VisualFlow") from exc
    if json:
        print_json(flow_report.to_dict())
        return Exit.OK if flow_report.is_supported else Exit.FAILED
    rows = [
        (node.id, node.type, "yes" if node.is_supported else "no", node.needs or "-")
        for node in flow_report.nodes
    ]
    print_table(("NODE", "TYPE", "SUPPORTED", "NEEDS"), rows, empty_text="no nodes")
    for finding in [*flow_report.others, *(f for node in flow_report.nodes for f in node.findings)]:
        say(f"{finding.level}: {finding}")
    refused = sum(not node.is_supported for node in flow_report.nodes)
    if flow_report.is_supported:
        say(f"{flow_report.file}: all of it is supported")
    else:
        say(f"{flow_report.file}: not supported as it is; nodes: {refused} of {len(rows)}")
    return Exit.OK if flow_report.is_supported else Exit.FAILED
