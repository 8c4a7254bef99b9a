"""`callboard graphs snapshot|snapshots|restore|delete-snapshot`: stored states of runs of flows."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from actors._kernel.runtime.ids import DEFAULT_TENANT
from actors._kernel.workflow.errors import NoSuchSnapshotError
from actors._workflow.hosted.runs import FlowRuns
from actors.errors import ContractError
from actors.workflow import Snapshot
from compose._commands import options as opt
from compose._commands.deployment import DEPLOYMENT, PRINCIPAL, Deployment, check_hint, repeat_hint
from compose._commands.flow_runs.look import AppArg, OwnerOpt
from compose._commands.options import parse_json
from compose._commands.output import Exit, ago, print_json
from compose._commands.terminal import say

if TYPE_CHECKING:
    from compose._client.callboard import Callboard

SavedArg = Annotated[str, Parameter(name="SNAPSHOT")]


async def snapshot(
    run: opt.RunIdArg,
    name: str,
    /,
    *,
    tag: list[str] | None = None,
    description: str = "",
    by: str = "",
    print: bool = False,  # noqa: A002 - the name of the option
    deployment: Deployment = DEPLOYMENT,
) -> int:
    """Store a snapshot of a run of a flow, and print the snapshot's id. `restore` starts another run with it.

    Examples: `callboard graphs snapshot 0f3c… 'before the payment' --tag prices`;
    `callboard graphs snapshot 0f3c… 'before the payment' --print > payment.json`

    Parameters
    ----------
    name
        Name of the snapshot, for people.
    tag
        Tag by which `graphs snapshots` finds the snapshot. Give it several times for several tags.
    description
        Description of the snapshot, for people.
    by
        Name of the person who makes the snapshot. A server uses the name of the token.
    print
        Print the whole snapshot as JSON, and do not store it.
    """
    if by and deployment.server is not None:
        raise ContractError("--by: a server uses the name of the token")
    async with deployment.open(run=run, principal=by or PRINCIPAL) as callboard:
        if print:
            whole_snapshot = await callboard.graph_runs.snapshot(run, name)
            details = {"description": description, "tags": tag or []}
            print_json(whole_snapshot.model_dump(mode="json") | details)
            return Exit.OK
        with check_hint(f"callboard graphs snapshots APP --run {run}"):
            stored_snapshot = await callboard.snapshots.create(
                run, name, description=description, tags=tag or ()
            )
    id_ = stored_snapshot.snapshot
    return deployment.tell({"snapshot": id_, "run": run}, id_)


async def snapshots(
    app: AppArg,
    /,
    *,
    run: str | None = None,
    tag: str | None = None,
    query: str | None = None,
    tenant: OwnerOpt = DEFAULT_TENANT,
    after: str | None = None,
    limit: opt.LimitOpt = 50,
    deployment: Deployment = DEPLOYMENT,
) -> None:
    """List stored snapshots of runs of an app's flows, newest first.

    Examples: `callboard graphs snapshots billing --tag prices`;
    `callboard graphs snapshots billing --run 0f3c… --json`;
    `callboard graphs snapshots billing --server http://127.0.0.1:8123`

    Parameters
    ----------
    run
        Only snapshots of this run.
    tag
        Only snapshots with this tag.
    query
        Only snapshots with this text in the name or the description.
    after
        Only snapshots after this snapshot in the list. Give the last snapshot of the page before.
    """
    async with deployment.open(tenant=tenant) as callboard:
        page = await callboard.snapshots.list(
            app=app, run=run, tag=tag, query=query, after=after, limit=limit
        )
    deployment.table(
        page.snapshots,
        lambda row: row.model_dump(mode="json"),
        ("snapshot", "run", "name", "tags", "kept ago"),
        lambda row: (row.snapshot, row.run, row.name, ", ".join(row.tags), ago(row.created_at)),
        empty_text=f"there is no such snapshot of a run of {app}",
    )
    if page.next is not None and not deployment.json:
        say(f"there are more: --after {page.next}")


async def restore(
    app: AppArg,
    saved: SavedArg,
    /,
    *,
    id: str | None = None,  # noqa: A002 - the name of the option
    force: bool = False,
    tenant: OwnerOpt = DEFAULT_TENANT,
    deployment: Deployment = DEPLOYMENT,
) -> int:
    """Start a new run with the state of a snapshot, and print its id. An open wait is opened again.

    Examples: `callboard graphs restore billing 5be1… --id r-8`;
    `callboard graphs restore billing @payment.json --id r-8`

    Parameters
    ----------
    saved
        The id of a stored snapshot, or the JSON of `snapshot --print`: - reads it from standard input,
        @FILE from a file.
    id
        Id of the new run. The same id again names the same run.
    force
        Start the run even if the graph has changed since the snapshot. Its nodes must still fit.
    """
    if saved.lstrip()[:1] not in {"{", "@", "-"}:
        key = id or secrets.token_hex(16)
        async with deployment.open(tenant=tenant) as callboard:
            await _check_app(callboard, app, saved)
            with repeat_hint(f"with --id {key} it starts one run"):
                run = (await callboard.snapshots.restore(saved, key=key, force=force)).run
        return deployment.tell({"run": run}, run)
    # A state that a client sends could be one that no run ever had: only who may write to the database may.
    if deployment.server is not None:
        raise ContractError("SNAPSHOT: with --server give the id of a stored snapshot")
    source = _parse_snapshot(saved)
    async with deployment.client() as runtime:
        runs = FlowRuns(runtime, app, tenant=tenant)
        run_id = await runs.restore(source, id=id, force=force)
    return deployment.tell({"run": run_id}, run_id)


async def delete_snapshot(
    app: AppArg,
    id_: SavedArg,
    /,
    *,
    tenant: OwnerOpt = DEFAULT_TENANT,
    deployment: Deployment = DEPLOYMENT,
) -> int:
    """Remove a stored snapshot. Runs that were started with it stay.

    Example: `callboard graphs delete-snapshot billing 5be1…`

    Parameters
    ----------
    id_
        Id of the snapshot.
    """
    async with deployment.open(tenant=tenant) as callboard:
        await _check_app(callboard, app, id_)
        await callboard.snapshots.delete(id_)
    return deployment.tell({"snapshot": id_, "deleted": True}, f"deleted {id_}")


async def _check_app(callboard: Callboard, app: str, id_: str) -> None:
    """Check that a snapshot is one of this app.

    Raises:
        NoSuchSnapshotError: It is not.
    """
    if (await callboard.snapshots.get(id_)).app != app:
        raise NoSuchSnapshotError(id_)


def _parse_snapshot(text: str) -> Snapshot:
    data: Any = parse_json(text, what="SNAPSHOT")
    if not isinstance(data, dict):
        raise ContractError("SNAPSHOT: give a JSON object")
    try:
        return Snapshot(**data)
    except TypeError as exc:
        raise ContractError(f"SNAPSHOT: the JSON object is not a snapshot: {exc}") from exc
