"""Stored snapshots of flow runs: create, list, restore, delete."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Final

from pydantic import Field, JsonValue
from starlette.responses import Response

from actors._kernel.runtime.ids import RunId
from actors._kernel.stores.flows import MAX_TAGS, RunSnapshot, SnapshotFilter
from actors._kernel.text import is_name
from actors._kernel.workflow.errors import NoSuchSnapshotError
from actors._workflow.hosted.runs import FlowRuns
from actors._workflow.hosted.starting import snapshot_from
from compose._web.endpoint import (
    Endpoints,
    ShownModel,
    StrictModel,
    WebCall,
    WebChange,
    json_response,
    thing_of_run,
)
from compose._web.flows.flows import GraphRunNameJson, flow_apps, flows_of, start_once
from compose._web.flows.runs import RUN, audit_run, graph_run
from compose._web.resources.pages import Paged

endpoint: Final = Endpoints()

_SNAPSHOTS: Final = "/v1/graph-snapshots"
_SNAPSHOT: Final = f"{_SNAPSHOTS}/{{snapshot}}"


class NewSnapshotJson(StrictModel):
    """A snapshot to store: its name, description and tags."""

    name: str = Field(min_length=1, max_length=200)
    description: str = Field(default="", max_length=1000)
    tags: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        default=[], max_length=MAX_TAGS
    )


class KeptSnapshotJson(ShownModel):
    """A stored snapshot, without its state.

    Attributes:
        snapshot: The snapshot's id.
        run: The run. It may be deleted.
        app: The run's app.
        seq: The last entry of the run's log that is part of the state.
        name: A name for people.
        description: A description for people.
        tags: Tags for searches.
        spec_hash: The hash of the graph; null if it is unknown.
        created_by: The principal that created it.
        created_at: The instant of its creation.
    """

    snapshot: str
    run: str
    app: str
    seq: int
    name: str
    description: str
    tags: list[str]
    spec_hash: str | None
    created_by: str
    created_at: datetime


class WholeSnapshotJson(KeptSnapshotJson):
    """A stored snapshot with its state. See `KeptSnapshotJson`.

    Attributes:
        run_state: The run's state, in the form of `RunState.to_dict`.
    """

    run_state: dict[str, JsonValue]


class SnapshotsJson(ShownModel):
    """A page of snapshots, newest first. `next` is null on the last page."""

    snapshots: list[KeptSnapshotJson]
    next: str | None


class SnapshotsQuery(Paged):
    """The query of a list: by app, run and tag; `query` matches a part of name or description."""

    app: str | None = None
    run: str | None = None
    tag: str | None = None
    query: str | None = None


class RestoreJson(StrictModel):
    """A request to start a run from a snapshot. `force` allows it even if the graph has changed since."""

    force: bool = False


def _facts(row: RunSnapshot) -> dict[str, object]:
    facts = asdict(row) | {"snapshot": row.id, "run": row.run_id, "app": row.agent_id.type}
    return {name: facts[name] for name in KeptSnapshotJson.model_fields}


def _runs_at(call: WebCall, app: str) -> FlowRuns:
    """Return the runs of an app, with its graphs if they are served here."""
    flows = flows_of(call.runtime).get(app, app)
    return FlowRuns(call.runtime, flows, tenant=call.principal.tenant)


async def _find_snapshot(call: WebCall, id_: str) -> tuple[RunSnapshot, str]:
    """Return a snapshot of the principal's tenant and of a served or installed app, with its state.

    Raises:
        NoSuchSnapshotError: There is no such snapshot.
    """
    rows, tenant = call.runtime.store.data.run_snapshots, call.principal.tenant
    row_and_state = await rows.get(tenant, id_) if is_name(id_) else None
    if row_and_state is None or not flow_apps(call, row_and_state[0].agent_id.type):
        raise NoSuchSnapshotError(id_[:100])
    return row_and_state


@endpoint.post(f"{RUN}/snapshots", scope="flows:operate", action="snapshot.create", status=201)
async def keep(call: WebCall, body: NewSnapshotJson) -> KeptSnapshotJson | Response:
    """Store a snapshot of a run."""
    row = await graph_run(call)
    snapshot = await _runs_at(call, row.agent_id.type).snapshot(
        row.run_id, body.name, description=body.description, tags=body.tags, by=call.principal.name
    )
    snapshot_row, _state = await _find_snapshot(call, snapshot.snapshot_id)
    audit_run(call, row, after={"snapshot": snapshot_row.id, "name": snapshot_row.name})
    headers = {"location": f"{_SNAPSHOTS}/{snapshot_row.id}"}
    return json_response(KeptSnapshotJson.model_validate(_facts(snapshot_row)), 201, headers)


@endpoint.get(_SNAPSHOTS, scope="flows:run")
async def list_snapshots(call: WebCall, query: SnapshotsQuery) -> SnapshotsJson:
    """List stored snapshots of runs, newest first."""
    apps = flow_apps(call, query.app)
    after = None if query.after is None else (await _find_snapshot(call, query.after))[0]
    run = None if query.run is None else RunId(query.run)
    snapshot_filter = SnapshotFilter(
        apps=apps, run=run, tag=query.tag, query=query.query, after=after
    )
    rows = await call.runtime.store.data.run_snapshots.list(
        call.principal.tenant, snapshot_filter, limit=query.limit + 1
    )
    page = rows[: query.limit]
    snapshots = [KeptSnapshotJson.model_validate(_facts(row)) for row in page]
    return SnapshotsJson(snapshots=snapshots, next=page[-1].id if len(rows) > len(page) else None)


@endpoint.get(_SNAPSHOT, scope="flows:run")
async def show(call: WebCall) -> WholeSnapshotJson:
    """Show a stored snapshot with its state."""
    row, state = await _find_snapshot(call, call.names["snapshot"])
    run_state = snapshot_from(row, state).run_state
    return WholeSnapshotJson.model_validate(_facts(row) | {"run_state": run_state})


@endpoint.post(f"{_SNAPSHOT}/restore", scope="flows:operate", action="snapshot.restore", status=201)
async def restore(call: WebCall, body: RestoreJson) -> GraphRunNameJson | Response:
    """Start a run from a snapshot; a repeated Idempotency-Key returns the same run.

    Respond 201, or 200 if the Idempotency-Key has started it before.
    """
    row, state = await _find_snapshot(call, call.names["snapshot"])
    snapshot, app = snapshot_from(row, state), row.agent_id.type
    runs, flow_id = _runs_at(call, app), str(snapshot.run_state["workflow_id"])

    async def start_restored(key: str | None) -> RunId:
        change = _audit_change(call, row)
        run_id = await runs.restore(snapshot, id=key, force=body.force)
        change.after = {"run": run_id}
        return run_id

    return await start_once(call, app, flow_id, start_restored)


def _audit_change(call: WebCall, row: RunSnapshot) -> WebChange:
    """Note a change of a snapshot for the audit of its run."""
    before = {"snapshot": row.id, "name": row.name}
    return call.audit(thing_of_run(row.run_id), agent=row.agent_id, before=before)


@endpoint.delete(_SNAPSHOT, scope="flows:operate", action="snapshot.delete", status=204)
async def remove(call: WebCall) -> Response:
    """Remove a stored snapshot."""
    row, _state = await _find_snapshot(call, call.names["snapshot"])
    _audit_change(call, row)
    await call.runtime.store.data.run_snapshots.remove(call.principal.tenant, row.id)
    return Response(status_code=204)
