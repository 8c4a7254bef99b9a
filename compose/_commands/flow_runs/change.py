"""`callboard graphs start`, and the commands that answer, pause, steer, limit and stop runs of flows.

Each command works in a database or at a server.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from typing_extensions import TypedDict

from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import DEFAULT_TENANT, RunId
from actors._kernel.runtime.scheduler import TERMINAL
from actors._runtime import Runtime
from actors._runtime.replay.verdict import row_of
from actors._workflow.hosted.flow_address import flow_address
from actors._workflow.hosted.ledger_feed import run_of_id
from actors._workflow.hosted.runs import FlowRuns
from actors.errors import ContractError
from compose._commands import options as opt
from compose._commands.api import NO_SERVER, Api, ApiTarget, quote_name, repeat_hint
from compose._commands.flow_runs.look import (
    AppArg,
    OwnerOpt,
    open_graph_run,
    print_ledger,
    stored_ledger,
)
from compose._commands.flow_runs.served import NamedRunData, ServedRun, run_at_server
from compose._commands.options import HERE, Target, parse_json
from compose._commands.output import Exit, print_json
from compose._commands.terminal import say


class EmittedData(TypedDict):
    """The answer to an event: fields of the server's `EmittedJson`."""

    delivered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """A run to start, with the values of the options of `start`."""

    app: str
    flow: str
    variables: dict[str, JsonValue]
    id: str | None
    actor: str | None
    session: str | None


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
    api: ApiTarget = NO_SERVER,
    target: Target = HERE,
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
    api.check_unused()
    order = RunOrder(
        app=app, flow=flow, variables=first_variables, id=id, actor=actor, session=session
    )
    if api.server is not None:
        return await _start_at(api.open(target, tenant=tenant), order, target, follow=follow)
    async with target.client() as runtime:
        run, is_new = await _start_run(runtime, order, tenant)
        _tell(target, run, is_new=is_new, follow=follow)
        if not follow:
            return Exit.OK
        await print_ledger(stored_ledger(runtime, run, follow=True), target, follow=True)
        row = await row_of(runtime.store, run)
    return _tell_end(target, {"run": run, "status": str(row.status).lower()})


async def resume(
    run: opt.RunIdArg,
    key: str,
    payload: opt.JsonArg = "null",
    /,
    *,
    api: ApiTarget = NO_SERVER,
    target: Target = HERE,
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
    if (served_run := run_at_server(api, target, run)) is not None:
        await served_run.send(f"waits/{quote_name(key)}", {"payload": answer}, NamedRunData)
    else:
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
    api: ApiTarget = NO_SERVER,
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
    api.check_unused()
    if api.server is not None:
        answer: Mapping[str, Any] = await _emit_at(
            api.open(target, tenant=tenant), name, data, scope, key, id
        )
    else:
        scope_id = {} if key is None else {f"{scope}_id": key}
        async with target.client() as runtime:
            runs = FlowRuns(runtime, "", tenant=tenant)
            answer = await runs.emit(name, data, event_id=id, scope=scope, **scope_id)
    return target.tell(answer, f"answered {answer['delivered']} wait(s) for {name}")


async def _emit_at(  # noqa: PLR0917 - an event, as `emit` was given it
    api: Api, name: str, data: Any, scope: str, key: str | None, id_: str | None
) -> Mapping[str, Any]:
    id_ = id_ or secrets.token_hex(16)  # so that a repeated event is the same
    body = {"name": name, "payload": data, "scope": scope, "key": key, "id": id_}
    with repeat_hint(f"with --id {id_} it is one event"):
        return await api.fetch(EmittedData, "POST", "/v1/events", body)


async def cancel(
    run: opt.RunIdArg,
    /,
    *,
    reason: str = "cancelled by operator",
    api: ApiTarget = NO_SERVER,
    target: Target = HERE,
) -> int:
    """Ask a run of a flow and its sub-graphs to stop. An ended run does not change.

    Example: `callboard graphs cancel 0f3c… --reason 'wrong customer'`

    Parameters
    ----------
    reason
        Text that the run's log keeps.
    """
    if (served_run := run_at_server(api, target, run)) is not None:
        status = str((await served_run.fetch())["status"]).upper()
        await served_run.send("cancel", {"reason": reason}, NamedRunData)
    else:
        async with open_graph_run(target, run) as (_, runs, row):
            await runs.cancel(row.run_id, reason=reason)
        status = str(row.status)
    has_ended = status in TERMINAL
    text = f"run {run} has ended {status} already" if has_ended else f"asked {run} to stop"
    return target.tell({"run": run, "was": status}, text)


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
    if (served_run := run_at_server(api, target, run)) is not None:
        await served_run.send("pause", {"reason": reason}, NamedRunData)
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
    if (served_run := run_at_server(api, target, run)) is not None:
        await served_run.send("resume", None, NamedRunData)
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
    if (served_run := run_at_server(api, target, run)) is not None:
        check = "`callboard graphs ledger {run} --server {url}`"
        await served_run.send("steer", {"message": message}, NamedRunData, check_command=check)
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
    changes = parse_json(updates, what="UPDATES")
    if not isinstance(changes, dict):
        raise ContractError("UPDATES: give a JSON object")
    if (served_run := run_at_server(api, target, run)) is not None:
        await served_run.send("limits", {"updates": changes}, NamedRunData)
    else:
        async with open_graph_run(target, run) as (_, runs, row):
            await runs.update_limits(row.run_id, changes)
    return target.tell({"run": run, "updates": changes}, f"changed limits of {run}")


async def _start_run(runtime: Runtime, order: RunOrder, tenant: str) -> tuple[RunId, bool]:
    """Start the run; return its id, and whether it is new."""
    if order.id is not None:
        agent = flow_address(order.app, order.flow, order.id, tenant)
        if (existing_run := await run_of_id(runtime.store.lists, agent)) is not None:
            return existing_run.run_id, False
    runs = FlowRuns(runtime, order.app, tenant=tenant)
    ids = {"id": order.id, "actor_id": order.actor, "session_id": order.session}
    return await runs.start(order.flow, vars=order.variables, **ids), True


async def _start_at(api: Api, order: RunOrder, target: Target, *, follow: bool) -> int:
    key = order.id or secrets.token_hex(16)  # so that a repeated start is the same run
    body = {"vars": order.variables, "actor_id": order.actor, "session_id": order.session}
    with repeat_hint(f"with --id {key} it starts one run"):
        status, answer = await api.ask(
            "POST",
            f"/v1/flows/{quote_name(order.flow)}/runs",
            body,
            query={"app": order.app},
            headers={"idempotency-key": key},
        )
    run = answer.get("run") if isinstance(answer, dict) else None
    if not isinstance(run, str):
        raise api.unexpected_answer(str(answer))
    _tell(target, run, is_new=status == HTTPStatus.CREATED, follow=follow)
    if not follow:
        return Exit.OK
    return _tell_end(
        target, await print_ledger(ServedRun(api, run).follow_ledger(), target, follow=True)
    )


def _tell(target: Target, run_id: str, *, is_new: bool, follow: bool) -> None:
    if target.json:
        print_json({"run": run_id, "is_new": is_new}, compact=follow)
    else:
        say(run_id)


def _tell_end(target: Target, end: dict[str, Any]) -> Exit:
    """Print a run's end."""
    if target.json:
        print_json(end, compact=True)
    else:
        say(f"{end['run']} is {end['status']}")
    return Exit.OK if end["status"] == "completed" else Exit.FAILED
