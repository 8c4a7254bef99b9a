"""`callboard agents list|inbox|state` and `callboard hosts`: who has something to do, and why it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from actors.errors import ContractError
from actors.kernel.runtime.ids import AgentId
from compose.commands.numbers import Limit, Seconds
from compose.commands.output import ago, iso, print_json, print_table, short
from compose.commands.target import HERE, Target

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import Arrived
    from actors.kernel.runtime.insight import AgentRow, HostRow, InsightStore

MOST: Final = 10_000
"""Agents of one type that nobody serves are looked through up to so many."""


async def list_agents(
    *,
    type_: Annotated[str | None, Parameter(name="--type")] = None,
    tenant: str | None = None,
    waiting: Seconds | None = None,
    unserved: Annotated[bool, Parameter(negative="")] = False,
    after: str | None = None,
    limit: Limit = 50,
    target: Target = HERE,
) -> None:
    """List agents that have mail or an open run, and what they wait for.

    Examples:
    `callboard agents list --type desk`;
    `callboard agents list --waiting 600`;
    `callboard agents list --unserved --json`

    Parameters
    ----------
    type_
        Only agents of this type.
    tenant
        Only agents of this tenant.
    waiting
        Only those whose oldest message waits for so many seconds or longer.
    unserved
        Only those that no living host serves.
    after
        Behind this agent, TENANT:TYPE/KEY: the last one of the page before.
    limit
        At most so many.
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
    if target.json:
        print_json([agent_to_json(row) for row in rows])
        return
    print_table(
        ("agent", "waits for", "messages", "oldest", "queued runs", "run", "owner"),
        [
            (
                str(row.agent_id), _reason(row), str(row.pending or ""), ago(row.oldest_at),
                str(row.queued or ""), row.run_id or "", row.owner or "",
            )
            for row in rows
        ],
        empty="no agent has mail or an open run",
    )  # fmt: skip


async def _unserved(
    insight: InsightStore, *, type_: str | None, tenant: str | None, waiting: float | None
) -> list[AgentRow]:
    types = (await insight.totals()).unserved
    found: list[AgentRow] = []
    for name in types if type_ is None else [type_]:
        rows = await insight.agents(type_=name, tenant=tenant, waiting_s=waiting, limit=MOST)
        found += [row for row in rows if row.reason == "unserved"]
    return found


def _reason(row: AgentRow) -> str:
    match row.reason:
        case "parked":
            return f"an operator ({row.parked})"
        case "back-off":
            return f"a retry {ago(row.wake_at)}"
        case "unserved":
            return "a host that serves it"
        case "unowned":
            return "a host to take it over"
        case "queued":
            return "its turn"
        case other:
            return other


def agent_to_json(row: AgentRow) -> dict[str, JsonValue]:
    """Return an agent as JSON data; instants as ISO 8601."""
    return {
        "agent": str(row.agent_id), "reason": row.reason, "pending": row.pending,
        "oldest_at": iso(row.oldest_at), "queued": row.queued, "run": row.run_id,
        "status": row.status, "parked": row.parked, "wake_at": iso(row.wake_at),
        "owner": row.owner,
    }  # fmt: skip


async def inbox(agent: str, /, *, limit: Limit = 50, target: Target = HERE) -> None:
    """List the messages of an agent that are not done, oldest first; of open runs and of none.

    Example: `callboard agents inbox acme:desk/main`

    Parameters
    ----------
    agent
        TYPE/KEY, or TENANT:TYPE/KEY.
    limit
        At most so many.
    """
    agent_id = AgentId.parse(agent)
    async with target.client() as runtime:
        found = await runtime.store.insight.inbox(agent_id, limit=limit)
    if target.json:
        print_json([_message_to_json(item) for item in found])
        return
    print_table(
        ("message", "from", "sent", "run", "payload"),
        [
            (
                item.message.id, item.sender, ago(item.message.created_at), item.run_id or "",
                short(item.message.payload),
            )
            for item in found
        ],
        empty=f"nothing waits for {agent_id}",
    )  # fmt: skip


def _message_to_json(item: Arrived) -> dict[str, JsonValue]:
    return {
        "agent": str(item.agent_id), "sender": item.sender, "arrival": item.arrival,
        "run": item.run_id, "message": item.message.to_json(),
    }  # fmt: skip


async def state(agent: str, /, *, target: Target = HERE) -> None:
    """Print the durable state of an agent: its keys and values.

    Example: `callboard agents state desk/main --json`

    Parameters
    ----------
    agent
        TYPE/KEY, or TENANT:TYPE/KEY.
    """
    agent_id = AgentId.parse(agent)
    async with target.client() as runtime:
        values = await runtime.store.state(agent_id)
    if target.json:
        print_json(values)
        return
    print_table(
        ("key", "value"),
        [(key, short(value)) for key, value in sorted(values.items())],
        empty=f"{agent_id} has no state",
    )


async def hosts(*, target: Target = HERE) -> None:
    """List the hosts that live: what they serve, how many shards they own, when they were heard.

    Example: `callboard hosts --json`
    """
    async with target.client() as runtime:
        rows = await runtime.store.insight.hosts()
    if target.json:
        print_json([_host_to_json(row) for row in rows])
        return
    print_table(
        ("host", "serves", "shards", "heard of", "expires in"),
        [
            (
                row.owner, ", ".join(row.serves), str(row.shards), f"{row.seen_s:.1f} s ago",
                f"{row.expires_s:.1f} s",
            )
            for row in rows
        ],
        empty="no host lives: start one with `callboard host MODULE:NAME`",
    )  # fmt: skip


def _host_to_json(row: HostRow) -> dict[str, JsonValue]:
    return {
        "host": row.owner, "serves": list(row.serves), "shards": row.shards,
        "seen_s": round(row.seen_s, 3), "expires_s": round(row.expires_s, 3),
    }  # fmt: skip
