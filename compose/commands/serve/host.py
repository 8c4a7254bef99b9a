"""`callboard host`: serve agents until SIGTERM or SIGINT."""

from __future__ import annotations

import logging
from typing import Annotated

from cyclopts import Parameter

from actors.runtime.loop.tasks import run_loop
from compose.commands.options import HERE, Target
from compose.host.logs import write_logs
from compose.host.process import run_host


def host(  # noqa: PLR0913 - each is an option
    module_attr: Annotated[list[str], Parameter(negative="")],
    /,
    *,
    nats_url: str | None = None,
    redis_url: str | None = None,
    namespace: str | None = None,
    lease_s: float | None = None,
    suspend_after: float | None = None,
    capacity: int | None = None,
    drain_s: float | None = None,
    http: str | None = None,
    target: Target = HERE,
) -> None:
    """Serve agents until SIGTERM or SIGINT.

    An added host takes a part of the agents. If a host is killed, other hosts take over its agents when its
    lease is over. After SIGTERM a host releases its agents at once, and the exit code is 0. Events are
    log lines on stderr, or with `--json` JSON objects.

    Examples:
    `callboard host shop.agents:app --postgres-url postgresql://me:secret@db/shop --nats-url nats://me:secret@nats`;
    `callboard host compose.demo.desk:AGENTS --data ./data`

    Parameters
    ----------
    module_attr
        MODULE:ATTR of an agent, a list of agents, an agent class with `id`, a mapping
        {type: factory}, a SessionAgent, whose type has a session for each key, Flows, or a function
        app(runtime) that registers agents. A list may have Flows too.
    nats_url
        nats://user:password@host:port of the broker. Without a broker, messages between hosts go through
        PostgreSQL, and external clients cannot publish to agents. [env: CALLBOARD_NATS_URL]
    redis_url
        redis://:password@host:port/0 of a Redis server, which is optional. [env: CALLBOARD_REDIS_URL]
    namespace
        Prefix of every stream and subject. [env: CALLBOARD_NAMESPACE]
    lease_s
        Seconds for which a silent host keeps its agents. [env: CALLBOARD_LEASE_S, default 10]
    suspend_after
        Seconds for which a waiting run stays in memory. [env: CALLBOARD_SUSPEND_AFTER, default 5]
    capacity
        Greatest number of runs that execute at once. [env: CALLBOARD_CAPACITY, default 1000]
    drain_s
        Seconds that executing code has to end after SIGTERM. [env: CALLBOARD_DRAIN_S, default 30]
    http
        HOST:PORT that answers /healthz (the process runs), /readyz (the host accepts work; else 503 with
        the reasons) and /metrics (for Prometheus). With port 0 the host chooses a free port, which the log
        names. [env: CALLBOARD_HTTP, default none]
    """
    write_logs(as_json=target.json, level=logging.DEBUG if target.debug else logging.INFO)
    settings = target.settings(
        nats_url=nats_url,
        redis_url=redis_url,
        namespace=namespace,
        lease_s=lease_s,
        suspend_after=suspend_after,
        capacity=capacity,
        drain_s=drain_s,
        http=http,
    )
    run_loop(run_host(settings, module_attr))
