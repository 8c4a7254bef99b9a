"""FlowRuns starts, reads and answers runs of flows that are agents, from any process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.agent.message import Message
from actors._kernel.basics import check_number
from actors._kernel.runtime.ids import DEFAULT_TENANT, AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.rows import BufferedSignal, RunRow
from actors._kernel.runtime.scheduler import RunStatus as RowStatus
from actors._kernel.runtime.waits import event_id as event_of_tenant
from actors._kernel.stores.flows import RunSnapshot, SnapshotFilter
from actors._kernel.text import is_name
from actors._kernel.workflow.durable import durable_copy, new_id, utc_now_iso
from actors._kernel.workflow.effects import RunStatus, WaitState, check_answer
from actors._kernel.workflow.errors import (
    GraphError,
    NoSuchRunError,
    NoSuchSnapshotError,
    StaleResumeError,
)
from actors._kernel.workflow.run_state import RunState, Snapshot
from actors._runtime.runtime import Runtime
from actors._workflow.hosted.flow_address import flow_address
from actors._workflow.hosted.flows import Flows
from actors._workflow.hosted.graph_run import report
from actors._workflow.hosted.ledger_feed import flow_of, fold_from
from actors._workflow.hosted.starting import (
    keep_snapshot,
    restore_message,
    snapshot_from,
    start_message,
)
from actors._workflow.hosted.step_entry import Folded
from actors._workflow.hosted.waits import SIGNAL, WAIT, answer_key, requested_change
from actors._workflow.machine import variables
from actors._workflow.machine.spec import SCOPES, event_from, key_of_payload
from actors._workflow.machine.starting import restored_run
from actors._workflow.machine.variables import with_path
from actors._workflow.machine.waits import check_early, mismatch

_START: Final = "start"
_SENDER: Final = "submit:flows"
"""Sender of start messages. It is the same in all processes, so an id is one run wherever it is started."""


class FlowRuns:
    """The runs of an app's flows. The runtime may be a client; then other processes execute the runs.

    Args:
        runtime: The runtime whose store has the runs.
        app: The app's name (see `Flows`), or the `Flows`, whose graphs are then known to this object.
        tenant: The owner.
    """

    tenant: str

    def __init__(self, runtime: Runtime, app: str | Flows, *, tenant: str = DEFAULT_TENANT) -> None:
        self._app = app
        self.app: str = app if isinstance(app, str) else app.app
        self._specs = {} if isinstance(app, str) else app.specs
        self._runtime, self.tenant = runtime, tenant

    async def start(
        self,
        flow: str,
        *,
        vars: Mapping[str, Any] | None = None,  # noqa: A002 - AbstractRuntime's name
        id: str | None = None,  # noqa: A002
        actor_id: str | None = None,
        session_id: str | None = None,
    ) -> RunId:
        """Queue a run of a flow durably; return its id.

        With `id` only one run is made: later calls with it return the same run.

        Raises:
            GraphError: The `Flows` have no such flow, or a name in `vars` is the runtime's.
            NotSerializableError: A value in `vars` is not JSON data; the error has its path. No run is made.
            MessageTooLargeError: The vars have more than 256 KiB as JSON.
        """
        message = start_message(self._app, flow, vars, actor_id=actor_id, session_id=session_id)
        return await self._start(flow, id, message)

    async def snapshot(
        self,
        run_id: RunId,
        name: str,
        *,
        description: str = "",
        tags: Iterable[str] = (),
        by: str = "",
        keep: bool = True,
    ) -> Snapshot:
        """Return a snapshot of a run as it is now. It is kept durably as a row, also after the run is swept.

        If the app is given as `Flows`, the snapshot also has the hash of the graph.

        Args:
            run_id: The run.
            name: A name for people to read.
            description: A description for people to read.
            tags: Words by which `snapshots` finds it.
            by: The principal that made it.
            keep: If false, the snapshot is only returned, for a `SnapshotStore` or a file of the caller.

        Raises:
            NoSuchRunError: The app and tenant have no run of this id, or it was swept.
            GraphError: The run has not begun, so it has no state yet.
            InvalidTextError: The name or a tag has more than 1,024 bytes, the description more than 4 KiB.
            ContractError: There are more than 32 tags.
            MessageTooLargeError: The snapshot has more than 256 KiB as JSON, so no run could begin with it.
        """
        row = await self._row(run_id)
        run, seq = await self._current_state(row)
        if not run.current_node:
            problem = "it has not begun, so it has no state: make a snapshot after its first step"
            raise GraphError(f"run {run_id}", problem)
        spec = self._specs.get(run.workflow_id)
        hash_ = None if spec is None else spec.hash
        snapshot = Snapshot.from_run(
            run=run, name=name, description=description, tags=tags, spec_hash=hash_
        )
        store = self._runtime.store.data.run_snapshots
        return await keep_snapshot(store, snapshot, row, seq=seq, by=by) if keep else snapshot

    async def snapshots(
        self,
        *,
        run: RunId | None = None,
        tag: str | None = None,
        query: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[RunSnapshot]:
        """Return kept snapshots of the app's runs, the newest first, without their states.

        Args:
            run: Only those of this run.
            tag: Only those with this tag.
            query: A text that the name or the description contains.
            after: The id of the last snapshot of the previous page.
            limit: Maximum number of snapshots.

        Raises:
            NoSuchSnapshotError: No kept snapshot has the id `after`.
        """
        check_number("limit", limit, low=0)
        last_of_page = None if after is None else (await self._stored_snapshot(after))[0]
        snapshot_filter = SnapshotFilter(
            apps=[self.app], run=run, tag=tag, query=query, after=last_of_page
        )
        return await self._runtime.store.data.run_snapshots.list(
            self.tenant, snapshot_filter, limit=limit
        )

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Remove a kept snapshot.

        Raises:
            NoSuchSnapshotError: No kept snapshot has this id.
        """
        await self._stored_snapshot(snapshot_id)
        await self._runtime.store.data.run_snapshots.remove(self.tenant, snapshot_id)

    async def restore(
        self,
        snapshot: Snapshot | str,
        *,
        id: str | None = None,  # noqa: A002
        force: bool = False,
    ) -> RunId:
        """Queue a new run that begins with the state of a snapshot, with its open wait; return its id.

        `snapshot` is a snapshot, or the id of a kept one. The run fails at its start if the host's graph is not
        the snapshot's graph, unless `force` is true. If the app is given as `Flows`, this call refuses such a
        graph.

        Raises:
            NoSuchSnapshotError: No kept snapshot has this id.
            SpecChangedError: The graph is not the snapshot's graph, and `force` is false.
            GraphError: The run of the snapshot had ended.
            MessageTooLargeError: The snapshot's state has more than 256 KiB as JSON.
        """
        if isinstance(snapshot, str):
            snapshot = snapshot_from(*await self._stored_snapshot(snapshot))
        flow_id = str(snapshot.run_state.get("workflow_id"))
        if (spec := self._specs.get(flow_id)) is not None:
            # Called for its checks only: the caller gets the error here, not a run that fails on a host.
            restored_run(snapshot, spec, run_id="-", at=utc_now_iso(), force=force)
        return await self._start(flow_id, id, restore_message(snapshot, force=force))

    async def _stored_snapshot(self, snapshot_id: str) -> tuple[RunSnapshot, str]:
        store, is_id = self._runtime.store.data.run_snapshots, is_name(snapshot_id)
        row_and_state = await store.get(self.tenant, snapshot_id) if is_id else None
        if row_and_state is None or row_and_state[0].agent_id.type != self.app:
            raise NoSuchSnapshotError(snapshot_id)
        return row_and_state

    async def _start(self, flow: str, id_: str | None, payload: dict[str, Any]) -> RunId:
        agent = flow_address(self.app, flow, id_ or new_id(), self.tenant)
        message = Message.of(agent, payload, id=_START)
        retention = HistoryRetention.PERMANENT
        return await self._runtime.submit(
            agent, message, tenant=self.tenant, retention=retention, sender=_SENDER
        )

    async def state(self, run_id: RunId) -> RunState:
        """Return the state of a run, folded from its log.

        Raises:
            NoSuchRunError: The app and tenant have no run of this id, or it was swept.
        """
        return (await self._current_state(await self._row(run_id)))[0]

    async def _current_state(self, row: RunRow) -> tuple[RunState, int]:
        """Return the state of a run, folded from its log, and the number of the last entry."""
        run_id = row.run_id
        # Signals are read before the log, since the log tells which of them the run took.
        signals = await self._runtime.store.reads.signals(run_id)
        from_seq = await fold_from(self._runtime, run_id, row.last_seq)
        fold = await self._fold_log(run_id, from_seq=from_seq)
        state = fold.state
        if state is None:  # its log has no step yet
            created_at_iso = "" if row.created_at is None else row.created_at.isoformat()
            flow, status = flow_of(row), RunStatus.RUNNING
            state = RunState(
                row.run_id, flow, status, "", created_at=created_at_iso, updated_at=created_at_iso
            )
        if not (row.status.is_terminal or state.status.is_terminal):
            pending_signals = [
                s for s in signals if s.name == SIGNAL and s.n not in fold.taken_signals
            ]
            state = _with_signals(state, pending_signals)
        if row.status is RowStatus.CANCELLED:
            state.status, state.waiting = RunStatus.CANCELLED, None
            state.error = row.cancel_requested or "cancelled"
        elif row.status is RowStatus.FAILED and not state.status.is_terminal:
            state.status, state.waiting = RunStatus.FAILED, None
            state.error = str((row.error or {}).get("message") or "failed")
        return state, fold.seq

    async def ledger(self, run_id: RunId) -> list[dict[str, Any]]:
        """Return all records of a run, the first one first.

        Raises:
            NoSuchRunError: The app and tenant have no run of this id, or it was swept.
        """
        await self._row(run_id)
        return (await self._fold_log(run_id)).records

    async def waits(self, run_id: RunId) -> list[WaitState]:
        """Return the open waits of a run that an answer from outside ends. Raises as `state` does."""
        return [WaitState.from_dict({**wait}) for _, wait in await self._open_waits(run_id)]

    async def resume(self, run_id: RunId, wait_key: str, payload: Any) -> None:
        """Answer an open wait of a run once. The run continues on the host that executes it.

        The answer is durable when this returns.

        Raises:
            StaleResumeError: The run does not wait, waits for another key, or another call answered first.
            GraphError: The answer to a wait for an approval of tool calls names other calls or decides none.
            NotSerializableError: A value in `payload` is not JSON data; the error has its path.
            NoSuchRunError: The app and tenant have no run of this id, or it was swept.
        """
        clean_payload = durable_copy(payload, "payload")
        open_waits = await self._open_waits(run_id)
        matches = [key for key, w in open_waits if w.get("wait_key") == wait_key]
        for key, wait in open_waits:
            if wait.get("wait_key") != wait_key:
                continue
            check_answer(WaitState.from_dict({**wait}), clean_payload)
            # Two branches may wait for one key: if another call answered the first wait, the next one is free.
            if await self._runtime.approvals.answer(run_id, key, clean_payload, early=False):
                return
        wait_keys = [w.get("wait_key") for _, w in open_waits]
        problem = mismatch(wait_keys, wait_key) if open_waits else "Run is not waiting"
        raise StaleResumeError(run_id, "the wait was answered" if matches else problem)

    async def answer(self, run_id: RunId, wait_key: str, payload: Any) -> None:
        """Answer a wait that a run has or will have. An answer that comes before the first wait is kept for it.

        Raises:
            StaleResumeError: The run has ended, has an answer of this key, or its first wait of this key ended.
            NotSerializableError: A value in `payload` is not JSON data; the error has its path.
            NoSuchRunError: The app and tenant have no run of this id, or it was swept.
        """
        row = await self._row(run_id)
        if row.status.is_terminal:
            raise StaleResumeError(run_id, f"Run is {row.status.value.lower()}")
        if any(wait.get("wait_key") == wait_key for _, wait in await self._open_waits(run_id)):
            await self.resume(run_id, wait_key, payload)
            return
        check_early(run_id, wait_key)
        clean_payload, key = durable_copy(payload, "payload"), answer_key(run_id, wait_key)
        # An early answer to a wait that has ended would be stored, and no wait would ever take it.
        if await self._has_waited_for(run_id, key):
            raise StaleResumeError(run_id, f"Run does not wait for {wait_key!r} any more")
        if not await self._runtime.approvals.answer(run_id, key, clean_payload, early=True):
            raise StaleResumeError(run_id, f"Run has an answer to {wait_key!r} already")

    async def emit(
        self, name: str, payload: Any = None, *, event_id: str | None = None, **scope: str
    ) -> dict[str, Any]:
        """Answer all waits of the tenant for an event; return ``event_id``, ``delivered`` and ``resumed``.

        Args:
            name: The event's name.
            payload: JSON data.
            event_id: An event of one id answers at most one wait of each run. A new id is made by default.
            scope: `scope`, and `session_id`, `workflow_id` or `run_id`. Without them the event is global.

        Raises:
            GraphError: The event has no name, its scope does not exist, or the id of the scope is missing.
            NotSerializableError: A value is not JSON data, or no database takes a text; the error has its path.
        """
        clean_payload = durable_copy(payload, "payload")
        request = durable_copy({"name": name, "scope": "global"} | scope, "event") | {
            "payload": clean_payload
        }
        scope_id = f"{request['scope']}_id"
        if request["scope"] in SCOPES and request["scope"] != "global" and not scope.get(scope_id):
            raise GraphError(f"event {name!r}", f"scope {request['scope']!r} needs {scope_id}")
        key = key_of_payload(RunState("", "", RunStatus.RUNNING, ""), request)
        id_ = event_id or new_id()
        event = event_from(request, id_, "")
        run_ids = await self._runtime.approvals.emit(event_of_tenant(self.tenant, key), event)
        return report(id_, key, run_ids)

    async def cancel(self, run_id: RunId, *, reason: str = "") -> None:
        """Request the cancellation of a run and all runs below it. A run that has ended stays as it is."""
        await self._row(run_id)
        await self._runtime.cancel(run_id, reason=reason)

    async def pause_run(self, run_id: RunId, reason: str | None = None) -> None:
        """Pause a run until `resume_run`. Nothing new of the run starts. Idempotent.

        Effects that execute at the call run to their end. While the run is paused, answers are kept for it, and
        timers that fall due are held.

        Raises:
            GraphError: The run ended.
            NoSuchRunError: The app and tenant have no run of this id, or it was swept.
        """
        await self._signal(run_id, {"kind": "pause", "reason": reason})

    async def resume_run(self, run_id: RunId) -> None:
        """Resume a paused run. Idempotent. Raises as `pause_run` does."""
        await self._signal(run_id, {"kind": "unpause"})

    async def steer(self, run_id: RunId, message: Any) -> None:
        """Add a message to the inbox of a run (`_runtime.inbox`). The run's nodes read it.

        Raises as `pause_run` does. The run takes it at the next boundary of its steps; a run that waits takes
        it when the wait ends.
        """
        if not message:
            raise GraphError(f"run {run_id}", "an empty message says nothing. Write one")
        await self._signal(run_id, {"kind": "steer", "message": durable_copy(message, "message")})

    async def update_limits(self, run_id: RunId, updates: Mapping[str, Any]) -> None:
        """Change limits of a run. Names that are not limits are ignored. Raises as `pause_run` does."""
        limits = durable_copy(variables.known_updates(updates), "limits")
        await self._signal(run_id, {"kind": "limits", "updates": limits})

    async def _signal(self, run_id: RunId, payload: dict[str, Any]) -> None:
        row = await self._row(run_id)
        # The run may end between the read of its row and the signal: the store then refuses the signal.
        if row.status.is_terminal or not await self._runtime.signal(run_id, SIGNAL, payload):
            status = row.status.value.lower()
            raise GraphError(f"run {run_id}", f"it is {status}: start a new run")

    async def _row(self, run_id: RunId) -> RunRow:
        row = await self._runtime.store.reads.run(run_id) if is_name(run_id) else None
        if row is None or row.swept or not self._has(row.agent_id):
            raise NoSuchRunError(run_id)
        return row

    def _has(self, agent_id: AgentId) -> bool:
        return (agent_id.type, agent_id.tenant) == (self.app, self.tenant)

    async def _fold_log(self, run_id: RunId, *, from_seq: int = 0) -> Folded:
        fold = Folded()
        async for entry in self._runtime.entries(run_id, from_seq=from_seq):
            fold.add(entry)
        return fold

    async def _has_waited_for(self, run_id: RunId, key: str) -> bool:
        """Return True if the log of a run has a wait for this answer."""
        async for entry in self._runtime.entries(run_id):
            if entry.kind == K.ASK_SENT and entry.payload["message_id"] == key:
                return True
        return False

    async def _open_waits(self, run_id: RunId) -> list[tuple[str, dict[str, Any]]]:
        """Return the open waits of a run for answers from outside: the keys of the answers, and the waits."""
        waits = await self._runtime.approvals.open_waits(run_id)
        if not waits or not self._has(waits[0].agent_id):
            await self._row(run_id)  # raises if the app has no such run
        return [(w.wait.key, cast("dict[str, Any]", w.wait.request)[WAIT]) for w in waits]


def _with_signals(state: RunState, signals: Iterable[BufferedSignal]) -> RunState:
    """Return the state that a run will have when it has taken its buffered signals."""
    for signal in signals:
        change = requested_change(state, signal.payload, state.updated_at)
        if change is not None:
            _, path, value = change
            state = replace(state, vars=with_path(state.vars, path, value))
    return state
