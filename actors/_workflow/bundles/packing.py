"""Packing of a flow and all flows that it refers to into one file. Equal flows give equal bytes.

Work with the bytes of bundles may take seconds of CPU time: `unpacked` calls it in a thread.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from actors._runtime.loop.tasks import in_thread
from actors._workflow.bundles.bundle import MANIFEST, WorkflowBundle, open_workflow_bundle
from actors._workflow.bundles.manifest import WorkflowBundleEntrypoint, WorkflowBundleError
from actors._workflow.documents.compiling import compile_document
from actors._workflow.documents.document import FlowNode
from actors._workflow.documents.reading import ENDINGS, document_of, read_data
from actors._workflow.visual.compiling import compile_drawing
from actors._workflow.visual.drawing import is_visualflow, one_by_one
from actors._workflow.visual.loading import subflows_of

_WHEN: Final = (1980, 1, 1, 0, 0, 0)
"""The time of each file in a zip file. It is constant, so equal contents give equal bytes."""
_NO_NAME: Final = re.compile(r"[/\\\x00\ud800-\udfff]")
"""A character that the name of a file in a folder does not have."""
_LONGEST_NAME: Final = 200
_ZIP: Final = b"PK"
_SHOWN: Final = ("name", "version")
"""Names of a VisualFlow's texts."""


def pack_workflow_bundle(  # noqa: PLR0913 - the parts of a bundle
    root_flow_json: str | Path,
    out_path: str | Path,
    *,
    bundle_id: str | None = None,
    bundle_version: str | None = None,
    flows_dir: str | Path | None = None,
    assets: Mapping[str, str | Path] | None = None,
    interfaces: tuple[str, ...] = (),
    metadata: Mapping[str, Any] | None = None,
    sequential: bool = False,
) -> WorkflowBundle:
    """Write a bundle of a flow and the flows that it refers to.

    A crash leaves the old file or the new file.

    Args:
        root_flow_json: The flow that a run begins with.
        out_path: The file to write.
        bundle_id: The bundle's name; by default the flow's id.
        bundle_version: The bundle's version; by default the flow's version.
        flows_dir: The folder of the other flows; by default the folder of the first flow.
        assets: Further files, by their names below ``assets/``.
        interfaces: Names of the interfaces that the first flow has.
        metadata: JSON data.
        sequential: Let each VisualFlow execute its parallel branches one after the other.

    Returns:
        The bundle as it was written.

    Raises:
        FlowError: A flow has mistakes.
        WorkflowBundleError: The file of a flow is missing, or the bundle has no version.
        OSError: A file cannot be read or written.
    """
    root = _read(Path(root_flow_json), sequential)
    folder = Path(root_flow_json).parent if flows_dir is None else Path(flows_dir)
    flows = _with_references(root, folder, sequential)
    version = _version(bundle_version or root.version, str(out_path))
    manifest = _manifest(root, flows, bundle_id or root.id, version)
    if interfaces:
        manifest["entrypoints"][0]["interfaces"] = [*interfaces]
    manifest["metadata"] = dict(metadata or {})
    files = _flow_files(flows)
    for name, path in (assets or {}).items():
        files[f"assets/{name}"] = Path(path).read_bytes()
    data = _zip({MANIFEST: _json(manifest, root.id)} | files)
    bundle = open_workflow_bundle(data)
    write_whole(Path(out_path), data)
    return bundle


def packed_flow(data: bytes, *, version: str | None = None, sequential: bool = False) -> bytes:
    """Return the bytes of a bundle of one flow document (JSON or YAML) or VisualFlow.

    A bundle is returned as it is.

    Args:
        data: The bytes of the flow or bundle. Their content decides the format.
        version: The bundle's version; by default the flow's version.
        sequential: Let a VisualFlow execute its parallel branches one after the other.

    Raises:
        FlowError: The flow has mistakes.
        WorkflowBundleError: The flow refers to another flow, the bundle has no version, or `data` is a bundle
            and `sequential` is set.
    """
    if data.startswith(_ZIP):
        if sequential:
            problem = "it is packed already, so that its flows stay as they are"
            raise WorkflowBundleError("bundle", problem, "Pack them again with --sequential")
        return data
    name = "flow.json" if data.lstrip()[:1] in {b"{", b"["} else "flow.yaml"
    root = _flow_file(read_data(data, name), Path(name), sequential)
    for flow_id, reference in root.references.items():
        if flow_id != root.id:
            problem = f"{reference} refers to flow {flow_id!r}, which is not in it"
            remedy = "Pack both into a bundle with `callboard flows pack`, and send the bundle"
            raise WorkflowBundleError(root.id, problem, remedy)
    flows, bundle_version = {root.id: root}, _version(version or root.version, root.id)
    manifest = _manifest(root, flows, root.id, bundle_version)
    return _zip({MANIFEST: _json(manifest, root.id)} | _flow_files(flows))


def _version(version: str | None, bundle: str) -> str:
    if version is None:
        remedy = "Give a bundle_version, or the flow a version"
        raise WorkflowBundleError(bundle, "it has no version", remedy)
    return version


def _manifest(
    root: _FlowFile, flows: Mapping[str, _FlowFile], bundle_id: str, version: str
) -> dict[str, Any]:
    try:
        entry = WorkflowBundleEntrypoint(
            flow_id=root.id, name=root.title or root.id, interfaces=root.interfaces
        )
    except ValidationError:
        problem = f"a bundle cannot have a flow with the id {root.id[:100]!r}"
        remedy = "Give it one of 100 characters at most, without spaces and : @ / \\"
        raise WorkflowBundleError(bundle_id, problem, remedy) from None
    return {
        "bundle_format_version": "1",
        "bundle_id": bundle_id,
        "bundle_version": version,
        "entrypoints": [entry.model_dump(mode="json")],
        "default_entrypoint": root.id,
        "flows": {flow_id: f"flows/{flow_id}.json" for flow_id in sorted(flows)},
        "metadata": {},
    }


def _flow_files(flows: Mapping[str, _FlowFile]) -> dict[str, bytes]:
    return {f"flows/{flow_id}.json": _json(flow.data, flow_id) for flow_id, flow in flows.items()}


@dataclass(frozen=True, slots=True)
class _FlowFile:
    """A flow that was read and checked, with the facts that a bundle needs, for both formats."""

    path: Path
    id: str
    title: str | None
    version: str | None
    interfaces: tuple[str, ...]
    references: dict[str, str]
    """The flows that it refers to, each with the place of a reference."""
    data: Any


def _read(path: Path, sequential: bool) -> _FlowFile:
    return _flow_file(read_data(path, str(path)), path, sequential)


def _flow_file(data: Any, path: Path, sequential: bool) -> _FlowFile:
    if is_visualflow(data):
        data = one_by_one(data) if sequential else data
        spec, _ = compile_drawing(data, str(path))
        items = data.get("interfaces")
        interfaces = tuple(
            i for i in (items if isinstance(items, list) else ()) if isinstance(i, str)
        )
        title, version = (text if isinstance(text, str) else None for text in map(data.get, _SHOWN))
        references = dict.fromkeys(subflows_of(data), "a node")
        return _FlowFile(path, spec.workflow_id, title, version, interfaces, references, data)
    document = document_of(data, str(path))
    compile_document(document, str(path))
    references = {
        node.flow: f"node {name!r}"
        for name, node in reversed(document.nodes.items())
        if isinstance(node, FlowNode)
    }
    flow = document.to_dict()
    return _FlowFile(path, document.id, document.title, document.version, (), references, flow)


def _with_references(root: _FlowFile, folder: Path, sequential: bool) -> dict[str, _FlowFile]:
    """Return a flow and all flows that it refers to, directly or not, by id."""
    flows, pending_flows = {root.id: root}, [root]
    while pending_flows:
        flow = pending_flows.pop()
        for name, reference in flow.references.items():
            if name in flows:
                continue
            path = _file_of(name, folder)
            if path is None:
                problem = (
                    f"{reference} of {flow.path} refers to flow {name!r}, whose file is missing"
                )
                remedy = f"Put {name}.json into {folder}, or name another folder"
                raise WorkflowBundleError(root.id, problem, remedy)
            referenced_flow = _read(path, sequential)
            if referenced_flow.id != name:
                problem = f"{path} is flow {referenced_flow.id!r}, not {name!r}"
                raise WorkflowBundleError(root.id, problem, "Name the file like the flow in it")
            flows[name] = referenced_flow
            pending_flows.append(referenced_flow)
    return flows


def _file_of(flow_id: str, folder: Path) -> Path | None:
    if _NO_NAME.search(flow_id) or len(flow_id) > _LONGEST_NAME:
        return None
    paths = (folder / f"{flow_id}{ending}" for ending in ENDINGS)
    return next((path for path in paths if path.is_file()), None)


def _json(data: Any, name: str) -> bytes:
    text = json.dumps(data, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        problem = f"it has a text that is no Unicode: {text[exc.start : exc.end]!r}"
        raise WorkflowBundleError(name, problem, "Remove it") from None


def _zip(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(files, key=lambda name: (name != MANIFEST, name)):
            entry = zipfile.ZipInfo(path, _WHEN)
            entry.external_attr = 0o644 << 16
            # A constant value, otherwise the bytes depend on the operating system.
            entry.create_system = 3
            archive.writestr(entry, files[path], zipfile.ZIP_DEFLATED, 9)
    return buffer.getvalue()


def write_whole(path: Path, data: bytes, *, is_new: bool = False) -> None:
    """Write a file. It is on the disk when this returns.

    A crash leaves the old file or the new file, and never a part.

    Raises:
        FileExistsError: The file exists, and `is_new` is true.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".draft-{secrets.token_hex(8)}")
    try:
        with draft.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if is_new:
            # A link fails if the name exists, a rename does not: of two processes only one may install.
            os.link(draft, path)
        else:
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    # The name of the file is in the folder: without this sync a loss of power may take the name away.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


T = TypeVar("T")


async def unpacked(call: Callable[..., T], *args: Any) -> T:
    """Return the result of a function that reads, checks or compiles flows, called in a thread.

    Small flows are processed there, too: 50 KiB may take as long as a megabyte.
    """
    result: T = await in_thread(call, *args)
    return result
