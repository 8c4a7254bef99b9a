"""`callboard graphs start`: start a run of a flow in a database or at a server, and follow it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

from cyclopts import Parameter

from actors.errors import ContractError
from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import DEFAULT_TENANT, RunId
from actors.runtime import Runtime
from actors.runtime.replay.verdict import row_of
from actors.workflow.hosted.flow_address import flow_address
from actors.workflow.hosted.ledger_feed import run_of_id
from actors.workflow.hosted.runs import FlowRuns
from compose.commands import options as opt
from compose.commands.api import NO_SERVER, Api, ApiTarget, quoted, repeated
from compose.commands.graphs.look import AppArg, OwnerOpt, print_ledger, stored_ledger
from compose.commands.graphs.served import ServedRun
from compose.commands.options import HERE, Target, parse_json
from compose.commands.output import Exit, print_json
from compose.commands.terminal import say


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """A run to start. See `start`."""

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
    given = parse_json(variables, what="VARS")
    if not isinstance(given, dict):
        raise ContractError("VARS: give a JSON object, such as '{\"order\": 7}'")
    api.check_unused()
    order = RunOrder(app=app, flow=flow, variables=given, id=id, actor=actor, session=session)
    if api.server is not None:
        return await _start_at(api.opened(target, tenant=tenant), order, target, follow=follow)
    async with target.client() as runtime:
        run, is_new = await _started(runtime, order, tenant)
        _tell(target, run, is_new=is_new, follow=follow)
        if not follow:
            return Exit.OK
        await print_ledger(stored_ledger(runtime, run, follow=True), target, follow=True)
        row = await row_of(runtime.store, run)
    return _tell_end(target, {"run": run, "status": str(row.status).lower()})


async def _started(runtime: Runtime, order: RunOrder, tenant: str) -> tuple[RunId, bool]:
    """Start the run; return its id, and whether it is new."""
    if order.id is not None:
        agent = flow_address(order.app, order.flow, order.id, tenant)
        if (known := await run_of_id(runtime.store.lists, agent)) is not None:
            return known.run_id, False
    runs = FlowRuns(runtime, order.app, tenant=tenant)
    named = {"id": order.id, "actor_id": order.actor, "session_id": order.session}
    return await runs.start(order.flow, vars=order.variables, **named), True


async def _start_at(api: Api, order: RunOrder, target: Target, *, follow: bool) -> int:
    key = order.id or secrets.token_hex(16)  # so that a repeated start is the same run
    body = {"vars": order.variables, "actor_id": order.actor, "session_id": order.session}
    with repeated(f"with --id {key} it starts one run"):
        status, told = await api.ask(
            "POST",
            f"/v1/flows/{quoted(order.flow)}/runs",
            body,
            query={"app": order.app},
            headers={"idempotency-key": key},
        )
    run = told.get("run") if isinstance(told, dict) else None
    if not isinstance(run, str):
        raise api.odd(str(told))
    _tell(target, run, is_new=status == HTTPStatus.CREATED, follow=follow)
    if not follow:
        return Exit.OK
    return _tell_end(
        target, await print_ledger(ServedRun(api, run).followed(), target, follow=True)
    )


def _tell(target: Target, run: str, *, is_new: bool, follow: bool) -> None:
    if target.json:
        print_json({"run": run, "is_new": is_new}, compact=follow)
    else:
        say(run)


def _tell_end(target: Target, end: dict[str, Any]) -> Exit:
    """Print a run's end."""
    if target.json:
        print_json(end, compact=True)
    else:
        say(f"{end['run']} is {end['status']}")
    return Exit.OK if end["status"] == "completed" else Exit.FAILED
