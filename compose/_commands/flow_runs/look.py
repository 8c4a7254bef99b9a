"""`callboard graphs list|show|ledger|verify`: runs of flows, their states and their ledgers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from actors._kernel.runtime.ids import DEFAULT_TENANT
from actors._kernel.workflow.step_record import verify_ledger_chain
from compose._commands import options as opt
from compose._commands.deployment import DEPLOYMENT, Deployment
from compose._commands.output import Exit, ago, print_json, short
from compose._commands.terminal import print_facts, print_table, say

if TYPE_CHECKING:
    from compose._web.flows.runs import GraphRunJson, ListedGraphRunJson

AppArg = Annotated[str, Parameter(help="The app of the flows: the type of their runs' agents.")]
OwnerOpt = Annotated[str, Parameter(name="--tenant", help="The owner of the runs.")]
_COLUMNS = ("#", "at", "node", "status", "effect", "result or error")
_WITHIN: Final = ("until", "subworkflow")
"""Reasons of waits that no client can answer."""


async def list_graph_runs(
    app: AppArg,
    /,
    *,
    flow: str | None = None,
    status: opt.StatusOpt = None,
    tenant: OwnerOpt = DEFAULT_TENANT,
    after: str | None = None,
    limit: opt.LimitOpt = 50,
    deployment: Deployment = DEPLOYMENT,
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
        Only runs in this status: running (any open run), pending, suspended, completed, failed or cancelled.
    after
        Only runs after this run in the list. Give the last run of the page before.
    """
    async with deployment.open(tenant=tenant) as callboard:
        page = await callboard.graph_runs.list(
            app=app, flow=flow, status=[s.lower() for s in status or ()], after=after, limit=limit
        )
    deployment.table(
        page.runs,
        lambda run: run.model_dump(mode="json"),
        ("run", "flow", "status", "created ago", "changed ago"),
        lambda run: (run.run, run.flow, _status(run), ago(run.created_at), ago(run.updated_at)),
        empty_text=f"there is no such run of a flow of {app}",
    )
    if page.next is not None and not deployment.json:
        say(f"there may be more: --after {page.next}")


async def show(run: opt.RunIdArg, /, *, deployment: Deployment = DEPLOYMENT) -> None:
    """Show a run of a flow: its node, its waits and its variables.

    With `--json` the data is that of `GET /v1/graph-runs/{run}`.

    Examples: `callboard graphs show 0f3c…`;
    `callboard graphs show 0f3c… --json`;
    `callboard graphs show 0f3c… --server http://127.0.0.1:8123`
    """
    async with deployment.open(run=run) as callboard:
        run_json = await callboard.graph_runs.get(run)
    if deployment.json:
        print_json(run_json.model_dump(mode="json"))
    else:
        _print_run(run_json, deployment.server)


def _status(run: ListedGraphRunJson) -> str:
    return f"PARKED ({run.parked})" if run.parked else run.status


def _print_run(run: GraphRunJson, server: str | None) -> None:
    public = ((name, short(value)) for name, value in run.vars.items() if name[:1] != "_")
    print_facts(
        (
            ("run", run.run),
            ("flow", run.flow),
            ("status", _status(run)),
            ("node", run.node),
            ("session", run.session),
            ("created", f"{ago(run.created_at)} ago"),
            ("changed", f"{ago(run.updated_at)} ago"),
            ("output", short(run.output)),
            ("error", run.error),
            *public,
        )
    )
    server_option = "" if server is None else f" --server {server}"
    for wait in run.waits:
        until = "" if wait.until is None else f", until {wait.until}"
        choices = f" ({' / '.join(wait.choices)})" if wait.choices else ""
        say(f"waits for {wait.reason} {wait.key}{until}: {wait.prompt or ''}{choices}")
        if wait.reason not in _WITHIN:
            say(f"  callboard graphs resume {run.run} {wait.key} JSON{server_option}")


async def ledger(
    run: opt.RunIdArg, /, *, follow: opt.FollowFlag = False, deployment: Deployment = DEPLOYMENT
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
    async with deployment.open(run=run) as callboard:
        runs = callboard.graph_runs
        records = runs.follow(run) if follow else runs.ledger(run)
        await print_ledger(records, deployment, follow=follow)


async def print_ledger(
    feed: AsyncGenerator[dict[str, Any], None], deployment: Deployment, *, follow: bool
) -> dict[str, Any]:
    """Print records, with `follow` one line each. Return the end of the run if it is there, unprinted."""
    n, rows, end = 0, list[tuple[str, ...]](), dict[str, Any]()
    async with aclosing(feed) as records:
        async for record in records:
            if "step_id" not in record:
                end = record
                continue
            if deployment.json:
                print_json(record, compact=True)
            elif follow:
                say("  ".join(_cells(n, record)))
            else:
                rows.append(_cells(n, record))
            n += 1
    if not (deployment.json or follow):
        print_table(_COLUMNS, rows, empty_text="the ledger is empty: the run has not started")
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
    run: opt.RunIdArg, /, *, head: str | None = None, deployment: Deployment = DEPLOYMENT
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
    async with deployment.open(run=run) as callboard:
        records = [record async for record in callboard.graph_runs.ledger(run)]
    verdict = verify_ledger_chain(records, head_hash=head)
    text = f"the chain holds: {verdict['count']} record(s), head {verdict['head_hash']}"
    if not verdict["ok"]:
        kind = verdict["errors"][0]["type"]
        text = f"THE CHAIN IS BROKEN at record {verdict['first_bad_index']}: {kind}"
    deployment.tell({"run": run, **verdict}, text)
    return Exit.OK if verdict["ok"] else Exit.FAILED
