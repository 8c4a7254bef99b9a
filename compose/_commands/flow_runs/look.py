"""`callboard graphs list|show|ledger|verify`: runs of flows, their states and their ledgers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter

from actors._kernel.runtime.ids import DEFAULT_TENANT, RunId
from actors._kernel.runtime.rows import RunRow
from actors._kernel.stores.runs import RunFilter
from actors._kernel.workflow.effects import WaitState
from actors._kernel.workflow.run_state import RunState
from actors._kernel.workflow.step_record import verify_ledger_chain
from actors._runtime.replay.verdict import known_id
from actors._workflow.hosted.flow_address import flow_and_id
from actors._workflow.hosted.ledger_feed import flow_of, flow_runs, ledger_feed
from actors._workflow.hosted.runs import FlowRuns
from actors._workflow.machine.variables import limit_status
from actors.errors import UnknownRunError
from compose._commands import options as opt
from compose._commands.api import NO_SERVER, ApiTarget
from compose._commands.flow_runs.served import RunData, list_served, print_run, run_at_server
from compose._commands.options import HERE, Target
from compose._commands.output import Exit, ago, pick, print_json, short
from compose._commands.runs.list import open_run, status_of, status_text
from compose._commands.terminal import print_table, say

if TYPE_CHECKING:
    from actors._runtime import Runtime

AppArg = Annotated[str, Parameter(help="The app of the flows: the type of their runs' agents.")]
OwnerOpt = Annotated[str, Parameter(name="--tenant", help="The owner of the runs.")]
_COLUMNS = ("#", "at", "node", "status", "effect", "result or error")


@asynccontextmanager
async def open_graph_run(
    target: Target, run_id: str
) -> AsyncIterator[tuple[Runtime, FlowRuns, RunRow]]:
    """Yield a client, the flow runs of the run's app, and the run's row.

    Raises:
        UnknownRunError: The store has no such run, or it is not a run of a flow.
    """
    async with open_run(target, run_id) as (runtime, row):
        if ":" not in row.agent_id.key:
            raise UnknownRunError(run_id)
        yield runtime, FlowRuns(runtime, row.agent_id.type, tenant=row.agent_id.tenant), row


async def list_graph_runs(
    app: AppArg,
    /,
    *,
    flow: str | None = None,
    status: opt.StatusOpt = None,
    tenant: OwnerOpt = DEFAULT_TENANT,
    after: str | None = None,
    limit: opt.LimitOpt = 50,
    api: ApiTarget = NO_SERVER,
    target: Target = HERE,
) -> None:
    """List runs of the flows of an app, newest first.

    Examples:
    `callboard graphs list billing --data ./data`;
    `callboard graphs list billing --flow refund --status suspended --json`;
    `callboard graphs list billing --status running --server http://127.0.0.1:8123`

    Parameters
    ----------
    flow
        Only runs of this flow. The command reads at most 5,000 runs to find them.
    status
        Only runs in this status: pending, running, suspended, completed, failed or cancelled. With --server:
        running (any open run), completed, failed or cancelled, once.
    after
        Only runs after this run in the list. Give the last run of the page before.
    """
    api.check_unused()
    if api.server is not None:
        filters = {"app": app, "flow": flow, "after": after, "limit": str(limit)}
        await list_served(api.open(target, tenant=tenant), target, filters, status)
        return
    statuses = [status_of(text) for text in status or ()]
    among = RunFilter(type=app, tenant=tenant, after=known_id(after) if after else None)
    async with target.client() as runtime:
        page = await flow_runs(runtime.store.lists, among, flow=flow, status=statuses, limit=limit)
    columns_text = "run=run_id agent=agent_id status parked parent created_at updated_at"
    target.table(
        page.rows,
        lambda row: {**pick(row, columns_text), "flow": flow_of(row)},
        ("run", "flow", "id", "status", "created ago", "changed ago"),
        lambda row: (
            row.run_id,
            *flow_and_id(row.agent_id),
            status_text(row),
            ago(row.created_at),
            ago(row.updated_at),
        ),
        empty=f"there is no such run of a flow of {app}",
    )
    if page.next is not None and not target.json:
        say(f"there may be more: --after {page.next}")


async def show(run: opt.RunIdArg, /, *, api: ApiTarget = NO_SERVER, target: Target = HERE) -> None:
    """Show a run of a flow: its node, its waits and its variables.

    With `--server` and `--json` the data is that of `GET /v1/graph-runs/{run}`.

    Examples: `callboard graphs show 0f3c…`;
    `callboard graphs show 0f3c… --json`;
    `callboard graphs show 0f3c… --server http://127.0.0.1:8123`
    """
    if (served_run := run_at_server(api, target, run)) is not None:
        run_data = await served_run.fetch()
        if target.json:
            print_json(run_data)
        else:
            print_run(run_data, url=served_run.url)
        return
    async with open_graph_run(target, run) as (_, runs, row):
        waits = await runs.waits(row.run_id)
        state = await runs.state(row.run_id)
    if target.json:
        waits_json = [wait.to_dict() for wait in waits]
        print_json({**state.to_dict(), "waits": waits_json, "limits": limit_status(state)})
        return
    print_run(_data_of(row, state, waits))


def _data_of(row: RunRow, state: RunState, waits: Sequence[WaitState]) -> RunData:
    """Return a stored run in the form of an answer of a server."""
    facts = pick(row, "run=run_id parked created_at updated_at")
    facts |= pick(
        state, "flow=workflow_id status node=current_node session=session_id vars output error"
    )
    wait_data = [pick(wait, "reason key=wait_key prompt choices until") for wait in waits]
    return cast("RunData", {**facts, "waits": wait_data})


async def ledger(
    run: opt.RunIdArg,
    /,
    *,
    follow: opt.FollowFlag = False,
    api: ApiTarget = NO_SERVER,
    target: Target = HERE,
) -> None:
    """Print the ledger of a run of a flow: a record for each step. With `--json` each line is one object.

    Examples: `callboard graphs ledger 0f3c…`;
    `callboard graphs ledger 0f3c… --follow --json`;
    `callboard graphs ledger 0f3c… --follow --server http://127.0.0.1:8123`

    Parameters
    ----------
    follow
        Print new records as they are written, until the run has ended.
    """
    if (served_run := run_at_server(api, target, run)) is not None:
        await print_ledger(
            served_run.follow_ledger() if follow else served_run.ledger(), target, follow=follow
        )
        return
    async with open_graph_run(target, run) as (runtime, _, row):
        records = stored_ledger(runtime, row.run_id, follow=follow)
        await print_ledger(records, target, follow=follow)


async def stored_ledger(
    runtime: Runtime, run_id: RunId, *, follow: bool
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the records of a run; with `follow` as they are written, until the run has ended."""
    async with aclosing(ledger_feed(runtime, run_id, follow=follow)) as records:
        async for placed_record in records:
            yield placed_record.record


async def print_ledger(
    feed: AsyncGenerator[dict[str, Any], None], target: Target, *, follow: bool
) -> dict[str, Any]:
    """Print records, with `follow` one line each. Return the end of the run if it is there, unprinted."""
    n, rows, end = 0, list[tuple[str, ...]](), dict[str, Any]()
    async with aclosing(feed) as records:
        async for record in records:
            if "step_id" not in record:
                end = record
                continue
            if target.json:
                print_json(record, compact=True)
            elif follow:
                say("  ".join(_cells(n, record)))
            else:
                rows.append(_cells(n, record))
            n += 1
    if not (target.json or follow):
        print_table(_COLUMNS, rows, empty="the ledger is empty: the run has not started")
    return end


def _cells(n: int, record: dict[str, Any]) -> tuple[str, ...]:
    effect = record.get("effect") or {}
    instant_text = str(record.get("ended_at") or record.get("started_at") or "")[:19].replace(
        "T", " "
    )
    result = record.get("error") or record.get("result")
    kind = str(effect.get("type") or "")
    return (
        str(n),
        instant_text,
        str(record.get("node_id")),
        str(record.get("status")),
        kind,
        short(result),
    )


async def verify(
    run: opt.RunIdArg,
    /,
    *,
    head: str | None = None,
    api: ApiTarget = NO_SERVER,
    target: Target = HERE,
) -> int:
    """Check the chain of hashes of a run's ledger. The exit code is 1 if a record was changed or removed.

    Examples: `callboard graphs verify 0f3c…`;
    `callboard graphs verify 0f3c… --head 9f86d081… --json`

    Parameters
    ----------
    head
        The hash of the last record, which you kept elsewhere. With it the command also finds removed records at
        the ledger's end.
    """
    if (served_run := run_at_server(api, target, run)) is not None:
        records = [record async for record in served_run.ledger()]
    else:
        async with open_graph_run(target, run) as (_, runs, row):
            records = await runs.ledger(row.run_id)
    verdict = verify_ledger_chain(records, head_hash=head)
    text = f"the chain holds: {verdict['count']} record(s), head {verdict['head_hash']}"
    if not verdict["ok"]:
        kind = verdict["errors"][0]["type"]
        text = f"THE CHAIN IS BROKEN at record {verdict['first_bad_index']}: {kind}"
    target.tell({"run": run, **verdict}, text)
    return Exit.OK if verdict["ok"] else Exit.FAILED
