"""`callboard graphs resume|emit|cancel`: answer waits of runs of flows, and stop runs."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Literal

from typing_extensions import TypedDict

from actors.errors import ContractError
from actors.kernel.runtime.ids import DEFAULT_TENANT
from actors.kernel.runtime.scheduler import TERMINAL
from actors.workflow.hosted.runs import FlowRuns
from compose.commands import options as opt
from compose.commands.api import NO_SERVER, Api, ApiTarget, quoted, repeated
from compose.commands.graphs.look import OwnerOpt, open_graph_run
from compose.commands.graphs.served import NamedRunData, served_run
from compose.commands.options import HERE, Target, parse_json


class EmittedData(TypedDict):
    """The answer to an event. See `EmittedJson` of the server."""

    delivered: int


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
    if (there := served_run(api, target, run)) is not None:
        await there.send(f"waits/{quoted(key)}", {"payload": answer}, NamedRunData)
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
        told: Mapping[str, Any] = await _emitted(
            api.opened(target, tenant=tenant), name, data, scope, key, id
        )
    else:
        within = {} if key is None else {f"{scope}_id": key}
        async with target.client() as runtime:
            runs = FlowRuns(runtime, "", tenant=tenant)
            told = await runs.emit(name, data, event_id=id, scope=scope, **within)
    return target.tell(told, f"answered {told['delivered']} wait(s) for {name}")


async def _emitted(  # noqa: PLR0917 - an event, as `emit` was given it
    api: Api, name: str, data: Any, scope: str, key: str | None, id_: str | None
) -> Mapping[str, Any]:
    id_ = id_ or secrets.token_hex(16)  # so that a repeated event is the same
    body = {"name": name, "payload": data, "scope": scope, "key": key, "id": id_}
    with repeated(f"with --id {id_} it is one event"):
        return await api.told(EmittedData, "POST", "/v1/events", body)


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
    if (there := served_run(api, target, run)) is not None:
        status = str((await there.shown())["status"]).upper()
        await there.send("cancel", {"reason": reason}, NamedRunData)
    else:
        async with open_graph_run(target, run) as (_, runs, row):
            await runs.cancel(row.run_id, reason=reason)
        status = str(row.status)
    is_over = status in TERMINAL
    text = f"run {run} has ended {status} already" if is_over else f"asked {run} to stop"
    return target.tell({"run": run, "was": status}, text)
