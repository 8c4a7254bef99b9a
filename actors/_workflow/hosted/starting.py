"""The starts of runs of flows, also by schedules and from snapshots, and the message that a run begins with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from actors._kernel.agent.message import payload_of
from actors._kernel.runtime.ids import DEFAULT_TENANT
from actors._kernel.runtime.rows import RunRow
from actors._kernel.stores.flows import NewRunSnapshot, RunSnapshot, RunSnapshotStore
from actors._kernel.stores.schedule import Schedule
from actors._kernel.workflow.durable import durable_copy
from actors._kernel.workflow.errors import GraphError, NoSuchRunError
from actors._kernel.workflow.run_state import Snapshot
from actors._runtime.runtime import Runtime
from actors._workflow.hosted.flow_address import flow_address
from actors._workflow.hosted.flows import Flows
from actors._workflow.hosted.graph_run import RESTORED
from actors._workflow.machine.variables import check_callers


async def schedule_flow(
    runtime: Runtime,
    app: str | Flows,
    name: str,
    flow: str,
    *,
    vars: Mapping[str, Any] | None = None,  # noqa: A002 - AbstractRuntime's name
    actor_id: str | None = None,
    session_id: str | None = None,
    tenant: str = DEFAULT_TENANT,
    **when: Any,
) -> Schedule:
    """Return the schedule of this name, which starts a run of a flow at each tick. Create it if there is none.

    The id of a run is made of tenant, name and tick, so each tick starts one run. They are runs of the agent
    ``<app>/<flow>:schedule:<name>``. Each begins when the run before it has ended.

    Args:
        runtime: The runtime whose store has the schedules. It may be a client.
        app: The app's name, or the `Flows`, whose graphs are then known to this call.
        name: The schedule's name.
        flow: The graph.
        vars: The vars of each run.
        actor_id: The actor for whom the runs act.
        session_id: The session of the runs.
        tenant: The owner.
        when: `cron`, `timezone`, `at`, `delay_s`, `catch_up` and `replace` of `Schedules.create`.

    Raises:
        GraphError: The `Flows` have no such flow, or a name in `vars` is the runtime's.
        NotSerializableError: A value in `vars` is not JSON data; the error has its path.
        MessageTooLargeError: The vars have more than 256 KiB as JSON.
        ScheduleExistsError: A schedule of this name has other values, and `replace` is not set.
        InvalidScheduleError: The expression, the time zone or the instant is not valid.
    """
    message = start_message(app, flow, vars, actor_id=actor_id, session_id=session_id)
    type_ = app if isinstance(app, str) else app.app
    agent = flow_address(type_, flow, f"schedule:{name}", tenant)
    return await runtime.schedules.create(name, agent, message, **when)


def start_message(
    app: str | Flows,
    flow: str,
    variables: Mapping[str, Any] | None,
    *,
    actor_id: str | None,
    session_id: str | None,
) -> dict[str, Any]:
    """Return the message that starts a run.

    Raises:
        GraphError: The `Flows` have no such flow, or a name in `variables` is the runtime's.
        NotSerializableError: A variable is not JSON data; the error has its path.
    """
    if not isinstance(app, str) and flow not in app.specs:
        flow_names = ", ".join(sorted(app.specs))
        raise GraphError(
            f"flow {flow!r}", f"app {app.app!r} has none of this name, but {flow_names}"
        )
    check_callers(variables or ())
    clean_vars = durable_copy(dict(variables or {}), "vars")
    return {"vars": clean_vars, "actor_id": actor_id, "session_id": session_id}


def restore_message(snapshot: Snapshot, *, force: bool = False) -> dict[str, Any]:
    """Return the message that starts a run with the state of a snapshot."""
    return {RESTORED: {"snapshot": snapshot.to_dict(), "force": force}}


async def keep_snapshot(
    store: RunSnapshotStore, snapshot: Snapshot, row: RunRow, *, seq: int, by: str
) -> Snapshot:
    """Keep a snapshot as a row; return it with the instant at which the row was written.

    Raises:
        InvalidTextError: The name, the description or a tag is too long, or no database takes it.
        ContractError: There are too many tags.
        MessageTooLargeError: The snapshot has more than 256 KiB as JSON, so no run could begin with it.
        NoSuchRunError: The run was deleted.
    """
    new_row = NewRunSnapshot(
        id=snapshot.snapshot_id,
        run_id=row.run_id,
        agent_id=row.agent_id,
        seq=seq,
        name=snapshot.name,
        description=snapshot.description,
        tags=tuple(snapshot.tags),
        spec_hash=snapshot.spec_hash,
        created_by=by,
    )
    # Called for its size check only: a larger snapshot would be stored, but no run could begin with it.
    payload_of(restore_message(snapshot), what=f"snapshot of run {row.run_id}")
    snapshot_row = await store.put(new_row, json.dumps(snapshot.run_state))
    if snapshot_row is None:
        raise NoSuchRunError(row.run_id)
    return replace(snapshot, created_at=snapshot_row.created_at.isoformat())


def snapshot_from(row: RunSnapshot, state: str) -> Snapshot:
    """Return the snapshot that a row of `keep_snapshot` has."""
    return Snapshot(
        snapshot_id=row.id,
        run_id=row.run_id,
        name=row.name,
        description=row.description,
        tags=[*row.tags],
        created_at=row.created_at.isoformat(),
        run_state=json.loads(state),
        spec_hash=row.spec_hash,
    )
