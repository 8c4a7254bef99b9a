"""Runs of flows that are paused, told something, or limited, between two of their steps."""

from __future__ import annotations

from typing import Final

from pydantic import Field, JsonValue

from compose.web.endpoint import Done, NoQuery, StrictModel, WebCall, WebEndpoint
from compose.web.graphs.flows import GraphRunNameJson, named
from compose.web.graphs.graph_runs import RUN, graph_run, runs_at


class PauseJson(StrictModel):
    """A wish that a run rests."""

    reason: str | None = Field(default=None, max_length=1000)


class SteerJson(StrictModel):
    """A message to a run: a text, or an object with a role and a content."""

    message: str | dict[str, JsonValue]


class LimitsJson(StrictModel):
    """Limits of a run, by name; other names change nothing."""

    updates: dict[str, JsonValue]


async def pause(call: WebCall, _: NoQuery, body: PauseJson) -> Done:
    """Let a run rest between two of its steps."""
    row = await graph_run(call)
    await runs_at(call, row.agent_id.type).pause_run(row.run_id, body.reason)
    return named(row)


async def unpause(call: WebCall, _: NoQuery, __: None) -> Done:
    """Let a paused run go on."""
    row = await graph_run(call)
    await runs_at(call, row.agent_id.type).resume_run(row.run_id)
    return named(row)


async def steer(call: WebCall, _: NoQuery, body: SteerJson) -> Done:
    """Add a message to the inbox of a run."""
    row = await graph_run(call)
    await runs_at(call, row.agent_id.type).steer(row.run_id, body.message)
    return named(row)


async def limit(call: WebCall, _: NoQuery, body: LimitsJson) -> Done:
    """Change limits of a run."""
    row = await graph_run(call)
    await runs_at(call, row.agent_id.type).update_limits(row.run_id, body.updates)
    return named(row)


ENDPOINTS: Final = (
    WebEndpoint(
        method="POST",
        path=f"{RUN}/pause",
        call=pause,
        says="Let a run rest between two of its steps.",
        body=PauseJson,
        answer=GraphRunNameJson,
    ),
    WebEndpoint(
        method="POST",
        path=f"{RUN}/resume",
        call=unpause,
        says="Let a paused run go on.",
        answer=GraphRunNameJson,
    ),
    WebEndpoint(
        method="POST",
        path=f"{RUN}/steer",
        call=steer,
        says="Add a message to the inbox of a run.",
        body=SteerJson,
        answer=GraphRunNameJson,
    ),
    WebEndpoint(
        method="POST",
        path=f"{RUN}/limits",
        call=limit,
        says="Change limits of a run.",
        body=LimitsJson,
        answer=GraphRunNameJson,
    ),
)
