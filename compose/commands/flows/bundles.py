"""`callboard flows pack|install|list|show|remove`: bundles of flows, in files and in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from actors.errors import ContractError
from actors.workflow.bundles import InstalledBundle, WorkflowBundleRegistry, pack_workflow_bundle
from compose.commands.options import DebugFlag, Flag
from compose.commands.output import Exit, NoDataError, print_json
from compose.commands.terminal import print_table, say


def pack(
    root: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=("--output", "-o"))],
    id: str | None = None,  # noqa: A002 - the name of the option
    version: str | None = None,
    flows_dir: Path | None = None,
    asset: tuple[Path, ...] = (),
    json: Flag = False,
    debug: DebugFlag = False,
) -> int:
    """Pack a flow, and all flows that it refers to, into one file.

    The same flows are the same bytes. All flows are checked first.

    Examples: `callboard flows pack refund.json -o refund.flow`;
    `callboard flows pack main.yaml -o main.flow --version 1.3 --asset logo.png`

    Parameters
    ----------
    root
        The flow document or VisualFlow that runs begin with.
    output
        The file to write.
    id
        The name of the bundle; without it the flow's id.
    version
        Its version; without it the flow's version.
    flows_dir
        The folder with the other flows, each named like its id; without it that of the first one.
    asset
        A file to put in.
    json
        Print one JSON object.
    """
    del debug  # read by `compose.cli`, for every command alike
    with _files():
        bundle = pack_workflow_bundle(
            root,
            output,
            bundle_id=id,
            bundle_version=version,
            flows_dir=flows_dir,
            assets={one.name: one for one in asset},
        )
    told = {"bundle": bundle.manifest.ref, "hash": bundle.hash, "file": str(output)}
    if json:
        print_json(told)
    else:
        many = len(bundle.manifest.flows)
        say(f"{bundle.manifest.ref}: {many} flow{'s' if many > 1 else ''} in {output}")
    return Exit.OK


def install(
    file: Path,
    /,
    *,
    directory: Path | None = None,
    overwrite: Flag = False,
    json: Flag = False,
    debug: DebugFlag = False,
) -> int:
    """Install a bundle into a folder, which a host serves: `callboard host FOLDER`.

    The same bundle again changes nothing. Another one of the same version is refused.

    Examples: `callboard flows install refund.flow`; `callboard flows install refund.flow --directory ./flows`

    Parameters
    ----------
    file
        The bundle.
    directory
        The folder; without it that of ABSTRACTFRAMEWORK_WORKFLOWS_DIR, ./flows/bundles or ~/.callboard/flows.
    overwrite
        Replace a bundle of the same version.
    json
        Print one JSON object.
    """
    del debug
    registry = WorkflowBundleRegistry(directory)
    with _files():
        installed = registry.install(file, overwrite=True if overwrite else None)
    if json:
        print_json(_told(installed))
    else:
        say(f"{installed.bundle_ref} is in {registry.folder}")
    return Exit.OK


def list_bundles(
    *, directory: Path | None = None, json: Flag = False, debug: DebugFlag = False
) -> int:
    """List installed bundles, by name, the newest version first.

    Example: `callboard flows list --directory ./flows`

    Parameters
    ----------
    directory
        See `callboard flows install`.
    json
        Print one JSON list.
    """
    del debug
    registry = WorkflowBundleRegistry(directory)
    found = registry.list_bundles()
    if json:
        print_json([_told(one) for one in found])
        return Exit.OK
    rows = [
        (one.bundle_ref, one.manifest.entry.name, len(one.manifest.flows), one.path)
        for one in found
    ]
    empty = f"no bundles in {registry.folder}"
    print_table(("BUNDLE", "NAME", "FLOWS", "FILE"), rows, empty=empty)
    return Exit.OK


def show(
    ref: str, /, *, directory: Path | None = None, json: Flag = False, debug: DebugFlag = False
) -> int:
    """Show a bundle: its flows, their nodes and its hash.

    Example: `callboard flows show refund@1.2`

    Parameters
    ----------
    ref
        ID@VERSION, or ID for the newest version.
    directory
        See `callboard flows install`.
    json
        Print one JSON object.
    """
    del debug
    with _known():
        bundle = WorkflowBundleRegistry(directory).open(ref)
    specs = bundle.specs()
    if json:
        flows = {one.workflow_id: one.described() for one in specs}
        told = bundle.manifest.model_dump(mode="json")
        print_json({**told, "hash": bundle.hash, "graphs": flows})
        return Exit.OK
    say(f"{bundle.manifest.ref}, hash {bundle.hash}")
    rows = [(one.workflow_id, one.entry_node, len(one.nodes), one.hash) for one in specs]
    print_table(("FLOW", "START", "NODES", "HASH"), rows, empty="no flows")
    return Exit.OK


def remove(
    ref: str, /, *, directory: Path | None = None, json: Flag = False, debug: DebugFlag = False
) -> int:
    """Remove a bundle from its folder. Hosts that have loaded it go on with it until they restart.

    Open runs of its flows are parked by name by hosts that do not have it, and go on when it is back.

    Examples: `callboard flows remove refund@1.2`; `callboard flows remove refund`

    Parameters
    ----------
    ref
        ID@VERSION, or ID for all versions.
    directory
        See `callboard flows install`.
    json
        Print one JSON object.
    """
    del debug
    count = WorkflowBundleRegistry(directory).remove(ref)
    if json:
        print_json({"removed": count})
    else:
        say(f"{count} removed")
    return Exit.OK if count else Exit.NOT_FOUND


def _told(one: InstalledBundle) -> dict[str, object]:
    return {**one.manifest.model_dump(mode="json"), "file": str(one.path)}


@contextmanager
def _files() -> Iterator[None]:
    """Say what is wrong with a file by its name."""
    try:
        yield
    except OSError as exc:
        raise NoDataError(f"{exc.filename}: {exc.strerror or exc}. Name another file") from exc


@contextmanager
def _known() -> Iterator[None]:
    """Say that a bundle is not installed with the exit code for that."""
    try:
        yield
    except ContractError as exc:
        raise NoDataError(str(exc)) from exc
