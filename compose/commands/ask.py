"""`callboard ask`: ask an agent, print its answer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from actors.errors import ContractError
from actors.kernel.runtime.ids import AgentId
from compose.commands.exits import Exit
from compose.commands.json_argument import parse_json
from compose.commands.numbers import Priority
from compose.commands.output import print_json
from compose.commands.send import send
from compose.commands.target import HERE, Target

if TYPE_CHECKING:
    from broker.client import ActorClient
    from compose.commands.nats_target import NatsTarget

OnConflict = Literal["queue", "join", "reject", "interrupt"]
MAX_TIMEOUT_S = 3600.0


async def ask(  # noqa: PLR0913 - each is an option
    agent: str,
    payload: Annotated[str, Parameter(name="JSON", allow_leading_hyphen=True)],
    /,
    *,
    timeout_s: Annotated[float, Parameter(name=("--timeout-s", "--timeout"))] = 30.0,
    message_id: Annotated[str | None, Parameter(name=("--message-id", "--id"))] = None,
    on_conflict: OnConflict = "queue",
    priority: Priority = 5,
    nats_url: str | None = None,
    publisher: str = "cli",
    namespace: str | None = None,
    target: Target = HERE,
) -> int:
    """Ask an agent: start a run, wait for its end and print its output as JSON.

    With `--nats-url`, or when only a broker is set, through the gateway, as any other service does;
    else through the database. `--json` prints the status too. The run goes on when the time is over;
    asking again with the same id waits for the same run. Exit code 1 if it failed or did not end.

    Examples:
    `callboard ask desk/main '{"text": "hi"}' --nats-url nats://127.0.0.1:4222`;
    `callboard ask desk/main @job.json --data ./data --timeout 120 --id job-17`;
    `callboard ask desk/main - --json < job.json`

    Parameters
    ----------
    agent
        TYPE/KEY, or TENANT:TYPE/KEY.
    payload
        The question as JSON; - reads it from standard input, @FILE from a file.
    timeout_s
        How long to wait, in seconds.
    message_id
        The same one again is the same run and gives the same answer.
    on_conflict
        When the agent has an open run: wait behind it, join it, be rejected, or cancel it first.
    priority
        Lower goes first.
    nats_url
        nats://user:password@host:port of the broker. [env: CALLBOARD_NATS_URL]
    publisher
        Who asks, through the gateway: the agent sees the sender ext:PUBLISHER.
    namespace
        Goes before every subject. [env: CALLBOARD_NAMESPACE]
    """
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise ContractError(f"--timeout {timeout_s:g}: give 0 to {MAX_TIMEOUT_S:g} seconds")
    by_database = target.postgres_url is not None or target.data is not None
    if nats_url is not None and by_database:
        raise ContractError("--nats-url asks through the gateway: leave --postgres-url and --data")
    if nats_url is None and (by_database or not _has_only_a_broker()):
        return await send(
            agent, payload, message_id=message_id, priority=priority, on_conflict=on_conflict,
            wait=True, timeout_s=timeout_s, target=target,
        )  # fmt: skip
    # Imported here: who asks through the database needs no broker's client.
    from compose.commands.nats_target import NatsTarget  # noqa: PLC0415

    broker = NatsTarget(nats_url=nats_url, namespace=namespace)
    agent_id = AgentId.parse(agent)
    question = parse_json(payload, what="the question")
    async with _gateway(broker, agent_id.tenant, publisher, timeout_s) as client:
        output = await client.ask(
            agent_id, question, id=message_id, on_conflict=on_conflict, priority=priority
        )
    print_json({"status": "COMPLETED", "result": output} if target.json else output)
    return Exit.OK


def _has_only_a_broker() -> bool:
    named = {
        name
        for name in ("POSTGRES_URL", "DATA_DIR", "NATS_URL")
        if f"CALLBOARD_{name}" in os.environ
    }
    return named == {"NATS_URL"}


def _gateway(broker: NatsTarget, tenant: str, publisher: str, timeout_s: float) -> ActorClient:
    from broker.client import ActorClient  # noqa: PLC0415 - as above
    from compose.nats_server import nats_server  # noqa: PLC0415

    url, settings = broker.found()
    server = nats_server(url, settings)
    return ActorClient(
        list(server.urls), publisher=publisher, tenant=tenant, namespace=settings.namespace,
        timeout=timeout_s, tls=server.tls, user_credentials=server.user_credentials,
        nkeys_seed=server.nkey_seed_file,
    )  # fmt: skip
