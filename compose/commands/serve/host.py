"""`callboard host`: serve agents until a signal stops it."""

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

    Add a host: it takes work. Kill one: its agents go on elsewhere when its lease is over. Stop one
    with SIGTERM: it gives its agents up at once and ends with 0. Events are log lines on stderr,
    with `--json` one JSON object each.

    Examples:
    `callboard host shop.agents:app --postgres-url postgresql://me:secret@db/shop --nats-url nats://me:secret@nats`;
    `callboard host compose.demo.desk:AGENTS --data ./data`

    Parameters
    ----------
    module_attr
        MODULE:ATTR of an agent, a list of agents, an agent class with `id`, a mapping
        {type: factory}, a SessionAgent, whose type has a session for each key, Flows, or a function
        app(runtime) that registers what it likes. Flows may be in a list, too.
    nats_url
        nats://user:password@host:port of the broker; without it messages between hosts go through
        PostgreSQL, and no client can publish to agents. [env: CALLBOARD_NATS_URL]
    redis_url
        redis://:password@host:port/0; may be left out. [env: CALLBOARD_REDIS_URL]
    namespace
        Goes before every stream and subject. [env: CALLBOARD_NAMESPACE]
    lease_s
        Seconds a silent host keeps its agents. [env: CALLBOARD_LEASE_S, default 10]
    suspend_after
        Seconds a waiting run stays in memory. [env: CALLBOARD_SUSPEND_AFTER, default 5]
    capacity
        Runs that execute at once. [env: CALLBOARD_CAPACITY, default 1000]
    drain_s
        Seconds that running code has to end after SIGTERM. [env: CALLBOARD_DRAIN_S, default 30]
    http
        HOST:PORT that answers /healthz (the process runs), /readyz (it takes work; 503 with the
        reasons otherwise) and /metrics (for Prometheus); port 0 is a free one, which the log names.
        [env: CALLBOARD_HTTP, default none]
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
