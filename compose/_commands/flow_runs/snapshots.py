"""`callboard graphs snapshot|snapshots|restore|delete-snapshot`: stored states of runs of flows."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from actors._kernel.runtime.ids import DEFAULT_TENANT, RunId
from actors._workflow.hosted.runs import FlowRuns
from actors.errors import ContractError
from actors.workflow import Snapshot
from compose._commands import options as opt
from compose._commands.api import NO_SERVER, ApiTarget
from compose._commands.flow_runs.look import AppArg, OwnerOpt, open_graph_run
from compose._commands.flow_runs.served import ServedSnapshots, run_at_server, store_snapshot
from compose._commands.options import HERE, Target, parse_json
from compose._commands.output import ago, print_json
from compose._commands.terminal import say

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
    api: ApiTarget = NO_SERVER,
    target: Target = HERE,
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
    if (served_run := run_at_server(api, target, run)) is not None:
        if by:
            raise ContractError("--by: a server uses the name of the token")
        details = {"description": description, "tags": tag or []}
        if print:
            print_json(await served_run.snapshot(name) | details)
            return 0
        id_ = await store_snapshot(served_run, name, description=description, tags=tag or ())
        return target.tell({"snapshot": id_, "run": run}, id_)
    async with open_graph_run(target, run) as (_, runs, row):
        new_snapshot = await runs.snapshot(
            row.run_id, name, description=description, tags=tag or (), by=by, keep=not print
        )
    if print:
        print_json(new_snapshot.to_dict())
        return 0
    return target.tell({"snapshot": new_snapshot.snapshot_id, "run": run}, new_snapshot.snapshot_id)


async def snapshots(  # noqa: PLR0913 - each is an option
    app: AppArg,
    /,
    *,
    run: str | None = None,
    tag: str | None = None,
    query: str | None = None,
    tenant: OwnerOpt = DEFAULT_TENANT,
    after: str | None = None,
    limit: opt.LimitOpt = 50,
    api: ApiTarget = NO_SERVER,
    target: Target = HERE,
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
    api.check_unused()
    if api.server is not None:
        filters = {"run": run, "tag": tag, "query": query, "after": after, "limit": str(limit)}
        await ServedSnapshots(api.open(target, tenant=tenant), app).print_page(target, filters)
        return
    run_id = None if run is None else RunId(run)
    async with target.client() as runtime:
        runs = FlowRuns(runtime, app, tenant=tenant)
        rows = await runs.snapshots(run=run_id, tag=tag, query=query, after=after, limit=limit + 1)
    target.table(
        rows[:limit],
        "snapshot=id run=run_id agent=agent_id seq name description tags spec_hash created_by created_at",
        ("snapshot", "run", "name", "tags", "kept ago"),
        lambda row: (row.id, row.run_id, row.name, ", ".join(row.tags), ago(row.created_at)),
        empty=f"there is no such snapshot of a run of {app}",
    )
    if len(rows) > limit and not target.json:
        say(f"there are more: --after {rows[limit - 1].id}")


async def restore(
    app: AppArg,
    saved: SavedArg,
    /,
    *,
    id: str | None = None,  # noqa: A002 - the name of the option
    force: bool = False,
    tenant: OwnerOpt = DEFAULT_TENANT,
    api: ApiTarget = NO_SERVER,
    target: Target = HERE,
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
    api.check_unused()
    if api.server is not None:
        if saved.lstrip()[:1] in {"{", "@", "-"}:
            raise ContractError("SNAPSHOT: with --server give the id of a stored snapshot")
        server_snapshots = ServedSnapshots(api.open(target, tenant=tenant), app)
        run = await server_snapshots.restore(saved, key=id, force=force)
        return target.tell({"run": run}, run)
    source = _parse_snapshot(saved) if saved.lstrip()[:1] in {"{", "@", "-"} else saved
    async with target.client() as runtime:
        runs = FlowRuns(runtime, app, tenant=tenant)
        run_id = await runs.restore(source, id=id, force=force)
    return target.tell({"run": run_id}, run_id)


async def delete_snapshot(
    app: AppArg,
    id_: SavedArg,
    /,
    *,
    tenant: OwnerOpt = DEFAULT_TENANT,
    api: ApiTarget = NO_SERVER,
    target: Target = HERE,
) -> int:
    """Remove a stored snapshot. Runs that were started with it stay.

    Example: `callboard graphs delete-snapshot billing 5be1…`

    Parameters
    ----------
    id_
        Id of the snapshot.
    """
    api.check_unused()
    if api.server is not None:
        await ServedSnapshots(api.open(target, tenant=tenant), app).delete(id_)
    else:
        async with target.client() as runtime:
            await FlowRuns(runtime, app, tenant=tenant).delete_snapshot(id_)
    return target.tell({"snapshot": id_, "deleted": True}, f"deleted {id_}")


def _parse_snapshot(text: str) -> Snapshot:
    data: Any = parse_json(text, what="SNAPSHOT")
    if not isinstance(data, dict):
        raise ContractError("SNAPSHOT: give a JSON object")
    try:
        return Snapshot(**data)
    except TypeError as exc:
        raise ContractError(f"SNAPSHOT: the JSON object is not a snapshot: {exc}") from exc
