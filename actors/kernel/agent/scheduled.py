"""The messages that a schedule sends."""

from __future__ import annotations

from datetime import datetime

from actors.kernel.agent.message import Message, sender_of
from actors.kernel.runtime.ids import derive_id
from actors.kernel.store.schedule import Schedule


def tick_message(schedule: Schedule, tick: datetime) -> Message:
    """Return the message of one tick; its id is derived from name and tick, so it comes once."""
    told = tick.isoformat()
    return Message(
        derive_id("schedule", schedule.tenant, schedule.name, told),
        schedule.agent_id,
        schedule.payload,
        sender_of("schedule", schedule.name),
        created_at=tick,
        metadata={"scheduled_at": told},
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
