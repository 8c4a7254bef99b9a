"""`callboard send` and `ask`: submit one message, and wait for the run's output."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from actors._kernel.agent.message import Message
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors.errors import ActorsError, ContractError, Facts
from compose._commands import options as opt
from compose._commands.options import HERE, NatsTarget, Target, within
from compose._commands.output import Exit, print_json
from compose._commands.runs.list import run_to_json
from compose._commands.terminal import say

if TYPE_CHECKING:
    from broker.client import ActorClient


async def send(
    agent: opt.AgentArg,
    payload: opt.JsonArg,
    /,
    *,
    message_id: str | None = None,
    priority: opt.PriorityOpt = 5,
    on_conflict: opt.OnConflictOpt = "queue",
    wait: opt.Flag = False,
    timeout_s: opt.Seconds | None = None,
    target: Target = HERE,
) -> int:
    """Submit a message to an agent, start one run, and print the run's id.

    The message is durable when the id is printed. With `--wait` the command prints the run's output at
    its end. The exit code is 1 if the run failed or was cancelled.

    Examples:
    `callboard send desk/main '{"documents": []}'`;
    `callboard send shop/42 '"open"' --wait --timeout-s 30`

    Parameters
    ----------
    payload
        The message as JSON; - reads it from standard input, @FILE from a file.
    message_id
        Sending the same id to the same agent again changes nothing and prints the first run's id.
    wait
        Wait for the run to end and print its output as JSON.
    timeout_s
        Longest wait for the run's end, in seconds. The run continues after it.
    """
    message = Message.of(agent, opt.parse_json(payload, what="the message"), id=message_id)
    async with target.client() as runtime:
        run_id = await runtime.submit(
            agent, message, priority=priority, tenant=agent.tenant, on_conflict=on_conflict
        )
        if not wait:
            return target.tell({"run": run_id}, run_id)
        try:
            async with asyncio.timeout(timeout_s):
                row = await runtime.wait(run_id)
        except TimeoutError:
            raise StillOpenError(run_id, timeout_s or 0.0) from None
    return _print_end(row, target)


class StillOpenError(Facts, ActorsError):
    """The time of `--wait --timeout-s` was over before the run ended."""

    text = (
        "run {run_id} has not ended within {waited_s:g} s and goes on; "
        "see it with: callboard runs show {run_id}"
    )
    run_id: str
    waited_s: float


def _print_end(row: RunRow, target: Target) -> int:
    is_completed = row.status is RunStatus.COMPLETED
    if target.json:
        print_json(run_to_json(row))
    elif is_completed:
        print_json(row.result)
    else:
        reason = (row.error or {}).get("message") or row.cancel_requested or "no reason given"
        say(f"run {row.run_id} ended {row.status}: {reason}")
    return Exit.OK if is_completed else Exit.FAILED


async def ask(  # noqa: PLR0913 - each is an option
    agent: opt.AgentArg,
    payload: opt.JsonArg,
    /,
    *,
    timeout_s: Annotated[
        float, within(0.001, 3600, "seconds"), Parameter(name=("--timeout-s", "--timeout"))
    ] = 30.0,
    message_id: Annotated[str | None, Parameter(name=("--message-id", "--id"))] = None,
    on_conflict: opt.OnConflictOpt = "queue",
    priority: opt.PriorityOpt = 5,
    nats_url: str | None = None,
    publisher: str = "cli",
    namespace: opt.NamespaceOpt = None,
    target: Target = HERE,
) -> int:
    """Ask an agent: start a run, wait for its end and print its output as JSON.

    With `--nats-url`, or if the environment names only a broker, the command asks through the gateway, like
    any other external client. Otherwise it asks through the database. `--json` prints the status
    too. If the time is over, the run continues, and asking again with the same id waits for the same run.
    The exit code is 1 if the run failed or did not end in time.

    Examples:
    `callboard ask desk/main '{"text": "hi"}' --nats-url nats://127.0.0.1:4222`;
    `callboard ask desk/main @job.json --data ./data --timeout 120 --id job-17`;
    `callboard ask desk/main - --json < job.json`

    Parameters
    ----------
    payload
        The question as JSON; - reads it from standard input, @FILE from a file.
    timeout_s
        Longest wait for the run's end, in seconds.
    message_id
        Id of the question. Asking again with the same id waits for the same run.
    nats_url
        nats://user:password@host:port of the broker. [env: CALLBOARD_NATS_URL]
    publisher
        Name of the external client. The agent sees the sender ext:PUBLISHER.
    """
    if not _asks_the_broker(nats_url, target):
        return await send(
            agent,
            payload,
            message_id=message_id,
            priority=priority,
            on_conflict=on_conflict,
            wait=True,
            timeout_s=timeout_s,
            target=target,
        )
    broker = NatsTarget(nats_url=nats_url, namespace=namespace)
    question = opt.parse_json(payload, what="the question")
    async with _gateway(broker, agent.tenant, publisher, timeout_s) as client:
        output = await client.ask(
            agent, question, id=message_id, on_conflict=on_conflict, priority=priority
        )
    print_json({"status": "COMPLETED", "result": output} if target.json else output)
    return Exit.OK


def _asks_the_broker(nats_url: str | None, target: Target) -> bool:
    """Return True if the command asks the gateway, and False if it asks the database.

    The options decide. Without an option of a server, the gateway is asked if the environment names a broker
    and no database.

    Raises:
        ContractError: The options name both.
    """
    names_a_database = target.postgres_url is not None or target.data is not None
    if nats_url is not None and names_a_database:
        raise ContractError("--nats-url asks through the gateway: leave --postgres-url and --data")
    databases = {"CALLBOARD_POSTGRES_URL", "CALLBOARD_DATA_DIR"}
    has_only_a_broker = "CALLBOARD_NATS_URL" in os.environ and databases.isdisjoint(os.environ)
    return nats_url is not None or (has_only_a_broker and not names_a_database)


def _gateway(broker: NatsTarget, tenant: str, publisher: str, timeout_s: float) -> ActorClient:
    from broker.client import ActorClient  # noqa: PLC0415 - a caller of the database needs none
    from compose._assembly.gateway import nats_server  # noqa: PLC0415

    url, settings = broker.server()
    server = nats_server(url, settings)
    return ActorClient(
        list(server.urls),
        publisher=publisher,
        tenant=tenant,
        namespace=settings.namespace,
        timeout=timeout_s,
        tls=server.tls,
        user_credentials=server.user_credentials,
        nkeys_seed=server.nkey_seed_file,
    )
