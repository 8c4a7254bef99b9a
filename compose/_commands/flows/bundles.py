"""`callboard flows pack|install|list|show|remove`: bundles in files, folders, databases and at servers.

`RegistryTarget` has the options that name the place of installed flows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from actors._kernel.runtime.ids import DEFAULT_TENANT
from actors._workflow.bundles import (
    BundleRecord,
    BundleRegistry,
    FolderBundles,
    WorkflowBundleRegistry,
    WorkflowBundleRegistryError,
    pack_workflow_bundle,
    packed_flow,
)
from actors.errors import ContractError
from compose._commands.deployment import Deployment
from compose._commands.options import DebugFlag, Flag
from compose._commands.output import Exit, NoDataError, print_json
from compose._commands.terminal import print_table, say


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryTarget(Deployment):
    """Options of commands that use installed flows. Without one of them the flows are in a folder.

    Attributes:
        directory: The folder. Default: ABSTRACTFRAMEWORK_WORKFLOWS_DIR, ./flows/bundles or ~/.callboard/flows.
        shared: Use the database that the environment names. --postgres-url and --data mean a database too.
        tenant: Owner of the flows in a database.
    """

    directory: Path | None = None
    shared: Flag = False
    tenant: str = DEFAULT_TENANT

    @property
    def is_folder(self) -> bool:
        """True if the options mean a folder."""
        return not self.shared and not self.is_named

    @asynccontextmanager
    async def registry(self) -> AsyncIterator[tuple[BundleRegistry, str]]:
        """Yield the registry and its name for people.

        Raises:
            ContractError: The options name two registries.
        """
        self.refuse_with_server(directory=self.directory, shared=self.shared)
        if self.is_folder:
            folder = WorkflowBundleRegistry(self.directory)
            yield FolderBundles(folder), str(folder.folder)
            return
        if self.directory is not None:
            raise ContractError("--directory and a database name two registries: give one of them")
        from compose._client.callboard import InstalledBundles  # noqa: PLC0415 - as in `Deployment.open`

        async with self.open(tenant=self.tenant) as callboard:
            name = f"tenant {self.tenant}" if self.server is None else callboard.url
            yield InstalledBundles(callboard, self.server), name


FOLDER: Final = RegistryTarget()
"""The default of `at` in each command that uses installed flows."""


def pack(  # noqa: PLR0913 - the parts of a bundle
    root: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=("--output", "-o"))],
    id: str | None = None,  # noqa: A002 - the name of the option
    version: str | None = None,
    flows_dir: Path | None = None,
    asset: tuple[Path, ...] = (),
    sequential: Flag = False,
    json: Flag = False,
    debug: DebugFlag = False,
) -> int:
    """Pack a flow, and all flows that it refers to, into one file.

    The command checks all flows first. The same flows always give the same bytes.

    Examples: `callboard flows pack refund.json -o refund.flow`;
    `callboard flows pack main.yaml -o main.flow --version 1.3 --asset logo.png`

    Parameters
    ----------
    root
        The flow document or VisualFlow of the entry flow.
    output
        The file to write.
    id
        Name of the bundle. Default: the entry flow's id.
    version
        Version of the bundle. Default: the entry flow's version.
    flows_dir
        Folder with the other flows, each in a file named like its id. Default: the folder of the entry flow.
    asset
        A file to include in the bundle.
    sequential
        Let each VisualFlow execute its parallel branches one after the other, in the order of their pins.
    json
        Print one JSON object.
    """
    del debug  # `compose._cli` reads this option for every command
    with _files():
        bundle = pack_workflow_bundle(
            root,
            output,
            bundle_id=id,
            bundle_version=version,
            flows_dir=flows_dir,
            assets={path.name: path for path in asset},
            sequential=sequential,
        )
    summary = {"bundle": bundle.manifest.ref, "hash": bundle.hash, "file": str(output)}
    if json:
        print_json(summary)
    else:
        count = len(bundle.manifest.flows)
        say(f"{bundle.manifest.ref}: {count} flow{'s' if count > 1 else ''} in {output}")
    return Exit.OK


async def install(
    file: Path,
    /,
    *,
    version: str | None = None,
    sequential: Flag = False,
    overwrite: Flag = False,
    at: RegistryTarget = FOLDER,
) -> int:
    """Install a flow into a folder, which `callboard host FOLDER` serves, or into a database or a server.

    All hosts of a database that serve `actors.workflow.installed:serve` execute runs of the flow.

    The same content again changes nothing. Other content for the same version is refused.

    Examples: `callboard flows install refund.flow --directory ./flows`;
    `callboard flows install refund.json --postgres-url postgresql://me:secret@db/shop`;
    `callboard flows install refund.json --server https://flows.example --token-file ci.token`

    Parameters
    ----------
    file
        A bundle, a flow document or a VisualFlow.
    version
        Version of a flow whose document has no version.
    sequential
        See `callboard flows pack`; for a VisualFlow that is not packed yet.
    overwrite
        Replace a bundle of the same version in a folder.
    """
    with _files():
        data = packed_flow(_bytes_of(file), version=version, sequential=sequential)
    # Replaced before the registry is asked: it refuses other content, and finds the same content now.
    if overwrite:
        if not at.is_folder:
            problem = "a version that all hosts have never changes"
            raise ContractError(f"--overwrite: {problem}. Give it another version")
        with _files():
            WorkflowBundleRegistry(at.directory).install_bytes(data, overwrite=True)
    async with at.registry() as (registry, registry_name):
        with _files():
            record, _ = await registry.install(data, by="cli")
    return at.tell(_record_to_json(record), f"{record.manifest.ref} is in {registry_name}")


async def list_bundles(*, at: RegistryTarget = FOLDER) -> None:
    """List installed bundles by name, newest version first.

    Examples: `callboard flows list --directory ./flows`; `callboard flows list --shared --json`;
    `callboard flows list --server http://127.0.0.1:8123`
    """
    async with at.registry() as (registry, registry_name):
        records = await registry.list()
    at.table(
        records,
        _record_to_json,
        ("BUNDLE", "NAME", "FLOWS", "FILE"),
        lambda record: (
            record.manifest.ref,
            record.manifest.entry.name,
            len(record.manifest.flows),
            record.place,
        ),
        empty_text=f"no bundles in {registry_name}",
    )


async def show(ref: str, /, *, at: RegistryTarget = FOLDER) -> int:
    """Show a bundle: its flows, their nodes and its hash.

    Examples: `callboard flows show refund@1.2`;
    `callboard flows show refund --server http://127.0.0.1:8123 --json`

    Parameters
    ----------
    ref
        ID@VERSION, or ID for the newest version.
    """
    async with at.registry() as (registry, _):
        try:
            bundle = await registry.open(ref)
        except WorkflowBundleRegistryError as exc:  # so that the exit code is NOT_FOUND
            raise NoDataError(str(exc)) from exc
    specs = bundle.specs()
    if at.json:
        flows = {spec.workflow_id: spec.described() for spec in specs}
        manifest = bundle.manifest.model_dump(mode="json")
        print_json({**manifest, "hash": bundle.hash, "graphs": flows})
        return Exit.OK
    say(f"{bundle.manifest.ref}, hash {bundle.hash}")
    rows = [(spec.workflow_id, spec.entry_node, len(spec.nodes), spec.hash) for spec in specs]
    print_table(("FLOW", "START", "NODES", "HASH"), rows, empty_text="no flows")
    return Exit.OK


async def remove(ref: str, /, *, at: RegistryTarget = FOLDER) -> int:
    """Remove a bundle. Databases and servers keep a bundle with open runs, and the error has their number.

    Hosts that have loaded a bundle from a folder use it until they restart. Hosts without the bundle park open
    runs of its flows. These runs continue when the bundle is installed again.

    Examples: `callboard flows remove refund@1.2`; `callboard flows remove refund --shared`;
    `callboard flows remove refund@1.2 --server http://127.0.0.1:8123`

    Parameters
    ----------
    ref
        ID@VERSION, or ID for all versions.
    """
    async with at.registry() as (registry, _):
        count = await registry.remove(ref)
    at.tell({"removed": count}, f"{count} removed")
    return Exit.OK if count else Exit.NOT_FOUND


def _bytes_of(file: Path) -> bytes:
    return file.read_bytes()


def _record_to_json(record: BundleRecord) -> dict[str, object]:
    facts: dict[str, object] = {
        "hash": record.hash,
        "size_bytes": record.size_bytes,
        "file": record.place,
    }
    if record.installed_at is not None:
        facts |= {
            "installed_by": record.installed_by,
            "installed_at": record.installed_at.isoformat(),
        }
    return {**record.manifest.model_dump(mode="json"), **facts}


@contextmanager
def _files() -> Iterator[None]:
    """Convert an OSError to a NoDataError that names the file."""
    try:
        yield
    except OSError as exc:
        raise NoDataError(f"{exc.filename}: {exc.strerror or exc}. Name another file") from exc
