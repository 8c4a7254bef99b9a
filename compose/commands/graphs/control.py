"""`callboard graphs pause|resume-run|steer|limits`: pause, continue, steer and limit runs of flows."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from actors.errors import ContractError
from compose.commands import options as opt
from compose.commands.api import NO_SERVER, ApiTarget
from compose.commands.graphs.look import open_graph_run
from compose.commands.graphs.served import NamedRunData, served_run
from compose.commands.options import HERE, Target, parse_json


async def pause(
    run: opt.RunIdArg,
    /,
    *,
    reason: str | None = None,
    api: ApiTarget = NO_SERVER,
    target: Target = HERE,
) -> int:
    """Pause a run of a flow between two of its steps, until `resume-run`.

    An effect that is executing ends before the pause. If an answer, an event or a timer ends a wait during the
    pause, it is kept, and the run uses it when it continues.

    Examples: `callboard graphs pause 0f3c… --reason 'check the prices'`;
    `callboard graphs pause 0f3c… --server http://127.0.0.1:8123`

    Parameters
    ----------
    reason
        Text that the run's ledger keeps.
    """
    if (there := served_run(api, target, run)) is not None:
        await there.send("pause", {"reason": reason}, NamedRunData)
    else:
        async with open_graph_run(target, run) as (_, runs, row):
            await runs.pause_run(row.run_id, reason)
    return target.tell({"run": run, "paused": True}, f"asked {run} to pause")


async def resume_run(
    run: opt.RunIdArg, /, *, api: ApiTarget = NO_SERVER, target: Target = HERE
) -> int:
    """Continue a paused run of a flow.

    Example: `callboard graphs resume-run 0f3c…`
    """
    if (there := served_run(api, target, run)) is not None:
        await there.send("resume", None, NamedRunData)
    else:
        async with open_graph_run(target, run) as (_, runs, row):
            await runs.resume_run(row.run_id)
    return target.tell({"run": run, "paused": False}, f"{run} continues")


async def steer(
    run: opt.RunIdArg, message: str, /, *, api: ApiTarget = NO_SERVER, target: Target = HERE
) -> int:
    """Add a message to the inbox of a run of a flow, which its nodes read.

    Example: `callboard graphs steer 0f3c… 'Only orders of this year'`

    Parameters
    ----------
    message
        Text of the message.
    """
    if (there := served_run(api, target, run)) is not None:
        look = "`callboard graphs ledger {run} --server {url}`"
        await there.send("steer", {"message": message}, NamedRunData, look=look)
    else:
        async with open_graph_run(target, run) as (_, runs, row):
            await runs.steer(row.run_id, message)
    return target.tell({"run": run, "message": message}, f"steered {run}")


async def limits(
    run: opt.RunIdArg,
    updates: Annotated[str, Parameter(name="UPDATES", allow_leading_hyphen=True)],
    /,
    *,
    api: ApiTarget = NO_SERVER,
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
    if (there := served_run(api, target, run)) is not None:
        await there.send("limits", {"updates": given}, NamedRunData)
    else:
        async with open_graph_run(target, run) as (_, runs, row):
            await runs.update_limits(row.run_id, given)
    return target.tell({"run": run, "updates": given}, f"changed limits of {run}")


def _object(text: str, what: str) -> dict[str, Any]:
    given = parse_json(text, what=what)
    if not isinstance(given, dict):
        raise ContractError(f"{what}: give a JSON object")
    return given
