"""`callboard agents`, `hosts`, `describe` and `tap`: agents with work, live hosts, and traffic on the broker.

`describe` shows the agents of an application as a table or a document.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.insight import AgentRow, HostRow, InsightStore
from actors._runtime.loop.clock import SystemClock
from actors._runtime.sharding.retention import forget_agent
from actors.errors import ContractError
from compose._assembly.settings import read_settings
from compose._commands import options as opt
from compose._commands.options import (
    BROKER,
    HERE,
    DebugFlag,
    Flag,
    JsonFlag,
    Limit,
    NamespaceOpt,
    NatsTarget,
    Seconds,
    ServedArg,
    Target,
    TypeOpt,
)
from compose._commands.output import Exit, ago, pick, print_json, short
from compose._commands.terminal import console, print_table
from compose._host.loader import find_served, serve_all

if TYPE_CHECKING:
    from compose._tools.traffic import TrafficMessage

MOST: Final = 10_000
"""Greatest number of agents that `--unserved` reads of one type."""
STYLES = {
    "dead": "red",
    "ask": "cyan",
    "answer": "cyan",
    "post": "magenta",
    "live": "dim",
    "signal": "yellow",
}
_BODY = 400


async def list_agents(
    *,
    type_: opt.TypeOpt = None,
    tenant: opt.TenantOpt = None,
    waiting: opt.Seconds | None = None,
    unserved: opt.Flag = False,
    after: str | None = None,
    limit: opt.LimitOpt = 50,
    target: Target = HERE,
) -> None:
    """List agents that have messages or an open run, with the reason for which each waits.

    Examples:
    `callboard agents list --type desk`;
    `callboard agents list --waiting 600`;
    `callboard agents list --unserved --json`

    Parameters
    ----------
    type_
        Only agents of this type.
    waiting
        Only agents whose oldest message has waited for this number of seconds or longer.
    unserved
        Only agents that no live host serves.
    after
        Only agents after this agent, TENANT:TYPE/KEY, in the list. Give the last agent of the page before.
    """
    after_id = AgentId.parse(after) if after is not None else None
    async with target.client() as runtime:
        insight = runtime.store.insight
        if unserved:
            if after_id is not None:
                raise ContractError("--after does not go with --unserved: give a larger --limit")
            rows = await _unserved(insight, type_=type_, tenant=tenant, waiting=waiting)
            rows = rows[:limit]
        else:
            rows = await insight.agents(
                type_=type_, tenant=tenant, waiting_s=waiting, after=after_id, limit=limit
            )
    target.table(
        rows,
        "agent=agent_id reason pending oldest_at queued run=run_id status parked wake_at owner",
        ("agent", "waits for", "messages", "oldest", "queued runs", "run", "owner"),
        lambda row: (
            row.agent_id,
            _reason(row),
            row.pending or "",
            ago(row.oldest_at),
            row.queued or "",
            row.run_id,
            row.owner,
        ),
        empty_text="no agent has messages or an open run",
    )


async def _unserved(
    insight: InsightStore, *, type_: str | None, tenant: str | None, waiting: float | None
) -> list[AgentRow]:
    types = (await insight.totals()).unserved
    unserved_agents: list[AgentRow] = []
    for name in types if type_ is None else [type_]:
        rows = await insight.agents(type_=name, tenant=tenant, waiting_s=waiting, limit=MOST)
        unserved_agents += [row for row in rows if row.reason == "unserved"]
    return unserved_agents


def _reason(row: AgentRow) -> str:
    words = {
        "parked": f"an operator ({row.parked})",
        "back-off": f"a retry {ago(row.wake_at)}",
        "unserved": "a host that serves it",
        "unowned": "a host to take it over",
        "queued": "a free slot",
    }
    return words.get(row.reason, row.reason)


async def inbox(agent: opt.AgentArg, /, *, limit: opt.LimitOpt = 50, target: Target = HERE) -> None:
    """List the messages of an agent that are not handled, oldest first, with the open run of each.

    Example: `callboard agents inbox acme:desk/main`
    """
    async with target.client() as runtime:
        arrivals = await runtime.store.insight.inbox(agent, limit=limit)
    target.table(
        arrivals,
        "agent=agent_id sender arrival run=run_id message",
        ("message", "from", "sent", "run", "payload"),
        lambda arrival: (
            arrival.message.id,
            arrival.sender,
            ago(arrival.message.created_at),
            arrival.run_id,
            short(arrival.message.payload),
        ),
        empty_text=f"nothing waits for {agent}",
    )


async def state(agent: opt.AgentArg, /, *, target: Target = HERE) -> None:
    """Print the durable state of an agent: its keys and values.

    Example: `callboard agents state desk/main --json`
    """
    async with target.client() as runtime:
        values = await runtime.store.reads.state(agent)
    if target.json:
        print_json(values)
        return
    print_table(
        ("key", "value"),
        [(key, short(value)) for key, value in sorted(values.items())],
        empty_text=f"{agent} has no state",
    )


async def forget(
    agent: opt.AgentArg,
    /,
    *,
    cancel: opt.Flag = False,
    wait: opt.Seconds = 30.0,
    target: Target = HERE,
) -> int:
    """Delete for good an agent's state, follows, messages, dead letters and ended runs.

    The command is refused while a run of the agent is open. Hashes of the ids of its messages stay for 8 days,
    so that no message is handled again. The command leaves schedules that send to the agent, answers of its
    runs that other runs received, and messages on their way.

    Examples: `callboard agents forget desk/main`; `callboard agents forget desk/main --cancel`

    Parameters
    ----------
    cancel
        Stop the agent's open runs and the runs that they spawned first.
    wait
        With --cancel: longest wait for the end of these runs, in seconds.
    """
    async with target.client() as runtime:
        counts = await forget_agent(runtime.store, agent, cancel=cancel, wait_s=wait)
    return target.tell(
        {"agent": str(agent), **pick(counts, "state follows messages dead_letters=letters runs")},
        f"forgot {agent}: {counts.state} key(s) of state, {counts.follows} follow(s), "
        f"{counts.messages} message(s), {counts.letters} dead letter(s), {counts.runs} run(s); ids of "
        "its messages stay for 8 days, so that none is handled again",
    )


async def hosts(*, target: Target = HERE) -> None:
    """List the live hosts: their agent types, the number of their shards, and the age of their heartbeats.

    Example: `callboard hosts --json`
    """
    async with target.client() as runtime:
        rows = await runtime.store.insight.hosts()
    target.table(
        rows,
        _host_to_json,
        ("host", "serves", "shards", "heard of", "expires in"),
        lambda row: (
            row.owner,
            ", ".join(row.serves),
            row.shards,
            f"{row.seen_s:.1f} s ago",
            f"{row.expires_s:.1f} s",
        ),
        empty_text="no host is alive: start one with `callboard host MODULE:NAME`",
    )


def _host_to_json(row: HostRow) -> dict[str, JsonValue]:
    return {
        "host": row.owner,
        "serves": list(row.serves),
        "shards": row.shards,
        "seen_s": round(row.seen_s, 3),
        "expires_s": round(row.expires_s, 3),
    }


async def describe(
    module_attr: ServedArg,
    /,
    *,
    form: Annotated[
        Literal["table", "asyncapi", "json-schema"] | None, Parameter(name="--format")
    ] = None,
    title: str | None = None,
    app_version: str = "0",
    namespace: NamespaceOpt = None,
    json: JsonFlag = False,
    debug: DebugFlag = False,
) -> int:
    """Describe agents for their clients: payloads, results, followed topics and tools.

    The command needs no server and executes no agent. `--json` without a format means `json-schema`.

    Examples:
    `callboard describe shop.agents:app`;
    `callboard describe shop.agents:app --format asyncapi > asyncapi.json`;
    `callboard describe shop.agents:app --json`

    Parameters
    ----------
    form
        table: for people. json-schema: each agent with the JSON Schemas of payload and result.
        asyncapi: an AsyncAPI 3.0 document with the subjects.
    title
        Title of the AsyncAPI document. Default: the first MODULE:ATTR.
    app_version
        Version of the application in the AsyncAPI document.
    """
    # Imported here, because no other command of this module executes an application.
    from actors._runtime.client.gateway_api import describe as describe_agents  # noqa: PLC0415
    from compose._tools.asyncapi import asyncapi_document  # noqa: PLC0415
    from compose._tools.replay import Catalogue  # noqa: PLC0415

    del debug  # `compose._cli` reads this option for every command
    catalogue = Catalogue()
    await serve_all(catalogue, {spec: find_served(spec) for spec in module_attr})
    description = describe_agents(catalogue.agents)
    if form == "asyncapi":
        prefix = read_settings(namespace=namespace).namespace
        name = title or module_attr[0]
        print_json(
            asyncapi_document(description, title=name, version=app_version, namespace=prefix)
        )
    elif form == "json-schema" or (json and form is None):
        print_json(description)
    else:
        _show(description)
    return Exit.OK


def _show(description: JsonValue) -> None:
    assert isinstance(description, dict)
    agents: Any = description["agents"]
    print_table(
        ("agent", "what", "takes", "gives", "follows", "tools", "version"),
        [
            (
                f"{agent['type']}/{agent['key'] or '*'}",
                agent["description"].partition("\n")[0],
                _brief(agent["input"]),
                _brief(agent["output"]),
                ", ".join(agent["follows"]),
                ", ".join(tool["name"] for tool in agent["tools"]),
                agent["version"] or "",
            )
            for agent in agents
        ],
        empty_text="no agents",
    )


def _brief(schema: dict[str, Any]) -> str:
    """Return a short text of a schema: the names of its fields, else its title or type."""
    fields = schema.get("properties")
    if fields:
        required_names = schema.get("required", ())
        names = (name if name in required_names else f"{name}?" for name in fields)
        return f"{{{', '.join(names)}}}"
    return str(schema.get("title") or schema.get("type") or "anything")


async def tap(
    pattern: str | None = None,
    /,
    *,
    type_: TypeOpt = None,
    agent: str | None = None,
    run: str | None = None,
    body: Flag = False,
    limit: Limit | None = None,
    seconds: Seconds | None = None,
    target: NatsTarget = BROKER,
) -> int:
    """Watch live traffic, one line each: messages, posts, signals, questions, dead letters and tokens.

    The command changes nothing on the broker, and shows no earlier traffic. Messages between agents of one
    host may skip the broker (CALLBOARD_LOCAL_DELIVERY). Content is shown only with `--body`. The user
    of the broker needs the permission to subscribe to the watched subjects. Ctrl-C ends the command.

    Examples:
    `callboard tap --nats-url nats://127.0.0.1:4222`;
    `callboard tap --agent desk/main --body --data ./data`;
    `callboard tap 'dead.v1.>' --json`

    Parameters
    ----------
    pattern
        A subject pattern of NATS, without the namespace. Default: all traffic of agents.
    type_
        Only agents of this type.
    agent
        Only this agent, TYPE/KEY or TENANT:TYPE/KEY.
    run
        Only live pieces of this run, and signals to it.
    body
        Show the content.
    limit
        End after this number of lines.
    seconds
        End after this number of seconds.
    """
    from compose._tools.traffic import Filter, listen  # noqa: PLC0415 - it needs the broker's client

    message_filter = Filter(
        pattern=pattern, type=type_, agent=None if agent is None else AgentId.parse(agent), run=run
    )
    url, settings = target.server()
    out, line_count = console(), 0
    try:
        async with asyncio.timeout(seconds), listen(url, settings, message_filter) as traffic:
            async for message in traffic:
                if target.json:
                    instant_text = SystemClock().now().isoformat()
                    print_json({"at": instant_text, **message.to_json(body=body)}, compact=True)
                else:
                    _show_message(out, message, body=body)
                line_count += 1
                if line_count == limit:
                    break
    except TimeoutError:  # the time of --seconds is over, which is a normal end
        pass
    return Exit.OK


def _show_message(out: Console, message: TrafficMessage, *, body: bool) -> None:
    instant_text = SystemClock().now().strftime("%H:%M:%S.%f")[:12]
    line = Text(f"{instant_text}  ", "dim")
    line += Text(f"{message.kind:7}", STYLES.get(message.kind, "green"))
    line += Text(f" {message.place}", "bold")
    facts = {
        "from": message.sender,
        "run": message.run,
        "name": message.name,
        "id": message.message_id,
    }
    facts["reason"] = message.reason
    line += Text("".join(f"  {name} {value}" for name, value in facts.items() if value))
    line += Text(f"  {message.size} B", "dim")
    if body:
        text = message.content_text()
        line += Text(f"  {text if len(text) <= _BODY else text[: _BODY - 1] + '…'}")
    out.print(line, soft_wrap=True)
