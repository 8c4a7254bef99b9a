"""`callboard graphs start|resume|emit|cancel`: start runs of flows, answer their waits, stop them."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from actors.errors import ContractError
from actors.kernel.runtime.ids import DEFAULT_TENANT
from actors.workflow.actor.flow_address import flow_address
from actors.workflow.actor.run_lists import run_of_id
from actors.workflow.actor.runs import FlowRuns
from compose.commands import options as opt
from compose.commands.graphs.look import AppArg, OwnerOpt, open_graph_run
from compose.commands.options import HERE, Target, parse_json


async def start(
    app: AppArg,
    flow: str,
    variables: Annotated[str, Parameter(name="VARS", allow_leading_hyphen=True)] = "{}",
    /,
    *,
    id: str | None = None,  # noqa: A002 - the name of the option
    actor: str | None = None,
    session: str | None = None,
    tenant: OwnerOpt = DEFAULT_TENANT,
    target: Target = HERE,
) -> int:
    """Start a run of a flow, and print its id. A host of the app executes it.

    The run is durable when its id is printed.

    Examples:
    `callboard graphs start billing refund '{"order": 7}' --id r-7`;
    `RUN=$(callboard graphs start billing refund --session s1)`

    Parameters
    ----------
    flow
        The name of the flow.
    variables
        The run's first variables, a JSON object; - reads it from standard input, @FILE from a file.
    id
        Id of the run. The same id again names the same run.
    actor
        The person or program for which the run acts.
    session
        The run's session. Events of this session's scope answer waits of the run.
    """
    given = parse_json(variables, what="VARS")
    if not isinstance(given, dict):
        raise ContractError("VARS: give a JSON object, such as '{\"order\": 7}'")
    agent = None if id is None else flow_address(app, flow, id, tenant)
    async with target.client() as runtime:
        known = None if agent is None else await run_of_id(runtime.store.lists, agent)
        run_id = None if known is None else known.run_id
        if run_id is None:
            run_id = await FlowRuns(runtime, app, tenant=tenant).start(
                flow, vars=given, id=id, actor_id=actor, session_id=session
            )
    return target.tell({"run": run_id, "is_new": known is None}, run_id)


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
