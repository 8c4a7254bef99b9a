"""An opened bundle: its manifest, its flows as graphs, and the hash of its content.

The JSON Schema of the vars that a flow begins with: the vars that it reads and never writes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from actors.workflow.bundles.archive import read_files
from actors.workflow.bundles.manifest import (
    WorkflowBundleError,
    WorkflowBundleManifest,
    read_manifest,
)
from actors.workflow.documents.compiling import compile_document
from actors.workflow.documents.document import FlowDocument, FlowNode
from actors.workflow.documents.findings import FlowError, FlowFinding, bounded
from actors.workflow.documents.reading import document_of, read_data
from actors.workflow.machine.spec import WorkflowSpec
from actors.workflow.visual.compiling import compile_drawing
from actors.workflow.visual.drawing import DrawingFindings, is_visualflow, read_drawing

MANIFEST: Final = "manifest.json"


@dataclass(frozen=True, slots=True)
class WorkflowBundle:
    """A bundle.

    Attributes:
        manifest: Its manifest.
        files: All files but the manifest, by path.
    """

    manifest: WorkflowBundleManifest
    files: Mapping[str, bytes] = field(repr=False)

    @property
    def hash(self) -> str:
        """SHA-256 of the manifest and of the paths and bytes of all files, as 64 hexadecimal digits."""
        digest = hashlib.sha256(self.manifest.model_dump_json().encode())
        for path, data in sorted(self.files.items()):
            digest.update(f"\n{path} {hashlib.sha256(data).hexdigest()}".encode())
        return digest.hexdigest()

    def flow_json(self, flow_id: str) -> Any:
        """Return a flow as JSON data.

        Raises:
            WorkflowBundleError: The bundle has no flow of this id.
            FlowError: The flow is not JSON.
        """
        data = self._data(flow_id)
        return data if is_visualflow(data) else document_of(data, self._file(flow_id)).to_dict()

    def check(self) -> None:
        """Check all flows. A VisualFlow without nodes passes, since it has not been drawn yet.

        Raises:
            FlowError: Flows have mistakes; the error has the mistakes of all flows.
        """
        findings: list[FlowFinding] = []
        for flow_id in self.manifest.flows:
            try:
                data = self._data(flow_id)
                if not _is_empty(data):
                    self._compiled(flow_id, data)
            except FlowError as exc:
                findings += exc.findings
        if findings:
            raise FlowError(tuple(bounded(findings)))

    def specs(self) -> list[WorkflowSpec]:
        """Return all flows as graphs.

        The default entry point is the graph ``id@version`` of the bundle, the others are ``id@version.flow``. A
        reference to a flow of the same bundle is resolved to that flow.

        Raises:
            FlowError: A flow has mistakes; the error has all mistakes of the first such flow.
        """
        return [self.spec(flow_id) for flow_id in self.manifest.flows]

    def drawn_specs(self) -> list[WorkflowSpec]:
        """Return all flows as graphs, except VisualFlows without nodes. See `specs`."""
        data = {one: self._data(one) for one in self.manifest.flows}
        return [self._compiled(one, flow) for one, flow in data.items() if not _is_empty(flow)]

    def spec(self, flow_id: str) -> WorkflowSpec:
        """Return a flow as a graph. See `specs`.

        Raises:
            WorkflowBundleError: The bundle has no flow of this id.
            FlowError: The flow has mistakes; the error has all of them.
        """
        return self._compiled(flow_id, self._data(flow_id))

    def _compiled(self, flow_id: str, data: Any) -> WorkflowSpec:
        names, file = self.manifest.graph_names, self._file(flow_id)
        if is_visualflow(data):
            spec, _ = compile_drawing(data, file, names)
        else:
            spec, _ = compile_document(_renamed(document_of(data, file), names), file)
        return replace(spec, workflow_id=names[flow_id])

    def _file(self, flow_id: str) -> str:
        return f"{self.manifest.ref}/{self.manifest.flows[flow_id]}"

    def _data(self, flow_id: str) -> Any:
        path = self.manifest.flows.get(flow_id)
        if path is None:
            ids = ", ".join(self.manifest.flows)
            raise WorkflowBundleError(
                self.manifest.ref, f"it has no flow {flow_id!r}", f"It has {ids}"
            )
        return read_data(self.files[path], self._file(flow_id))


def _is_empty(data: Any) -> bool:
    return is_visualflow(data) and not data["nodes"]


def _renamed(document: FlowDocument, names: Mapping[str, str]) -> FlowDocument:
    """Return a document whose references to flows are replaced by these graph names."""
    nodes = {
        name: node.model_copy(update={"flow": names[node.flow]})
        if isinstance(node, FlowNode) and node.flow in names
        else node
        for name, node in document.nodes.items()
    }
    return document.model_copy(update={"nodes": nodes})


def manifest_of(path: Path) -> WorkflowBundleManifest:
    """Return the manifest of a zip file. No other file in it is read.

    Raises:
        WorkflowBundleError: The file is not a bundle.
    """
    return _manifest_in(read_files(path, str(path), only=MANIFEST), str(path))


def open_workflow_bundle(source: str | Path | bytes) -> WorkflowBundle:
    """Read a bundle and check its manifest. `WorkflowBundle.specs` checks its flows.

    Args:
        source: The path of a zip file or of a folder, or the bytes of a zip file.

    Raises:
        WorkflowBundleError: The source is not a bundle, or it is not safe to read.
    """
    name = "bundle" if isinstance(source, bytes) else str(source)
    files = read_files(source if isinstance(source, bytes) else Path(source), name)
    manifest = _manifest_in(files, name)
    del files[MANIFEST]
    if missing := sorted({*manifest.flows.values()} - files.keys()):
        problem = f"its manifest names {missing[0]!r}, which the bundle does not have"
        raise WorkflowBundleError(name, problem, "Pack it again")
    return WorkflowBundle(manifest, files)


def _manifest_in(files: Mapping[str, bytes], name: str) -> WorkflowBundleManifest:
    if MANIFEST not in files:
        raise WorkflowBundleError(
            name, "it has no manifest.json", "Pack it with `callboard flows pack`"
        )
    try:
        data = json.loads(files[MANIFEST])
    except (ValueError, RecursionError) as exc:
        problem = f"its manifest.json is no JSON: {exc}"
        raise WorkflowBundleError(name, problem, "Pack it again") from None
    return read_manifest(data, name)


_READ: Final = re.compile(r"\bvars(?:\.([A-Za-z]\w*)|\[\\?[\"']([^\"'\\_][^\"'\\]*)\\?[\"']\])")
_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("string", "number", "boolean", "object", "array"), ""),
    "text": "string",
    "list": "array",
}
"""JSON Schema type for each type of pin. Empty: the type has the same name."""


def input_schema(flow: Any) -> dict[str, Any]:
    """Return the JSON Schema of the vars that a flow begins with. No var is required.

    The vars of a VisualFlow are the pins of its start node. The vars of a flow document are found by a search
    of its text for ``vars.<name>``. Names that code computes are not found, so other names are allowed.
    """
    found = _pins(flow) if is_visualflow(flow) else _read(flow)
    return {"type": "object", "properties": dict(sorted(found)), "additionalProperties": True}


def _pins(flow: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for node in read_drawing(flow, DrawingFindings("")).nodes.values():
        if node.type != "on_flow_start":
            continue
        outputs = node.data.get("outputs")
        told = {
            str(one.get("id")): one
            for one in (outputs if isinstance(outputs, list) else ())
            if isinstance(one, dict)
        }
        for name in node.pins("outputs"):
            kind = str(told.get(name, {}).get("type"))
            yield name, {"type": _TYPES[kind] or kind} if kind in _TYPES else {}


def _read(flow: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    text = json.dumps(flow, ensure_ascii=False)
    read = {first or second for first, second in _READ.findall(text)}
    for name in read - {*_written(flow)}:
        yield name, {}


def _written(data: Any) -> Iterator[str]:
    """Yield the names of the vars that nodes write."""
    if isinstance(data, list):
        for one in data:
            yield from _written(one)
    if not isinstance(data, dict):
        return
    for key, value in data.items():
        if key in {"into", "as"} and isinstance(value, str):
            yield value.partition(".")[0]
        elif key == "set" and isinstance(value, dict):
            yield from (name.partition(".")[0] for name in value)
        yield from _written(value)
