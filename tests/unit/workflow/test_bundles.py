"""Bundles of flows: what is packed is opened, installed and run; what is not safe is refused."""

from __future__ import annotations

import io
import json
import random
import stat
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from actors._workflow.bundles import (
    WorkflowBundleError,
    WorkflowBundleRegistry,
    WorkflowBundleRegistryError,
    bundle,
    default_workflow_bundles_dir,
    open_workflow_bundle,
    pack_workflow_bundle,
)
from actors._workflow.embedded.registry import WorkflowRegistry
from actors.errors import ContractError
from actors.workflow import FlowError, InMemoryLedgerStore, InMemoryRunStore, WorkflowRuntime

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHILD: dict[str, Any] = {
    "flow": 1,
    "id": "child",
    "start": "e",
    "nodes": {"e": {"end": "${vars.n * 2}"}},
}
ROOT: dict[str, Any] = {
    "flow": 1,
    "id": "root",
    "version": "1.0",
    "title": "The root",
    "start": "call",
    "nodes": {
        "call": {"flow": "child", "with": {"n": "${vars.n}"}, "into": "child", "next": "e"},
        "e": {"end": "${vars.child.output}"},
    },
}
MANIFEST: dict[str, Any] = {
    "bundle_format_version": "1",
    "bundle_id": "b",
    "bundle_version": "1",
    "entrypoints": [{"flow_id": "child"}],
    "flows": {"child": "flows/child.json"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two flows and an asset."""
    (tmp_path / "root.json").write_text(json.dumps(ROOT), encoding="utf-8")
    (tmp_path / "child.json").write_text(json.dumps(CHILD), encoding="utf-8")
    (tmp_path / "logo.png").write_bytes(b"\x89PNG")
    return tmp_path


def zipped(files: dict[str, bytes], **modes: int) -> bytes:
    """Return a zip file; a mode is that of the file of this name."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = modes.get(path, 0o644) << 16
            packed.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def files_of(more: dict[str, bytes] | None = None, **manifest: Any) -> dict[str, bytes]:
    """Return the files of a bundle with one flow."""
    return {
        "manifest.json": json.dumps({**MANIFEST, **manifest}).encode(),
        "flows/child.json": json.dumps(CHILD).encode(),
        **(more or {}),
    }


@pytest.mark.item(467, 468, 469)
def test_a_flow_is_packed_with_all_that_it_refers_to(folder: Path) -> None:
    """The same bytes each time; opened from the file or from the folder it was unpacked to, it runs."""
    out = folder / "out" / "root.flow"
    first = pack_workflow_bundle(
        folder / "root.json", out, assets={"logo.png": folder / "logo.png"}, interfaces=("chat",)
    )
    raw = out.read_bytes()
    pack_workflow_bundle(
        folder / "root.json", out, assets={"logo.png": folder / "logo.png"}, interfaces=("chat",)
    )
    with zipfile.ZipFile(out) as packed:
        packed.extractall(folder / "unpacked")
    opened = open_workflow_bundle(folder / "unpacked")

    assert out.read_bytes() == raw
    assert first.hash == opened.hash == open_workflow_bundle(raw).hash
    assert opened.manifest.entry.name == "The root"
    assert sorted(opened.files) == ["assets/logo.png", "flows/child.json", "flows/root.json"]
    specs = {spec.workflow_id: spec for spec in opened.specs()}
    assert sorted(specs) == ["root@1.0", "root@1.0.child"]
    registry = WorkflowRegistry()
    for spec in specs.values():
        registry.register(spec)
    runtime = WorkflowRuntime(
        run_store=InMemoryRunStore(), ledger_store=InMemoryLedgerStore(), workflow_registry=registry
    )
    run_id = runtime.start(specs["root@1.0"], vars={"n": 4})
    assert runtime.tick(specs["root@1.0"], run_id).output == 8


@pytest.mark.item(468)
def test_a_flow_that_is_not_there_is_named(folder: Path) -> None:
    """Nothing is written; neither for a flow with mistakes, nor for a file with another flow in it."""
    out = folder / "root.flow"
    (folder / "child.json").write_text(json.dumps({**CHILD, "id": "other"}), encoding="utf-8")
    with pytest.raises(WorkflowBundleError, match="is flow 'other', not 'child'"):
        pack_workflow_bundle(folder / "root.json", out)
    (folder / "child.json").write_text(json.dumps({**CHILD, "start": "x"}), encoding="utf-8")
    with pytest.raises(FlowError, match=r"child\.json#/start: there is no node 'x'"):
        pack_workflow_bundle(folder / "root.json", out)
    (folder / "child.json").unlink()
    with pytest.raises(WorkflowBundleError, match=r"node 'call' of .* refers to flow 'child'"):
        pack_workflow_bundle(folder / "root.json", out)
    assert not out.exists()


@pytest.mark.item(467)
@pytest.mark.parametrize(
    ("files", "modes", "words"),
    [
        (files_of({"../x": b""}), {}, "leads out of it"),
        (files_of({"/etc/x": b""}), {}, "leads out of it"),
        (files_of({"a\\..\\x": b""}), {}, "leads out of it"),
        (files_of({"C:x": b""}), {}, "leads out of it"),
        (files_of({"flows/CHILD.json": b""}), {}, "there twice"),
        (files_of({"assets/é": b"", "assets/e\u0301": b""}), {}, "there twice"),
        (files_of({"link": b"/etc"}), {"link": stat.S_IFLNK | 0o777}, "symbolic link"),
        (files_of({"bomb": b"\0" * 5_000_000}), {}, "'bomb' would be 5000000 bytes out of"),
        (files_of(flows={"child": "../child.json"}), {}, "not below flows/"),
        (files_of(flows={"child": "flows/no.json"}), {}, "names 'flows/no.json'"),
        (files_of(bundle_id="../b"), {}, "bundle_id"),
        (files_of(bundle_format_version="2"), {}, "bundle_format_version"),
        (files_of(entrypoints=[{"flow_id": "x"}]), {}, "'x' is none of its flows"),
        ({"flows/child.json": b"{}"}, {}, "no manifest.json"),
        ({"manifest.json": b"{"}, {}, "no JSON"),
        ({"manifest.json": b"[" * 100_000}, {}, "no JSON"),
    ],
)
def test_bundles_that_are_not_safe_or_not_whole(
    tmp_path: Path, files: dict[str, bytes], modes: dict[str, int], words: str
) -> None:
    """Refused when it is opened, and so when it is installed: nothing is in the folder afterwards."""
    registry = WorkflowBundleRegistry(tmp_path / "r")
    with pytest.raises(WorkflowBundleError, match=words):
        registry.install_bytes(zipped(files, **modes))
    assert not registry.folder.exists()


def test_limits_of_a_bundle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files and bytes, in a zip file and in a folder; links in a folder are not followed."""
    raw = zipped(files_of({f"assets/{n}": b"x" * 100 for n in range(20)}))
    with zipfile.ZipFile(io.BytesIO(raw)) as packed:
        packed.extractall(tmp_path / "f")
    open_workflow_bundle(raw)
    open_workflow_bundle(tmp_path / "f")
    for limit, words in (("MOST_FILES", "files"), ("LARGEST", "bytes")):
        monkeypatch.setattr(bundle, limit, 10)
        for source in (raw, tmp_path / "f"):
            with pytest.raises(WorkflowBundleError, match=words):
                open_workflow_bundle(source)
        monkeypatch.undo()
    (tmp_path / "f" / "link").symlink_to("/etc/passwd")
    with pytest.raises(WorkflowBundleError, match="symbolic link"):
        open_workflow_bundle(tmp_path / "f")


@pytest.mark.item(470)
def test_a_registry_installs_lists_resolves_and_removes(folder: Path) -> None:
    """Versions are ordered as versions; a name without one is the newest; equal content changes nothing."""
    registry = WorkflowBundleRegistry(folder / "r")
    assert registry.list_bundles() == []
    for version in ("1.9", "1.10", "1.10-rc1"):
        out = folder / f"{version}.flow"
        pack_workflow_bundle(
            folder / "root.json", out, bundle_version=version, interfaces=("chat",)
        )
        installed = registry.install(out)
        assert installed.bundle_ref == f"root@{version}"
    changed = folder / "changed.flow"
    pack_workflow_bundle(folder / "root.json", changed, bundle_version="1.9", metadata={"x": 1})

    refs = [bundle.bundle_ref for bundle in registry.list_bundles()]
    assert refs == ["root@1.10", "root@1.10-rc1", "root@1.9"]
    assert registry.resolve_bundle("root").bundle_ref == "root@1.10"
    assert registry.resolve_bundle("root@1.9").bundle_version == "1.9"
    assert registry.resolve_entrypoint("The root", interface="chat").flow_id == "root"
    assert [entry.bundle_ref for entry in registry.list_entrypoints(latest_only=True)] == [
        "root@1.10"
    ]
    assert registry.list_entrypoints(interface="other") == []
    assert registry.install(folder / "1.9.flow").bundle_ref == "root@1.9"
    with pytest.raises(WorkflowBundleRegistryError, match="Give it another version"):
        registry.install(changed)
    with pytest.raises(WorkflowBundleRegistryError, match="installed already"):
        registry.install(folder / "1.9.flow", overwrite=False)
    registry.install(changed, overwrite=True)
    assert registry.open("root@1.9").manifest.metadata == {"x": 1}
    assert len(registry.specs()) == 6
    with pytest.raises(WorkflowBundleRegistryError, match=r"Installed: root@1\.10"):
        registry.resolve_bundle("root@2")
    for nothing in ("", "@", "@1.9", "root@", " ", "*"):
        assert registry.remove(nothing) == 0
        with pytest.raises(WorkflowBundleRegistryError, match="not installed"):
            registry.resolve_bundle(nothing)
        with pytest.raises(WorkflowBundleRegistryError, match="no entry point"):
            registry.resolve_entrypoint(nothing)
    assert (registry.remove("root@1.9"), registry.remove("root"), registry.remove("root")) == (
        1,
        2,
        0,
    )


def test_the_folder_of_a_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable, a folder here, or one of the user; files that are no bundles are left alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ABSTRACTFRAMEWORK_WORKFLOWS_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_workflow_bundles_dir() == tmp_path / "home" / ".callboard" / "flows"
    (tmp_path / "flows" / "bundles").mkdir(parents=True)
    assert default_workflow_bundles_dir() == tmp_path / "flows" / "bundles"
    monkeypatch.setenv("ABSTRACTFRAMEWORK_WORKFLOWS_DIR", str(tmp_path / "x"))
    registry = WorkflowBundleRegistry()
    assert registry.folder == tmp_path / "x"
    installed = registry.install_bytes(zipped(files_of())).path
    (registry.folder / "plain").touch()
    assert (
        installed.stat().st_mode == (registry.folder / "plain").stat().st_mode
    )  # for hosts of other users
    (registry.folder / "other@1.flow").write_bytes(zipped(files_of()))
    (registry.folder / "junk@1.flow").write_bytes(b"junk")
    (registry.folder / ".draft-x").write_bytes(b"")
    assert [bundle.bundle_ref for bundle in registry.list_bundles()] == ["b@1"]


def test_damaged_bundles_are_refused(tmp_path: Path) -> None:
    """Bytes changed, cut, doubled: a refusal by name, or the same bundle; never another error."""
    raw = zipped(files_of({"assets/a": bytes(range(256)) * 8}))
    rng = random.Random(3)
    changes: list[Callable[[bytearray], object]] = [
        lambda data: data.__setitem__(rng.randrange(len(data)), rng.randrange(256)),
        lambda data: data.__delitem__(slice(rng.randrange(len(data)), None)),
        lambda data: data.extend(data[: rng.randrange(len(data))]),
        lambda data: data.__setitem__(slice(10, 10 + rng.randrange(9)), b"\xff" * 5),
    ]
    registry, opened = WorkflowBundleRegistry(tmp_path), 0
    for _ in range(500):
        data = bytearray(raw)
        rng.choice(changes)(data)
        try:
            registry.install_bytes(bytes(data), overwrite=True)
            opened += 1
        except ContractError:
            continue
    assert 0 < opened < 400
