"""The registry: a folder of bundles. Each bundle is one file named ``id@version.flow``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from actors._workflow.bundles.bundle import WorkflowBundle, manifest_of, open_workflow_bundle
from actors._workflow.bundles.manifest import WorkflowBundleEntrypoint, WorkflowBundleManifest
from actors._workflow.bundles.packing import write_whole
from actors._workflow.machine.spec import WorkflowSpec
from actors.errors import ConflictError, ContractError, Facts

FOLDER: Final = "ABSTRACTFRAMEWORK_WORKFLOWS_DIR"
"""The environment variable that names the folder of bundles. AbstractFramework uses the same name."""
_ENDING: Final = ".flow"


class WorkflowBundleRegistryError(Facts, ConflictError, ContractError):
    """A request to a registry was refused. The registry is unchanged."""

    text = "bundle {bundle}: {problem}. {remedy}"
    bundle: str
    problem: str
    remedy: str


@dataclass(frozen=True, slots=True)
class InstalledBundle:
    """A bundle in a registry.

    Attributes:
        path: The bundle's file.
        manifest: The bundle's manifest.
    """

    path: Path
    manifest: WorkflowBundleManifest

    @property
    def bundle_id(self) -> str:
        """The bundle's name."""
        return self.manifest.bundle_id

    @property
    def bundle_version(self) -> str:
        """The bundle's version."""
        return self.manifest.bundle_version

    @property
    def bundle_ref(self) -> str:
        """``id@version``."""
        return self.manifest.ref


@dataclass(frozen=True, slots=True)
class InstalledEntrypoint:
    """An entry point of a bundle in a registry.

    Attributes:
        bundle: The bundle.
        entrypoint: The entry point.
    """

    bundle: InstalledBundle
    entrypoint: WorkflowBundleEntrypoint

    @property
    def bundle_ref(self) -> str:
        """``id@version``."""
        return self.bundle.bundle_ref

    @property
    def flow_id(self) -> str:
        """The flow."""
        return self.entrypoint.flow_id


class WorkflowBundleRegistry:
    """Bundles in a folder. | Any number of processes may use the folder, since each file in it is whole.

    Args:
        folder: The folder; it is created by the first installation. By default that of
            `default_workflow_bundles_dir`.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder: Path = default_workflow_bundles_dir() if folder is None else Path(folder)

    def install(self, path: str | Path, *, overwrite: bool | None = None) -> InstalledBundle:
        """Install a bundle from a file. See `install_bytes`."""
        return self.install_bytes(Path(path).read_bytes(), overwrite=overwrite)

    def install_bytes(
        self, data: bytes, *, filename_hint: str | None = None, overwrite: bool | None = None
    ) -> InstalledBundle:
        """Install a bundle. All of it is checked before anything is written.

        Args:
            data: The bytes of the bundle's file.
            filename_hint: Ignored. The file is named after the bundle.
            overwrite: If true, an installed bundle of this id and version is replaced; if false, the
                installation is refused. If None, it is refused, unless the installed bundle has the same
                content. Then nothing changes.

        Raises:
            WorkflowBundleError: The data is not a bundle.
            FlowError: A flow of the bundle has mistakes.
            WorkflowBundleRegistryError: A bundle of this id and version is installed.
        """
        del filename_hint
        bundle = open_workflow_bundle(data)
        bundle.check()
        path = self.folder / f"{bundle.manifest.ref}{_ENDING}"
        try:
            write_whole(path, data, is_new=overwrite is not True)
        except FileExistsError:
            if overwrite is not None or open_workflow_bundle(path).hash != bundle.hash:
                problem = "it is installed already, with this or other content"
                remedy = "Give it another version, or pass overwrite=True"
                raise WorkflowBundleRegistryError(bundle.manifest.ref, problem, remedy) from None
        return InstalledBundle(path, bundle.manifest)

    def list_bundles(self) -> list[InstalledBundle]:
        """Return all bundles by name, the newest version first. A file that is not a bundle is left out."""
        return [bundle for path in self._paths() if (bundle := _read_installed(path)) is not None]

    def list_entrypoints(
        self, *, interface: str | None = None, latest_only: bool = False
    ) -> list[InstalledEntrypoint]:
        """Return the entry points of all bundles, or of the newest version of each."""
        bundle_ids: set[str] = set()
        entrypoints = []
        for bundle in self.list_bundles():
            if latest_only and bundle.bundle_id in bundle_ids:
                continue
            bundle_ids.add(bundle.bundle_id)
            entrypoints += [
                InstalledEntrypoint(bundle, entrypoint)
                for entrypoint in bundle.manifest.entrypoints
                if interface is None or interface in entrypoint.interfaces
            ]
        return entrypoints

    def resolve_bundle(self, ref: str) -> InstalledBundle:
        """Return the bundle ``id@version``, or the newest version of ``id``.

        Raises:
            WorkflowBundleRegistryError: No such bundle is installed.
        """
        for path in self._paths(ref):
            if (bundle := _read_installed(path)) is not None:
                return bundle
        installed_refs = ", ".join(path.stem for path in self._paths()[:20]) or "none"
        raise WorkflowBundleRegistryError(
            ref, "it is not installed", f"Installed: {installed_refs}"
        )

    def resolve_entrypoint(self, ref: str, *, interface: str | None = None) -> InstalledEntrypoint:
        """Return an entry point by ``id[@version]`` of its bundle, or by the entry point's `name`.

        Raises:
            WorkflowBundleRegistryError: No entry point has this name.
        """
        entries = self.list_entrypoints(interface=interface)
        bundle_id, at_version, version = ref.partition("@")
        for entry in entries:
            is_default = entry.entrypoint == entry.bundle.manifest.entry
            fits = entry.bundle.bundle_id == bundle_id
            fits = fits and (not at_version or version == entry.bundle.bundle_version)
            if fits and (is_default or interface is not None):
                return entry
        for entry in entries:
            if entry.entrypoint.name == ref:
                return entry
        condition = "" if interface is None else f" with interface {interface!r}"
        raise WorkflowBundleRegistryError(
            ref, f"no entry point{condition} has this name", "List them"
        )

    def open(self, ref: str) -> WorkflowBundle:
        """Return an installed bundle with its flows.

        Raises:
            WorkflowBundleRegistryError: No such bundle is installed.
        """
        return open_workflow_bundle(self.resolve_bundle(ref).path)

    def specs(self) -> list[WorkflowSpec]:
        """Return the graphs of all bundles, for `Flows`.

        Raises:
            FlowError: A flow has mistakes.
        """
        bundles = self.list_bundles()
        return [spec for bundle in bundles for spec in open_workflow_bundle(bundle.path).specs()]

    def remove(self, ref: str) -> int:
        """Remove the bundle ``id@version``, or all versions of ``id``; return the number of bundles removed."""
        paths = self._paths(ref)
        for path in paths:
            path.unlink(missing_ok=True)
        return len(paths)

    def _paths(self, ref: str | None = None) -> list[Path]:
        """Return the files of all bundles, or of the bundles that ``id[@version]`` names, the newest first.

        A reference without an id, or with an ``@`` and no version, names none: it is an empty variable of a
        script.
        """
        requested_id, at_version, version = ("", "", "") if ref is None else ref.partition("@")
        if ref is not None and (not requested_id or (at_version and not version)):
            return []
        entries = []
        for path in self.folder.iterdir() if self.folder.is_dir() else []:
            bundle_id, separator, its_version = path.name.removesuffix(_ENDING).partition("@")
            is_bundle = bool(separator) and path.name.endswith(_ENDING)
            if is_bundle and requested_id in {"", bundle_id} and version in {"", its_version}:
                entries.append((bundle_id, order_of(its_version), path))
        entries.sort(key=lambda e: e[1], reverse=True)
        return [path for _, _, path in sorted(entries, key=lambda e: e[0])]


def _read_installed(path: Path) -> InstalledBundle | None:
    """Return the bundle of a file, or None if the file is not a bundle or has not the name of its bundle."""
    try:
        manifest = manifest_of(path)
    except ContractError:
        return None
    return InstalledBundle(path, manifest) if manifest.ref == path.stem else None


def default_workflow_bundles_dir() -> Path:
    """Return the default folder of bundles.

    It is the folder that ``ABSTRACTFRAMEWORK_WORKFLOWS_DIR`` names. If the variable is not set, it is
    ``./flows/bundles`` if that exists, else ``~/.callboard/flows``.
    """
    if folder := os.environ.get(FOLDER):
        return Path(folder).expanduser().resolve()
    local_folder = Path("flows/bundles")
    return local_folder.resolve() if local_folder.is_dir() else Path.home() / ".callboard" / "flows"


def order_of(version: str) -> list[tuple[int, int, str]]:
    """Return the sort key of a version. Numbers sort as numbers, and a release sorts after its candidates."""
    parts = [part for part in re.split(r"[.+_-]", version) if part]
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts] + [
        (0, 1, "")
    ]
