"""`callboard graphs resume|emit|cancel`: answer waits of runs of flows, and stop runs."""

from __future__ import annotations

from typing import Literal

from actors.errors import ContractError
from actors.kernel.runtime.ids import DEFAULT_TENANT
from actors.workflow.actor.runs import FlowRuns
from compose.commands import options as opt
from compose.commands.graphs.look import OwnerOpt, open_graph_run
from compose.commands.options import HERE, Target, parse_json


async def resume(
    run: opt.RunIdArg, key: str, payload: opt.JsonArg = "null", /, *, target: Target = HERE
) -> int:
    """Answer a wait of a run, once. The run continues.

    Examples: `callboard graphs resume 0f3c… ok '{"response": "yes"}'`;
    `callboard graphs resume 0f3c… job-7 @result.json --json`

    Parameters
    ----------
    key
        Key of the wait, as `callboard graphs show` prints it.
    payload
        The answer, JSON data; - reads it from standard input, @FILE from a file.
    """
    answer = parse_json(payload, what="the answer")
    async with open_graph_run(target, run) as (_, runs, row):
        await runs.resume(row.run_id, key, answer)
    return target.tell({"run": run, "answered": key}, f"answered {key}: the run continues")


async def emit(
    name: str,
    payload: opt.JsonArg = "null",
    /,
    *,
    scope: Literal["session", "workflow", "run", "global"] = "global",
    key: str | None = None,
    id: str | None = None,  # noqa: A002 - the name of the option
    tenant: OwnerOpt = DEFAULT_TENANT,
    target: Target = HERE,
) -> int:
    """Answer all waits of a tenant's runs for an event.

    Examples: `callboard graphs emit paid '{"amount": 5}' --scope session --key s1 --id e-1`;
    `callboard graphs emit closing-time --json`

    Parameters
    ----------
    name
        Name of the event in the waits.
    payload
        The event's data, JSON; - reads it from standard input, @FILE from a file.
    scope
        Scope of the waits that the event answers.
    key
        The session, the flow or the run of the scope. A global event has no key.
    id
        Id of the event. An event with one id answers at most one wait of each run. Default: a new id.
    """
    data = parse_json(payload, what="the event")
    if (key is None) != (scope == "global"):
        raise ContractError("--key goes with --scope session, workflow and run, and with no other")
    within = {} if key is None else {f"{scope}_id": key}
    async with target.client() as runtime:
        runs = FlowRuns(runtime, "", tenant=tenant)
        told = await runs.emit(name, data, event_id=id, scope=scope, **within)
    return target.tell(told, f"answered {told['delivered']} wait(s) for {name}")


async def cancel(
    run: opt.RunIdArg, /, *, reason: str = "cancelled by operator", target: Target = HERE
) -> int:
    """Ask a run of a flow and its sub-graphs to stop. An ended run does not change.

    Example: `callboard graphs cancel 0f3c… --reason 'wrong customer'`

    Parameters
    ----------
    reason
        Text that the run's log keeps.
    """
    async with open_graph_run(target, run) as (_, runs, row):
        await runs.cancel(row.run_id, reason=reason)
    status = str(row.status)
    text = (
        f"run {run} has ended {status} already"
        if row.status.is_terminal
        else f"asked {run} to stop"
    )
    return target.tell({"run": run, "was": status}, text)
