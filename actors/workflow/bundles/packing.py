"""Packing: a flow and all flows that it refers to become one file, the same bytes each time."""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from actors.workflow.bundles.bundle import MANIFEST, WorkflowBundle, open_workflow_bundle
from actors.workflow.bundles.manifest import WorkflowBundleEntrypoint, WorkflowBundleError
from actors.workflow.documents.compiling import compile_document
from actors.workflow.documents.document import FlowDocument, FlowNode
from actors.workflow.documents.reading import read_flow

_WHEN: Final = (1980, 1, 1, 0, 0, 0)
"""The time of each file in a zip file, so that equal contents are equal bytes."""
_ENDINGS: Final = (".json", ".yaml", ".yml")


def pack_workflow_bundle(
    root_flow_json: str | Path,
    out_path: str | Path,
    *,
    bundle_id: str | None = None,
    bundle_version: str | None = None,
    flows_dir: str | Path | None = None,
    assets: Mapping[str, str | Path] | None = None,
    interfaces: tuple[str, ...] = (),
    metadata: Mapping[str, Any] | None = None,
) -> WorkflowBundle:
    """Write a bundle of a flow and of those that it refers to. A crash leaves the old file, or the new one.

    Args:
        root_flow_json: The flow that a run begins with.
        out_path: The file to write.
        bundle_id: The bundle's name; None: the flow's id.
        bundle_version: Its version; None: the flow's version.
        flows_dir: The folder with the other flows; None: that of the first one.
        assets: More files, by their names below ``assets/``.
        interfaces: Names of what the first flow can be used as.
        metadata: JSON data.

    Returns:
        The bundle as it was written.

    Raises:
        FlowError: A flow has mistakes.
        WorkflowBundleError: A flow is not there, or the bundle has no version.
        OSError: A file cannot be read or written.
    """
    root = read_flow(root_flow_json)
    folder = Path(root_flow_json).parent if flows_dir is None else Path(flows_dir)
    flows = _with_references(root, str(root_flow_json), folder)
    version = bundle_version or root.version
    if version is None:
        remedy = "Give a bundle_version, or the flow a version"
        raise WorkflowBundleError(str(out_path), "it has no version", remedy)
    entry = WorkflowBundleEntrypoint(
        flow_id=root.id, name=root.title or root.id, interfaces=interfaces
    )
    manifest = {
        "bundle_format_version": "1",
        "bundle_id": bundle_id or root.id,
        "bundle_version": version,
        "entrypoints": [entry.model_dump(mode="json")],
        "default_entrypoint": root.id,
        "flows": {flow_id: f"flows/{flow_id}.json" for flow_id in sorted(flows)},
        "metadata": dict(metadata or {}),
    }
    files = {f"flows/{flow_id}.json": _json(one.to_dict()) for flow_id, one in flows.items()}
    for name, path in (assets or {}).items():
        files[f"assets/{name}"] = Path(path).read_bytes()
    packed = _zipped({MANIFEST: _json(manifest)} | files)
    bundle = open_workflow_bundle(packed)
    write_whole(Path(out_path), packed)
    return bundle


def _with_references(root: FlowDocument, file: str, folder: Path) -> dict[str, FlowDocument]:
    """Return a flow and all that it refers to, by id; each is checked whole."""
    found, left = {root.id: root}, [(root, file)]
    while left:
        document, name = left.pop()
        compile_document(document, name)
        for node_name, node in document.nodes.items():
            if not isinstance(node, FlowNode) or node.flow in found:
                continue
            path = _file_of(node.flow, folder)
            if path is None:
                problem = (
                    f"node {node_name!r} of {name} refers to flow {node.flow!r}, which is not there"
                )
                remedy = f"Put {node.flow}.json into {folder}, or name another folder"
                raise WorkflowBundleError(root.id, problem, remedy)
            below = read_flow(path)
            if below.id != node.flow:
                problem = f"{path} is flow {below.id!r}, not {node.flow!r}"
                raise WorkflowBundleError(root.id, problem, "Name the file like the flow in it")
            found[below.id] = below
            left.append((below, str(path)))
    return found


def _file_of(flow_id: str, folder: Path) -> Path | None:
    if "/" in flow_id or "\\" in flow_id:
        return None
    paths = (folder / f"{flow_id}{ending}" for ending in _ENDINGS)
    return next((path for path in paths if path.is_file()), None)


def _json(data: Any) -> bytes:
    return (json.dumps(data, ensure_ascii=False, indent=2, sort_keys=True) + "\n").encode()


def _zipped(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for path in sorted(files, key=lambda one: (one != MANIFEST, one)):
            entry = zipfile.ZipInfo(path, _WHEN)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3  # else the bytes depend on the machine
            packed.writestr(entry, files[path], zipfile.ZIP_DEFLATED, 9)
    return out.getvalue()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, and never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft-")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, path)  # noqa: PTH105 - both are texts
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
