"""`callboard agents list|inbox|state|forget` and `callboard hosts`: agents with work, and live hosts."""

from __future__ import annotations

from typing import Final

from actors.errors import ContractError
from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import AgentId
from actors.kernel.runtime.rows import Arrived
from actors.kernel.stores.insight import AgentRow, HostRow, InsightStore
from actors.runtime.sharding.retention import forget_agent
from compose.commands import options as opt
from compose.commands.options import HERE, Target
from compose.commands.output import ago, picked, print_json, short
from compose.commands.terminal import print_table

MOST: Final = 10_000
"""Greatest number of agents that `--unserved` reads of one type."""


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
    place = AgentId.parse(after) if after is not None else None
    async with target.client() as runtime:
        insight = runtime.store.insight
        if unserved:
            if place is not None:
                raise ContractError("--after does not go with --unserved: give a larger --limit")
            rows = await _unserved(insight, type_=type_, tenant=tenant, waiting=waiting)
            rows = rows[:limit]
        else:
            rows = await insight.agents(
                type_=type_, tenant=tenant, waiting_s=waiting, after=place, limit=limit
            )
    target.table(
        rows,
        "agent=agent_id reason pending oldest_at queued run=run_id status parked wake_at owner",
        ("agent", "waits for", "messages", "oldest", "queued runs", "run", "owner"),
        _row,
        empty="no agent has messages or an open run",
    )


async def _unserved(
    insight: InsightStore, *, type_: str | None, tenant: str | None, waiting: float | None
) -> list[AgentRow]:
    types = (await insight.totals()).unserved
    found: list[AgentRow] = []
    for name in types if type_ is None else [type_]:
        rows = await insight.agents(type_=name, tenant=tenant, waiting_s=waiting, limit=MOST)
        found += [row for row in rows if row.reason == "unserved"]
    return found


def _row(row: AgentRow) -> tuple[object, ...]:
    mail = row.pending or "", ago(row.oldest_at)
    return row.agent_id, _reason(row), *mail, row.queued or "", row.run_id, row.owner


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
        found = await runtime.store.insight.inbox(agent, limit=limit)
    target.table(
        found,
        "agent=agent_id sender arrival run=run_id message",
        ("message", "from", "sent", "run", "payload"),
        _message_row,
        empty=f"nothing waits for {agent}",
    )


def _message_row(item: Arrived) -> tuple[object, ...]:
    one = item.message
    return one.id, item.sender, ago(one.created_at), item.run_id, short(one.payload)


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
        empty=f"{agent} has no state",
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
        gone = await forget_agent(runtime.store, agent, cancel=cancel, wait_s=wait)
    return target.tell(
        {"agent": str(agent), **picked(gone, "state follows messages dead_letters=letters runs")},
        f"forgot {agent}: {gone.state} key(s) of state, {gone.follows} follow(s), "
        f"{gone.messages} message(s), {gone.letters} dead letter(s), {gone.runs} run(s); ids of "
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
        _host_row,
        empty="no host is alive: start one with `callboard host MODULE:NAME`",
    )


def _host_row(row: HostRow) -> tuple[object, ...]:
    times = f"{row.seen_s:.1f} s ago", f"{row.expires_s:.1f} s"
    return row.owner, ", ".join(row.serves), row.shards, *times


def _host_to_json(row: HostRow) -> dict[str, JsonValue]:
    return {
        "host": row.owner,
        "serves": list(row.serves),
        "shards": row.shards,
        "seen_s": round(row.seen_s, 3),
        "expires_s": round(row.expires_s, 3),
    }
