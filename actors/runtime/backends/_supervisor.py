"""SupervisorView: the tree of runs over one RunStore."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from actors.errors import (
    ConcurrentAppendError,
    ContractError,
    IllegalTransitionError,
    OtherTenantError,
)
from actors.kernel.json import recordable
from actors.kernel.runtime.commit import CONTINUE, Answer, NewRun, Spawned, Suspend
from actors.kernel.runtime.ids import AgentId, RunId, run_id_of_child
from actors.kernel.runtime.log_entry import EntryKind, NewEntry
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.runtime.store import Nudge
from actors.kernel.runtime.supervisor import RunHandle, RunResult
from actors.kernel.text import check_text_of
from actors.runtime.backends._view_parts import Author, LeaseOf

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.kernel.agent.agent import Agent
    from actors.kernel.agent.message import Message
    from actors.kernel.agent.supervision import Supervision
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import AnswerStatus, RunRow
    from actors.kernel.runtime.store import RunStore

_ANSWERS: Final[dict[RunStatus, AnswerStatus]] = {
    RunStatus.COMPLETED: "completed",
    RunStatus.FAILED: "failed",
    RunStatus.CANCELLED: "cancelled",
}
_TRIES: Final = 10
"""So often a spawn is written behind an end of the log that moves."""


class SupervisorView:
    """See `Supervisor`. Children, budgets and results are rows: they survive this process.

    Args:
        store: Whose rows these are.
        lease_of: This host's shard leases; a parent is written to under them.
        follow: Told what changed for agents of this process; the store tells the others.
    """

    def __init__(
        self,
        store: RunStore,
        *,
        lease_of: LeaseOf,
        follow: Callable[[Nudge], None] | None = None,
    ) -> None:
        self._store = store
        self._author = Author(store, lease_of)
        self._follow = follow

    async def spawn(
        self,
        child_agent: Agent | AgentId,
        *,
        parent: RunId,
        supervision: Supervision,
        boot: Message | None = None,
    ) -> RunHandle:
        """See `Supervisor.spawn`. The same `boot` for the same agent is the same child.

        Without `boot` the child's id depends on how many children the parent has. The child's place
        in the tree is the parent's doing, whatever `supervision` says about it.

        Raises:
            UnknownRunError: There is no such parent.
            IllegalTransitionError: The parent has ended, or has not begun its attempt.
            OtherTenantError: The child would be of another tenant than its parent.
            LeaseLostError: The parent's agent is not this host's.
            ConcurrentAppendError: The parent writes all the time; ask again.
            SpawnDenied: The tree's budget has no place left.
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
        """See `Supervisor.join`.

        Raises:
            UnknownRunError: There is no such run.
        """
        row = await self._author.row(handle.run_id)
        reason = row.cancel_requested or ""
        if not row.swept:
            # From the last entry on: of an ended run that is its end.
            async for entry in self._store.tail(handle.run_id, from_seq=max(row.last_seq, 0)):
                if entry.kind == EntryKind.RUN_CANCELLED:
                    reason = str(entry.payload["reason"])
            row = await self._author.row(handle.run_id)
        error = {"message": reason} if row.status is RunStatus.CANCELLED else row.error
        return RunResult.model_validate(
            {
                "run_id": row.run_id,
                "status": row.status,
                "output": row.result,
                "error": error,
            }
        )

    async def cancel(self, handle: RunHandle, *, reason: str = "") -> None:
        """See `Supervisor.cancel`.

        Raises:
            UnknownRunError: There is no such run.
        """
        check_text_of("reason of a cancel", reason)
        report = await self._store.request_cancel(handle.run_id, reason=reason)
        for run_id, agent_id in report.runs:
            self._tell(Nudge("cancel", agent_id, run_id))

    async def children_of(self, run_id: RunId) -> list[RunHandle]:
        """See `Supervisor.children_of`."""
        rows = await self._store.children(run_id)
        return [RunHandle(row.run_id, row.agent_id, run_id) for row in rows]

    async def record_completion(self, run_id: RunId, result: RunResult) -> None:
        """See `Supervisor.record_completion`. A run's own end does the same, in its last commit.

        Raises:
            UnknownRunError: There is no such run.
            ContractError: `result` is not how a run ends, or is another run's.
        """
        status = _ANSWERS.get(result.status)
        if status is None or result.run_id != run_id:
            msg = f"{result.status} of run {result.run_id} is no result of run {run_id}"
            raise ContractError(msg)
        row = await self._author.row(run_id)
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
        outcome = await self._store.answer(answer)
        if outcome.accepted:
            self._tell(Nudge("signal", outcome.agent_id, row.parent))

    # --- inside -----------------------------------------------------------------------------------

    async def _spawn(
        self, agent: AgentId, parent: RunId, supervision: Supervision, boot: Message | None
    ) -> RunHandle:
        above = await self._author.row(parent)
        if agent.tenant != above.agent_id.tenant:
            raise OtherTenantError(f"agent {agent}", above.agent_id.tenant)
        # Counted after the row was read: who spawns between the two moves the end of the log.
        number = len(await self._store.children(parent))
        if boot is None:
            while await self._store.run(run_id_of_child(parent, f"sup.{number}")) is not None:
                number += 1
        position = f"sup.{number}"
        run_id = run_id_of_child(parent, position if boot is None else f"{agent} {boot.id}")
        if boot is None or await self._store.run(run_id) is None:
            child = Spawned(
                _child_of(above, run_id, agent, supervision),
                position,
                None if boot is None else replace(boot, target=agent),
            )
            await self._write(above, child)
        return RunHandle(run_id, agent, parent)

    async def _write(self, parent: RunRow, child: Spawned) -> None:
        """Write a child with its entry in the log of a parent that executes or waits."""
        executes = parent.status is RunStatus.RUNNING
        waits = parent.status is RunStatus.SUSPENDED and parent.wake is not None
        if not (executes or waits):
            raise IllegalTransitionError(parent.run_id, parent.status, RunStatus.RUNNING)
        entries = [_spawned(child)]
        if parent.wake is not None:
            entries.append(NewEntry(EntryKind.RUN_SUSPENDED, "", {"wake": parent.wake.to_json()}))
        lease = self._author.lease(parent.run_id, parent.agent_id, attempt=parent.attempt)
        committed = await self._author.write(
            lease,
            parent.last_seq,
            *entries,
            then=CONTINUE if parent.wake is None else Suspend(parent.wake),
            spawned=(child,),
        )
        for nudge in committed.nudges:
            self._tell(nudge)
        if committed.spawned:
            self._tell(Nudge("run", child.run.agent_id, child.run.run_id))
        if committed.wake_now:
            self._tell(Nudge("signal", parent.agent_id, parent.run_id))

    def _tell(self, nudge: Nudge) -> None:
        if self._follow is not None:
            self._follow(nudge)


def _child_of(parent: RunRow, run_id: RunId, agent: AgentId, supervision: Supervision) -> NewRun:
    root = parent.root or parent.run_id
    place = {
        "run_id": run_id,
        "root_id": root,
        "parent_id": parent.run_id,
        "depth": parent.depth + 1,
    }
    return NewRun(
        run_id,
        agent,
        priority=supervision.priority,
        parent=parent.run_id,
        root=root,
        depth=parent.depth + 1,
        deadline_at=parent.deadline_at,
        supervision=supervision.model_copy(update=place),
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
