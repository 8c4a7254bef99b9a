"""`callboard graphs pause|resume-run|steer|limits|snapshot|restore`: what operators do with runs of flows."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from actors.errors import ContractError
from actors.kernel.runtime.ids import DEFAULT_TENANT
from actors.workflow import Snapshot
from actors.workflow.actor.runs import FlowRuns
from compose.commands import options as opt
from compose.commands.graphs.look import AppArg, OwnerOpt, open_graph_run
from compose.commands.options import HERE, Target, parse_json
from compose.commands.output import print_json


async def pause(run: opt.RunIdArg, /, *, reason: str | None = None, target: Target = HERE) -> int:
    """Pause a run of a flow between two of its steps, until `resume-run`.

    An effect that executes ends first. Answers that come meanwhile are kept, instants are held.

    Example: `callboard graphs pause 0f3c… --reason 'check the prices'`

    Parameters
    ----------
    reason
        Kept in the run's ledger.
    """
    async with open_graph_run(target, run) as (_, runs, row):
        await runs.pause_run(row.run_id, reason)
    return target.tell({"run": run, "paused": True}, f"asked {run} to pause")


async def resume_run(run: opt.RunIdArg, /, *, target: Target = HERE) -> int:
    """Let a paused run of a flow go on.

    Example: `callboard graphs resume-run 0f3c…`
    """
    async with open_graph_run(target, run) as (_, runs, row):
        await runs.resume_run(row.run_id)
    return target.tell({"run": run, "paused": False}, f"{run} goes on")


async def steer(run: opt.RunIdArg, message: str, /, *, target: Target = HERE) -> int:
    """Add a message to the inbox of a run of a flow, which its nodes read.

    Example: `callboard graphs steer 0f3c… 'Only orders of this year'`

    Parameters
    ----------
    message
        The text.
    """
    async with open_graph_run(target, run) as (_, runs, row):
        await runs.steer(row.run_id, message)
    return target.tell({"run": run, "message": message}, f"steered {run}")


async def limits(
    run: opt.RunIdArg,
    updates: Annotated[str, Parameter(name="UPDATES", allow_leading_hyphen=True)],
    /,
    *,
    target: Target = HERE,
) -> int:
    """Change limits of a run of a flow.

    Example: `callboard graphs limits 0f3c… '{"max_iterations": 50}'`

    Parameters
    ----------
    updates
        Limits by name, a JSON object; - reads it from standard input, @FILE from a file.
    """
    given = _object(updates, "UPDATES")
    async with open_graph_run(target, run) as (_, runs, row):
        await runs.update_limits(row.run_id, given)
    return target.tell({"run": run, "updates": given}, f"changed limits of {run}")


async def snapshot(run: opt.RunIdArg, name: str, /, *, target: Target = HERE) -> int:
    """Print a snapshot of a run of a flow: JSON, with which `restore` begins another run.

    Example: `callboard graphs snapshot 0f3c… 'before the payment' > payment.json`

    Parameters
    ----------
    name
        For people.
    """
    async with open_graph_run(target, run) as (_, runs, row):
        print_json((await runs.snapshot(row.run_id, name)).to_dict())
    return 0


async def restore(
    app: AppArg,
    saved: Annotated[str, Parameter(name="SNAPSHOT")],
    /,
    *,
    id: str | None = None,  # noqa: A002 - the name of the option
    force: bool = False,
    tenant: OwnerOpt = DEFAULT_TENANT,
    target: Target = HERE,
) -> int:
    """Begin a new run with the state of a snapshot, and print its id. Its open wait is opened again.

    Example: `callboard graphs restore billing @payment.json --id r-8`

    Parameters
    ----------
    saved
        What `snapshot` printed; - reads it from standard input, @FILE from a file.
    id
        The same one again is the same run.
    force
        Also if the graph is another one by now; its nodes must still fit.
    """
    try:
        found = Snapshot(**_object(saved, "SNAPSHOT"))
    except TypeError as exc:
        raise ContractError(f"SNAPSHOT: it is none: {exc}") from exc
    async with target.client() as runtime:
        runs = FlowRuns(runtime, app, tenant=tenant)
        run_id = await runs.restore(found, id=id, force=force)
    return target.tell({"run": run_id}, run_id)


def _object(text: str, what: str) -> dict[str, Any]:
    given = parse_json(text, what=what)
    if not isinstance(given, dict):
        raise ContractError(f"{what}: give a JSON object")
    return given
