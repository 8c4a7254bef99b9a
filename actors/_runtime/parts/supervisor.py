"""SupervisorView: the tree of runs over one RunStore."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from actors._kernel.agent.agent import Agent, Supervision
from actors._kernel.agent.message import Message
from actors._kernel.json import JsonValue, recordable
from actors._kernel.runtime.commit import CONTINUE, Spawned, Suspend
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, RunId, run_id_of_child
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.rows import NewRun, RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.sources import RunHandle, RunResult
from actors._kernel.runtime.waits import Answer
from actors._kernel.stores.run_store import RunStore
from actors._kernel.text import check_text_of
from actors._runtime.parts.inbox import LeaseOf, StoreView
from actors._runtime.replay.verdict import ANSWER_OF, result_of_row, row_of
from actors.errors import (
    ConcurrentAppendError,
    ContractError,
    IllegalTransitionError,
    OtherTenantError,
)

_TRIES: Final = 10
"""Number of times that a spawn is written after an end of the log that moves."""


class SupervisorView(StoreView):
    """The `Supervisor` of a store. Children, budgets and results are rows: they survive this process.

    Args:
        store: The store of the rows.
        lease_of: This host's shard leases; a parent is written to under them.
        follow: Called with changes for agents of this process; the store notifies the others.
    """

    def __init__(
        self, store: RunStore, *, lease_of: LeaseOf, follow: Callable[[Nudge], None] | None = None
    ) -> None:
        super().__init__(store, lease_of=lease_of)
        self._follow = follow

    async def spawn(
        self,
        child_agent: Agent | AgentId,
        *,
        parent: RunId,
        supervision: Supervision,
        boot: Message | None = None,
    ) -> RunHandle:
        """Start a child of a run, and return its handle. The same `boot` for the same agent is the same child.

        Without `boot` the child's id depends on how many children the parent has. The child's position
        in the tree is the parent's doing, whatever `supervision` says about it.

        Raises:
            UnknownRunError: There is no such parent.
            IllegalTransitionError: The parent has ended, or has not begun its attempt.
            OtherTenantError: The child would be of another tenant than its parent.
            LeaseLostError: The parent's agent is not this host's.
            ConcurrentAppendError: The parent writes all the time; ask again.
            SpawnDenied: The tree's budget is used up.
        """
        agent = child_agent if isinstance(child_agent, AgentId) else child_agent.id
        tries = 0
        while True:
            try:
                return await self._spawn(agent, parent, supervision, boot)
            except ConcurrentAppendError:
                tries += 1
                if tries == _TRIES:
                    raise

    async def join(self, handle: RunHandle) -> RunResult:
        """Wait for the end of a run, and return how it ended.

        Raises:
            UnknownRunError: There is no such run.
        """
        row = await row_of(self._store, handle.run_id)
        reason = row.cancel_requested or ""
        if not row.swept:
            # From the last entry on: of an ended run that is its end.
            async for entry in self._store.reads.tail(handle.run_id, from_seq=max(row.last_seq, 0)):
                if entry.kind == EntryKind.RUN_CANCELLED:
                    reason = str(entry.payload["reason"])
            row = await row_of(self._store, handle.run_id)
        return result_of_row(replace(row, cancel_requested=reason))

    async def cancel(self, handle: RunHandle, *, reason: str = "") -> None:
        """Ask a run and its subtree to stop.

        Raises:
            UnknownRunError: There is no such run.
        """
        check_text_of("reason of a cancel", reason)
        report = await self._store.arrivals.request_cancel(handle.run_id, reason=reason)
        for run_id, agent_id in report.runs:
            self._notify(Nudge("cancel", agent_id, run_id))

    async def children_of(self, run_id: RunId) -> list[RunHandle]:
        """Return the children of a run."""
        rows = await self._store.lists.children(run_id)
        return [RunHandle(row.run_id, row.agent_id, run_id) for row in rows]

    async def record_completion(self, run_id: RunId, result: RunResult) -> None:
        """Give the parent of a run the result of it. A run's own end does the same, in its last commit.

        Raises:
            UnknownRunError: There is no such run.
            ContractError: `result` is not how a run ends, or is another run's.
        """
        status = ANSWER_OF.get(result.status)
        if status is None or result.run_id != run_id:
            msg = f"{result.status} of run {result.run_id} is no result of run {run_id}"
            raise ContractError(msg)
        row = await row_of(self._store, run_id)
        if row.parent is None:
            return
        answer = Answer(
            run_id=row.parent,
            key=run_id,
            status=status,
            result=result.output,
            error=result.error,
            by=run_id,
            last_seq=row.last_seq,
        )
        outcome = await self._store.arrivals.answer(answer)
        if outcome.accepted:
            self._notify(Nudge("signal", outcome.agent_id, row.parent))

    async def _spawn(
        self, agent: AgentId, parent_id: RunId, supervision: Supervision, boot: Message | None
    ) -> RunHandle:
        parent = await row_of(self._store, parent_id)
        if agent.tenant != parent.agent_id.tenant:
            raise OtherTenantError(f"agent {agent}", parent.agent_id.tenant)
        # Counted after the row was read: a spawn between the two moves the end of the log.
        number = len(await self._store.lists.children(parent_id))
        if boot is None:
            while (
                await self._store.reads.run(run_id_of_child(parent_id, f"sup.{number}")) is not None
            ):
                number += 1
        position = f"sup.{number}"
        run_id = run_id_of_child(parent_id, position if boot is None else f"{agent} {boot.id}")
        if boot is None or await self._store.reads.run(run_id) is None:
            child = Spawned(
                _child_of(parent, run_id, agent, supervision),
                position,
                None if boot is None else replace(boot, target=agent),
            )
            await self._add(parent, child)
        return RunHandle(run_id, agent, parent_id)

    async def _add(self, parent: RunRow, child: Spawned) -> None:
        """Write a child with its entry in the log of a parent that executes or waits."""
        executes = parent.status is RunStatus.RUNNING
        waits = parent.status is RunStatus.SUSPENDED and parent.wake is not None
        if not (executes or waits):
            raise IllegalTransitionError(parent.run_id, parent.status, RunStatus.RUNNING)
        entries = [_spawned(child)]
        if parent.wake is not None:
            entries.append(NewEntry(EntryKind.RUN_SUSPENDED, "", {"wake": parent.wake.to_json()}))
        lease = self._lease(parent.run_id, parent.agent_id, attempt=parent.attempt)
        committed = await self._write(
            lease,
            parent.last_seq,
            *entries,
            then=CONTINUE if parent.wake is None else Suspend(parent.wake),
            spawned=(child,),
        )
        for nudge in committed.nudges:
            self._notify(nudge)
        if committed.spawned:
            self._notify(Nudge("run", child.run.agent_id, child.run.run_id))
        if committed.wake_now:
            self._notify(Nudge("signal", parent.agent_id, parent.run_id))

    def _notify(self, nudge: Nudge) -> None:
        if self._follow is not None:
            self._follow(nudge)


def _child_of(parent: RunRow, run_id: RunId, agent_id: AgentId, supervision: Supervision) -> NewRun:
    root_id, parent_id, depth = parent.root or parent.run_id, parent.run_id, parent.depth + 1
    terms_of_tree = {"run_id": run_id, "root_id": root_id, "parent_id": parent_id, "depth": depth}
    return NewRun(
        run_id,
        agent_id,
        priority=supervision.priority,
        parent=parent_id,
        root=root_id,
        depth=depth,
        deadline_at=parent.deadline_at,
        supervision=supervision.model_copy(update=terms_of_tree),
        parent_agent=parent.agent_id,
    )


def _spawned(child: Spawned) -> NewEntry:
    payload: dict[str, JsonValue] = {"child": child.run.run_id, "agent": str(child.run.agent_id)}
    if child.boot is not None:
        payload["boot"] = child.boot.payload
    if child.run.supervision is not None:
        where = f"supervision of run {child.run.run_id}"
        payload["supervision"] = recordable(
            child.run.supervision.model_dump(mode="json"), where=where
        )
    return NewEntry(EntryKind.CHILD_SPAWNED, child.position, payload)
