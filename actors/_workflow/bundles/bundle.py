"""An opened bundle: its files, read within limits, its manifest, and its flows as graphs.

The files come from a zip file or a folder. A path that leads out of the bundle, and a file that unpacks to far
more than it says, are refused. `input_schema` describes the vars that a flow begins with: those that it reads
and never writes.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from actors._workflow.bundles.manifest import (
    WorkflowBundleError,
    WorkflowBundleManifest,
    read_manifest,
)
from actors._workflow.documents.compiling import compile_document
from actors._workflow.documents.document import FlowDocument, FlowNode
from actors._workflow.documents.findings import FlowError, FlowFinding, bounded
from actors._workflow.documents.reading import document_of, read_data
from actors._workflow.machine.spec import WorkflowSpec
from actors._workflow.visual.compiling import compile_drawing
from actors._workflow.visual.drawing import DrawingFindings, is_visualflow, read_drawing

MANIFEST: Final = "manifest.json"
MOST_FILES: Final = 5000
LARGEST: Final = 256 * 2**20
"""Maximum size of all files of a bundle, unpacked, in bytes."""
HIGHEST_RATIO: Final = 200
"""Maximum number of unpacked bytes for each packed byte."""
_FREE: Final = 2**20
"""Size in bytes up to which a file may have any ratio."""
_UNREADABLE: Final = (
    *(zipfile.BadZipFile, zlib.error, EOFError),
    # Text that is not UTF-8, and encrypted files, raise these, too.
    *(NotImplementedError, RuntimeError, ValueError),
)
_SPLIT: Final = "Divide it into several bundles"
_AGAIN: Final = "Pack it again with `callboard flows pack`"
_READ: Final = re.compile(r"\bvars(?:\.([A-Za-z]\w*)|\[\\?[\"']([^\"'\\_][^\"'\\]*)\\?[\"']\])")
_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("string", "number", "boolean", "object", "array"), ""),
    "text": "string",
    "list": "array",
}
"""JSON Schema type for each type of pin; empty if the type has the same name."""


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
                    self._compile(flow_id, data)
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
        data = {flow_id: self._data(flow_id) for flow_id in self.manifest.flows}
        return [
            self._compile(flow_id, flow) for flow_id, flow in data.items() if not _is_empty(flow)
        ]

    def spec(self, flow_id: str) -> WorkflowSpec:
        """Return a flow as a graph. See `specs`.

        Raises:
            WorkflowBundleError: The bundle has no flow of this id.
            FlowError: The flow has mistakes; the error has all of them.
        """
        return self._compile(flow_id, self._data(flow_id))

    def _compile(self, flow_id: str, data: Any) -> WorkflowSpec:
        names, file = self.manifest.graph_names, self._file(flow_id)
        if is_visualflow(data):
            spec, _ = compile_drawing(data, file, names)
        else:
            spec, _ = compile_document(_with_graph_names(document_of(data, file), names), file)
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


def manifest_of(path: Path) -> WorkflowBundleManifest:
    """Return the manifest of a zip file. No other file in it is read.

    Raises:
        WorkflowBundleError: The file is not a bundle.
    """
    return _manifest_in(read_files(path, str(path), only_path=MANIFEST), str(path))


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
    if missing_files := sorted({*manifest.flows.values()} - files.keys()):
        problem = f"its manifest names {missing_files[0]!r}, which the bundle does not have"
        raise WorkflowBundleError(name, problem, "Pack it again")
    return WorkflowBundle(manifest, files)


def _is_empty(data: Any) -> bool:
    return is_visualflow(data) and not data["nodes"]


def _with_graph_names(document: FlowDocument, names: Mapping[str, str]) -> FlowDocument:
    """Return a document whose references to flows are replaced by these graph names."""
    nodes = {
        name: node.model_copy(update={"flow": names[node.flow]})
        if isinstance(node, FlowNode) and node.flow in names
        else node
        for name, node in document.nodes.items()
    }
    return document.model_copy(update={"nodes": nodes})


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


def input_schema(flow: Any) -> dict[str, Any]:
    """Return the JSON Schema of the vars that a flow begins with. No var is required.

    The vars of a VisualFlow are the pins of its start node. The vars of a flow document are found by a search
    of its text for ``vars.<name>``. Names that code computes are not found, so other names are allowed.
    """
    properties = _pins(flow) if is_visualflow(flow) else _read(flow)
    return {"type": "object", "properties": dict(sorted(properties)), "additionalProperties": True}


def _pins(flow: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for node in read_drawing(flow, DrawingFindings("")).nodes.values():
        if node.type != "on_flow_start":
            continue
        outputs = node.data.get("outputs")
        pins_by_id = {
            str(pin.get("id")): pin
            for pin in (outputs if isinstance(outputs, list) else ())
            if isinstance(pin, dict)
        }
        for name in node.pins("outputs"):
            kind = str(pins_by_id.get(name, {}).get("type"))
            yield name, {"type": _TYPES[kind] or kind} if kind in _TYPES else {}


def _read(flow: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    text = json.dumps(flow, ensure_ascii=False)
    read_names = {first or second for first, second in _READ.findall(text)}
    for name in read_names - {*_written_names(flow)}:
        yield name, {}


def _written_names(data: Any) -> Iterator[str]:
    """Yield the names of the vars that nodes write."""
    if isinstance(data, list):
        for item in data:
            yield from _written_names(item)
    if not isinstance(data, dict):
        return
    for key, value in data.items():
        if key in {"into", "as"} and isinstance(value, str):
            yield value.partition(".")[0]
        elif key == "set" and isinstance(value, dict):
            yield from (name.partition(".")[0] for name in value)
        yield from _written_names(value)


def read_files(
    source: Path | bytes, name: str, *, only_path: str | None = None
) -> dict[str, bytes]:
    """Return the files of a bundle by their paths.

    Args:
        source: A folder, a zip file, or the bytes of one.
        name: The bundle's name in errors.
        only_path: The path of the only file to read from a zip file; by default all files are read.

    Raises:
        WorkflowBundleError: The source is not a bundle, exceeds a limit, or has a path that leads out of it.
    """
    if isinstance(source, Path) and source.is_dir():
        return _safe_files(_of_folder(source, name), name)
    try:
        with zipfile.ZipFile(
            io.BytesIO(source) if isinstance(source, bytes) else source
        ) as archive:
            _check_sizes(archive, name)
            return _safe_files(_of_zip(archive, name, only_path), name)
    except WorkflowBundleError:
        raise  # also a ValueError: it would be reported as an unreadable zip file
    except _UNREADABLE as exc:
        raise WorkflowBundleError(name, f"it is not a readable zip file: {exc}", _AGAIN) from None
    except OSError as exc:
        problem = f"it cannot be read: {exc.strerror or exc}"
        raise WorkflowBundleError(name, problem, "Name a .flow file or a folder") from None


def _check_sizes(archive: zipfile.ZipFile, name: str) -> None:
    entries = archive.infolist()
    if len(entries) > MOST_FILES:
        raise WorkflowBundleError(
            name, f"it has {len(entries)} files, more than {MOST_FILES}", _SPLIT
        )
    size = sum(entry.file_size for entry in entries)
    if size > LARGEST:
        problem = f"it has {size} bytes unpacked, more than {LARGEST}"
        raise WorkflowBundleError(name, problem, _SPLIT)
    for entry in entries:
        if entry.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            problem = f"{entry.filename!r} has an unsupported compression"
            raise WorkflowBundleError(name, problem, _AGAIN)
        if entry.file_size > _FREE and entry.file_size > HIGHEST_RATIO * max(
            entry.compress_size, 1
        ):
            problem = (
                f"{entry.filename!r} would be {entry.file_size} bytes out of {entry.compress_size}"
            )
            raise WorkflowBundleError(name, problem, "Store it unpacked")


def _of_zip(
    archive: zipfile.ZipFile, name: str, only_path: str | None
) -> Iterator[tuple[str, bytes]]:
    for entry in archive.infolist():
        if entry.is_dir() or only_path not in {None, entry.filename}:
            continue
        if stat.S_ISLNK(entry.external_attr >> 16):
            problem = f"{entry.filename!r} is a symbolic link"
            raise WorkflowBundleError(name, problem, "Put the file itself into the bundle")
        with archive.open(entry) as stream:
            # One byte more than the directory says: a larger file is refused before it fills the memory.
            data = stream.read(entry.file_size + 1)
        if len(data) > entry.file_size:
            problem = f"{entry.filename!r} is larger than the zip directory says"
            raise WorkflowBundleError(name, problem, _AGAIN)
        yield entry.filename, data


def _of_folder(folder: Path, name: str) -> Iterator[tuple[str, bytes]]:
    remaining_bytes = LARGEST
    paths = sorted(folder.rglob("*"))
    for path in paths:
        if path.is_symlink():
            problem = f"{path.relative_to(folder).as_posix()!r} is a symbolic link"
            raise WorkflowBundleError(name, problem, "Put the file itself into the bundle")
        if not path.is_file():
            continue
        remaining_bytes -= path.stat().st_size
        if remaining_bytes < 0:
            raise WorkflowBundleError(name, f"it has more than {LARGEST} bytes", _SPLIT)
        yield path.relative_to(folder).as_posix(), path.read_bytes()


def _safe_files(files: Iterator[tuple[str, bytes]], name: str) -> dict[str, bytes]:
    safe_files: dict[str, bytes] = {}
    folded_paths: set[str] = set()
    for path, data in files:
        if not is_safe(path):
            problem = f"{path!r} leads out of it, or is no path"
            raise WorkflowBundleError(name, problem, "Use relative paths with slashes")
        # Some file systems take two spellings of an accent for the same name, as they do with case.
        key = unicodedata.normalize("NFC", path).casefold()
        if key in folded_paths:
            problem = (
                f"{path!r} is there twice, or differs from another path in case or spelling only"
            )
            raise WorkflowBundleError(name, problem, "Give each file a name of its own")
        folded_paths.add(key)
        safe_files[path] = data
        if len(safe_files) > MOST_FILES:
            raise WorkflowBundleError(name, f"it has more than {MOST_FILES} files", _SPLIT)
    return safe_files


def is_safe(path: str) -> bool:
    """Return True if a path stays below its folder on every operating system."""
    parts = PurePosixPath(path).parts
    return (
        bool(parts)
        and path == "/".join(parts)
        and not path.startswith("/")
        and ".." not in parts
        and not any(char in '\\:*?"<>|' or char < " " for char in path)
    )
