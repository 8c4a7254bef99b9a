"""Schedules: messages that come by themselves, once or again and again by a cron expression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol, TypeAlias

from actors._kernel.agent.message import Message, sender_of
from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, ShardId, derive_id
from actors._kernel.runtime.rows import Arrived
from actors._kernel.runtime.scheduler import ShardLease

CatchUp: TypeAlias = Literal["one", "all"]
"""The rule for ticks that passed while no host could fire them: one firing, or one for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When an agent gets a message by itself.

    Attributes:
        name: Unique in the tenant of `agent_id`.
        payload: The payload of each message.
        cron: A cron expression; None for a single message.
        timezone: IANA name of the zone whose wall clock `cron` means.
        at: The instant of the single message.
        catch_up: See `CatchUp`.
        is_paused: True if it is stopped until it is resumed.
        base_at: The present `next_at` is the first tick after this instant.
        next_at: The next tick; None when there is no more.
        last_at: The last tick that was fired.
        revision: Names this state of the schedule; given by the store, never twice.
    """

    name: str
    agent_id: AgentId
    payload: JsonValue
    base_at: datetime
    cron: str | None = None
    timezone: str = "UTC"
    at: datetime | None = None
    catch_up: CatchUp = "one"
    is_paused: bool = False
    next_at: datetime | None = None
    last_at: datetime | None = None
    revision: int = 0

    @property
    def tenant(self) -> str:
        """The tenant of the schedule's agent."""
        return self.agent_id.tenant

    @property
    def state(self) -> Literal["active", "paused", "done"]:
        """The schedule's state: it has ticks to come, is paused, or has no tick left."""
        if self.next_at is None:
            return "done"
        return "paused" if self.is_paused else "active"


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """A schedule and how many seconds are left until its tick, by the store's clock when it was read."""

    schedule: Schedule
    in_s: float


@dataclass(frozen=True, slots=True)
class Tick:
    """The change of a schedule whose tick is due.

    Attributes:
        schedule: As it was read.
        base_at: Its new `base_at`.
        next_at: Its new `next_at`.
        is_sent: True if its message is sent, False if it is only moved, because its zone has new rules.
    """

    schedule: Schedule
    base_at: datetime
    next_at: datetime | None
    is_sent: bool = True


@dataclass(frozen=True, slots=True)
class Fired:
    """The result of `ScheduleStore.fire`: the number of schedules it moved on, and the messages in inboxes."""

    moved_count: int
    arrived: tuple[Arrived, ...]


class ScheduleStore(Protocol):
    """Schedules as rows. Only the owner of an agent's shard fires for it."""

    async def now(self) -> datetime:
        """Return the present by the clock that decides what is due."""

    async def get(self, tenant: str, name: str) -> Schedule | None:
        """Return one schedule."""

    async def find(
        self, *, tenant: str | None = None, after: tuple[str, str] | None = None, limit: int = 100
    ) -> list[Schedule]:
        """Return schedules by (tenant, name), after these two."""

    async def put(self, schedule: Schedule, *, expected: int | None) -> Schedule | None:
        """Write a schedule and notify its owner; return it with its new revision.

        Args:
            schedule: Its revision does not matter.
            expected: The revision that it replaces, or None if there is none of this name.

        Returns:
            None, with nothing written, when there is another one; also when this call was sent
            twice because its first answer was lost.
        """

    async def delete(self, tenant: str, name: str) -> bool:
        """Forget a schedule; False when there was none."""

    async def due(
        self, shards: Sequence[ShardId], *, within_s: float, limit: int = 1000
    ) -> list[DueSchedule]:
        """Return schedules of agents in these shards whose tick is that near, earliest first."""

    async def zoned(
        self, shards: Sequence[ShardId], *, after: tuple[str, str] | None = None, limit: int = 100
    ) -> list[Schedule]:
        """Return active cron schedules of other zones than UTC, by (tenant, name), after these two."""

    async def fire(self, leases: Sequence[ShardLease], ticks: Sequence[Tick]) -> Fired:
        """Write messages into inboxes and move their schedules on, each pair in one commit.

        Nothing happens for a schedule whose revision is another one, whose tick is not there yet,
        or whose shard is not held. Sending the same call again fires nothing twice, and tells
        again which messages of it wait.
        """

    async def forget_done(self, *, older_than_s: float, limit: int = 1000) -> int:
        """Delete schedules that fired their last tick so long ago; return how many."""


def tick_message(schedule: Schedule, tick: datetime) -> Message:
    """Return the message of one tick; its id is derived from name and tick, so it comes once."""
    text = tick.isoformat()
    return Message(
        derive_id("schedule", schedule.tenant, schedule.name, text),
        schedule.agent_id,
        schedule.payload,
        sender_of("schedule", schedule.name),
        created_at=tick,
        metadata={"scheduled_at": text},
    )


def extra_message(schedule: Schedule, request_id: str, now: datetime) -> Message:
    """Return the message that is sent beside the plan, once for each request id."""
    return Message(
        derive_id("trigger", schedule.tenant, schedule.name, request_id),
        schedule.agent_id,
        schedule.payload,
        sender_of("schedule", schedule.name),
        created_at=now,
        metadata={"triggered_by": request_id},
    )
