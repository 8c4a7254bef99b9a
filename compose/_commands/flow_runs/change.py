"""`callboard graphs start`, and the commands that answer, pause, steer, limit and stop runs of flows."""

from __future__ import annotations

import secrets
from typing import Annotated, Literal

from cyclopts import Parameter

from actors._kernel.runtime.ids import DEFAULT_TENANT
from actors._kernel.runtime.scheduler import TERMINAL
from actors.errors import ContractError
from compose._commands import options as opt
from compose._commands.deployment import DEPLOYMENT, Deployment, check_hint, repeat_hint
from compose._commands.flow_runs.look import AppArg, OwnerOpt, print_ledger
from compose._commands.options import parse_json
from compose._commands.output import Exit, print_json
from compose._commands.terminal import say


async def start(  # noqa: PLR0913 - each is an option
    app: AppArg,
    flow: str,
    variables: Annotated[str, Parameter(name="VARS", allow_leading_hyphen=True)] = "{}",
    /,
    *,
    id: str | None = None,  # noqa: A002 - the name of the option
    actor: str | None = None,
    session: str | None = None,
    follow: opt.FollowFlag = False,
    tenant: OwnerOpt = DEFAULT_TENANT,
    deployment: Deployment = DEPLOYMENT,
) -> int:
    """Start a run of a flow, and print its id. A host of the app executes it.

    The run is durable when its id is printed. With `--follow` the exit code is 1 if the run fails. If you end
    the command, or it dies, the run continues.

    Examples:
    `callboard graphs start billing refund '{"order": 7}' --id r-7`;
    `RUN=$(callboard graphs start billing refund --session s1)`;
    `callboard graphs start installed refund@1.2 '{"order": 7}' --follow --server http://127.0.0.1:8123`

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
    follow
        Print the records of the run's ledger as they are written, until the run has ended. With `--json` each
        line is one object: the run, its records, and its end.
    """
    first_variables = parse_json(variables, what="VARS")
    if not isinstance(first_variables, dict):
        raise ContractError("VARS: give a JSON object, such as '{\"order\": 7}'")
    key = id or secrets.token_hex(16)
    async with deployment.open(tenant=tenant) as callboard:
        with repeat_hint(f"with --id {key} it starts one run"):
            new_run, is_new = await callboard.graph_runs.start(
                flow, first_variables, app=app, key=key, actor_id=actor, session_id=session
            )
        run = new_run.run
        if deployment.json:
            print_json({"run": run, "is_new": is_new}, compact=follow)
        else:
            say(run)
        if not follow:
            return Exit.OK
        end = await print_ledger(callboard.graph_runs.follow(run), deployment, follow=True)
    if deployment.json:
        print_json(end, compact=True)
    else:
        say(f"{run} is {end['status']}")
    return Exit.OK if end["status"] == "completed" else Exit.FAILED


async def resume(
    run: opt.RunIdArg,
    key: str,
    payload: opt.JsonArg = "null",
    /,
    *,
    deployment: Deployment = DEPLOYMENT,
) -> int:
    """Answer a wait of a run, once. The run continues.

    Examples: `callboard graphs resume 0f3c… ok '{"response": "yes"}'`;
    `callboard graphs resume 0f3c… job-7 @result.json --json`;
    `callboard graphs resume 0f3c… ok true --server http://127.0.0.1:8123`

    Parameters
    ----------
    key
        Key of the wait, as `callboard graphs show` prints it.
    payload
        The answer, JSON data; - reads it from standard input, @FILE from a file.
    """
    answer = parse_json(payload, what="the answer")
    async with deployment.open(run=run) as callboard:
        await callboard.graph_runs.answer(run, key, answer)
    return deployment.tell({"run": run, "answered": key}, f"answered {key}: the run continues")


async def emit(
    name: str,
    payload: opt.JsonArg = "null",
    /,
    *,
    scope: Literal["session", "workflow", "run", "global"] = "global",
    key: str | None = None,
    id: str | None = None,  # noqa: A002 - the name of the option
    tenant: OwnerOpt = DEFAULT_TENANT,
    deployment: Deployment = DEPLOYMENT,
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
    id_ = id or secrets.token_hex(16)
    async with deployment.open(tenant=tenant) as callboard:
        with repeat_hint(f"with --id {id_} it is one event"):
            result = await callboard.emit(name, data, scope=scope, key=key, id=id_)
    text = f"answered {result.delivered} wait(s) for {name}"
    return deployment.tell(result.model_dump(mode="json"), text)


async def cancel(
    run: opt.RunIdArg,
    /,
    *,
    reason: str = "cancelled by operator",
    deployment: Deployment = DEPLOYMENT,
) -> int:
    """Ask a run of a flow and its sub-graphs to stop. An ended run does not change.

    Example: `callboard graphs cancel 0f3c… --reason 'wrong customer'`

    Parameters
    ----------
    reason
        Text that the run's log keeps.
    """
    async with deployment.open(run=run) as callboard:
        status = str((await callboard.graph_runs.get(run)).status).upper()
        await callboard.graph_runs.cancel(run, reason)
    has_ended = status in TERMINAL
    text = f"run {run} has ended {status} already" if has_ended else f"asked {run} to stop"
    return deployment.tell({"run": run, "was": status}, text)


async def pause(
    run: opt.RunIdArg, /, *, reason: str | None = None, deployment: Deployment = DEPLOYMENT
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
    async with deployment.open(run=run) as callboard:
        await callboard.graph_runs.pause(run, reason)
    return deployment.tell({"run": run, "paused": True}, f"asked {run} to pause")


async def resume_run(run: opt.RunIdArg, /, *, deployment: Deployment = DEPLOYMENT) -> int:
    """Continue a paused run of a flow.

    Example: `callboard graphs resume-run 0f3c…`
    """
    async with deployment.open(run=run) as callboard:
        await callboard.graph_runs.resume(run)
    return deployment.tell({"run": run, "paused": False}, f"{run} continues")


async def steer(run: opt.RunIdArg, message: str, /, *, deployment: Deployment = DEPLOYMENT) -> int:
    """Add a message to the inbox of a run of a flow, which its nodes read.

    Example: `callboard graphs steer 0f3c… 'Only orders of this year'`

    Parameters
    ----------
    message
        Text of the message.
    """
    async with deployment.open(run=run) as callboard:
        with check_hint(f"callboard graphs ledger {run}"):
            await callboard.graph_runs.steer(run, message)
    return deployment.tell({"run": run, "message": message}, f"steered {run}")


async def limits(
    run: opt.RunIdArg,
    updates: Annotated[str, Parameter(name="UPDATES", allow_leading_hyphen=True)],
    /,
    *,
    deployment: Deployment = DEPLOYMENT,
) -> int:
    """Change limits of a run of a flow.

    Example: `callboard graphs limits 0f3c… '{"max_iterations": 50}'`

    Parameters
    ----------
    updates
        Limits by name, a JSON object; - reads it from standard input, @FILE from a file.
    """
    changes = parse_json(updates, what="UPDATES")
    if not isinstance(changes, dict):
        raise ContractError("UPDATES: give a JSON object")
    async with deployment.open(run=run) as callboard:
        await callboard.graph_runs.set_limits(run, changes)
    return deployment.tell({"run": run, "updates": changes}, f"changed limits of {run}")
