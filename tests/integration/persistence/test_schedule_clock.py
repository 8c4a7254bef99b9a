"""Schedules on a database whose clock is set forward and back."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from actors._kernel.runtime.ids import AgentId, HostIncarnation
from actors._runtime import Runtime
from actors._runtime.loop.clock import SystemClock
from persistence.postgres import open_postgres_store
from tests.integration.persistence.hosts import step_clock

if TYPE_CHECKING:
    from datetime import datetime

    from actors._kernel.agent.message import Message

AGENT = AgentId("clock", "1")
HOUR = timedelta(hours=1)


class Hearing:
    """Remembers for which instants it was sent something."""

    id = AGENT

    def __init__(self) -> None:
        self.ticks: list[str] = []

    async def run(self, ctx: Any, inbox: list[Message]) -> None:
        """Note an inbox."""
        del ctx
        self.ticks += [message.metadata["scheduled_at"] for message in inbox]

    async def until(self, count: int) -> None:
        """Return once there are so many."""
        async with asyncio.timeout(20):
            while len(self.ticks) < count:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)


class Wrong:
    """A wall clock that is so far ahead."""

    def __init__(self, ahead: timedelta) -> None:
        self._clock, self._ahead = SystemClock(), ahead

    def now(self) -> datetime:
        """See `Clock.now`."""
        return self._clock.now() + self._ahead

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self._clock.monotonic()


async def test_a_step_of_the_databases_clock_fires_nothing_early_and_nothing_twice(
    postgres_dsn: str, schema: str
) -> None:
    """Forward: what is due then comes, once, soon. Back: what has come does not come again."""
    agent, owner = Hearing(), HostIncarnation("h1")
    new_store = open_postgres_store(postgres_dsn, schema=schema, owner=owner, lease_s=7200)
    async with new_store as store, Runtime(store=store, owner=owner) as runtime:
        await runtime.register(agent)
        start = await store.schedules.now()
        soon, far = start + HOUR / 2, start + 100 * HOUR
        await runtime.schedules.create("soon", AGENT, at=soon)
        await runtime.schedules.create("far", AGENT, at=far)
        hourly = await runtime.schedules.create("hourly", AGENT, cron=f"{soon.minute} * * * *")
        await step_clock(postgres_dsn, schema, HOUR)
        await agent.until(2)
        forward = await runtime.schedules.get("hourly")
        await step_clock(postgres_dsn, schema, timedelta(0))
        await runtime.schedules.create("after", AGENT, delay_s=0.1)
        await agent.until(3)
        back = await runtime.schedules.get("hourly")

    assert hourly.next_at is not None
    assert sorted(agent.ticks[:2]) == sorted([soon.isoformat(), hourly.next_at.isoformat()])
    assert forward == back
    assert forward.next_at == hourly.next_at + HOUR
    assert len(agent.ticks) == 3


async def test_a_step_of_the_machines_clock_moves_no_tick(postgres_dsn: str, schema: str) -> None:
    """A host whose wall clock is an hour ahead, or behind, fires by the database's."""
    for name, ahead in (("ahead", HOUR), ("behind", -HOUR)):
        agent, owner = Hearing(), HostIncarnation(name)
        new_store = open_postgres_store(postgres_dsn, schema=schema, owner=owner)
        async with (
            new_store as store,
            Runtime(store=store, owner=owner, clock=Wrong(ahead)) as host,
        ):
            await host.register(agent)
            soon = await host.schedules.create(name, AGENT, delay_s=0.3)
            due = soon.next_at
            assert due is not None
            await host.schedules.create(f"{name}-far", AGENT, at=due + HOUR / 2)
            await agent.until(1)
            assert await store.schedules.now() >= due
            assert agent.ticks == [due.isoformat()]
