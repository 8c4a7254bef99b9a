"""Control of runs of flows: pause, resume, steer, limit, snapshot. Changes apply between two steps."""

from __future__ import annotations

from typing import Final

from pydantic import Field, JsonValue

from actors.workflow.hosted.runs import FlowRuns
from actors.workflow.machine.variables import LIMITS
from compose.web.endpoint import (
    Done,
    NoQuery,
    ShownModel,
    StrictModel,
    WebCall,
    WebEndpoint,
    json_response,
)
from compose.web.graphs.flows import GraphRunNameJson, flows_of, named
from compose.web.graphs.graph_runs import RUN, audit_run, graph_run, runs_at


class PauseJson(StrictModel):
    """A request to pause a run."""

    reason: str | None = Field(default=None, max_length=1000)


class SteerJson(StrictModel):
    """A message to a run: a text, or an object with a role and content."""

    message: str | dict[str, JsonValue]


class SnapshotQuery(StrictModel):
    """The query of a snapshot."""

    name: str = Field(default="", max_length=200)


class SnapshotJson(ShownModel):
    """A snapshot of a run. See `Snapshot`."""

    snapshot_id: str
    run_id: str
    step_id: str | None
    name: str
    description: str
    tags: list[str]
    created_at: str
    run_state: dict[str, JsonValue]
    spec_hash: str | None


class LimitsJson(StrictModel):
    """Limits of a run, by name. Unknown names are ignored."""

    updates: dict[str, JsonValue]


async def pause(call: WebCall, _: NoQuery, body: PauseJson) -> Done:
    """Pause a run between two of its steps."""
    row = await graph_run(call)
    audit_run(call, row, after={"paused": True, "reason": body.reason})
    await runs_at(call, row.agent_id.type).pause_run(row.run_id, body.reason)
    return named(row)


async def unpause(call: WebCall, _: NoQuery, __: None) -> Done:
    """Resume a paused run."""
    row = await graph_run(call)
    audit_run(call, row, after={"paused": False})
    await runs_at(call, row.agent_id.type).resume_run(row.run_id)
    return named(row)


async def steer(call: WebCall, _: NoQuery, body: SteerJson) -> Done:
    """Add a message to the inbox of a run."""
    row = await graph_run(call)
    audit_run(call, row)
    await runs_at(call, row.agent_id.type).steer(row.run_id, body.message)
    return named(row)


async def limit(call: WebCall, _: NoQuery, body: LimitsJson) -> Done:
    """Change limits of a run."""
    row = await graph_run(call)
    runs = runs_at(call, row.agent_id.type)
    limits = (await runs.state(row.run_id)).vars.get(LIMITS, {})
    before = {name: limits.get(name) for name in body.updates}
    audit_run(call, row, before=before, after=body.updates)
    await runs.update_limits(row.run_id, body.updates)
    return named(row)


async def snapshot(call: WebCall, query: SnapshotQuery, _: None) -> Done:
    """Return a snapshot of a run as a file, for `callboard graphs restore`. The snapshot is not stored."""
    row = await graph_run(call)
    flows = flows_of(call.runtime).get(row.agent_id.type, row.agent_id.type)
    runs = FlowRuns(call.runtime, flows, tenant=call.principal.tenant)
    made = SnapshotJson.model_validate(
        (await runs.snapshot(row.run_id, query.name, keep=False)).to_dict()
    )
    file = f'attachment; filename="snapshot-{row.run_id}.json"'
    return json_response(made, headers={"content-disposition": file})


ENDPOINTS: Final = (
    WebEndpoint(
        method="POST",
        path=f"{RUN}/pause",
        call=pause,
        says="Pause a run between two of its steps.",
        body=PauseJson,
        answer=GraphRunNameJson,
    ),
    WebEndpoint(
        method="POST",
        path=f"{RUN}/resume",
        call=unpause,
        says="Resume a paused run.",
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
    WebEndpoint(
        method="GET",
        path=f"{RUN}/snapshot",
        call=snapshot,
        says="Download a snapshot of a run as a file.",
        query=SnapshotQuery,
        answer=SnapshotJson,
    ),
)
