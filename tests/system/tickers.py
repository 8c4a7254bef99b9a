"""An agent that records the ticks of its messages, and when they came."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.runtime.ids import AgentId
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext, Runtime


class Ticker:
    """Records, for each message of a schedule, its tick and the present instant."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Handle all messages of the inbox."""
        ticks: Any = await ctx.state.get("ticks") or []
        now = (await ctx.now()).isoformat()
        new = [[message.metadata["scheduled_at"], now] for message in inbox]
        await ctx.state.set("ticks", ticks + new)


TICKERS: Final[dict[str, Callable[[AgentId], Agent]]] = {"ticker": Ticker}
HERE: Final = "tests.system.tickers:TICKERS"
EVERY_SECOND: Final = "* * * * * *"
SECOND: Final = timedelta(seconds=1)


def ticker(key: object) -> AgentId:
    """Return a ticker."""
    return AgentId("ticker", str(key))


async def ticks_of(client: Runtime, agent: AgentId) -> list[datetime]:
    """Return the ticks of its messages in order of arrival; none of them came early."""
    stored_ticks: Any = (await client.store.reads.state(agent)).get("ticks", [])
    pairs = [(datetime.fromisoformat(a), datetime.fromisoformat(b)) for a, b in stored_ticks]
    assert all(came >= tick for tick, came in pairs), pairs
    return [tick for tick, _ in pairs]


async def until_ticks(client: Runtime, agent: AgentId, count: int) -> list[datetime]:
    """Return `ticks_of` once there are this many."""

    async def is_enough() -> bool:
        return len(await ticks_of(client, agent)) >= count

    await until(is_enough, f"{count} ticks of {agent}")
    return await ticks_of(client, agent)


def gaps(ticks: list[datetime]) -> list[timedelta]:
    """Return the distance of each tick from the one before it."""
    return [later - earlier for earlier, later in itertools.pairwise(ticks)]
