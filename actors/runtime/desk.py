"""What a client does with runs from outside: begin them, talk to them, wait for their ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from actors.errors import ContractError, RunFailedError, RunSweptError, UnknownRunError
from actors.kernel.agent.message import Message
from actors.kernel.agent.supervision import (
    ExecutionBudget,
    HistoryRetention,
    SpawnBudget,
    Supervision,
)
from actors.kernel.runtime.commit import NewRun
from actors.kernel.runtime.ids import AgentId, RunId, check_name, run_id_of_submit
from actors.kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.kernel.runtime.supervisor import RunHandle, RunResult
from actors.runtime.summary import result_of_row, summary_of
from actors.runtime.tasks import TaskScope

if TYPE_CHECKING:
    from actors.kernel.clock import Clock, Entropy
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import CancelReport, RunRow
    from actors.kernel.runtime.communication import RunStatusSummary
    from actors.kernel.runtime.store import OnConflict, RunStore
    from actors.runtime.worker import Worker


class Desk:
    """One client's way to the runs of all hosts.

    Args:
        store: The rows.
        worker: Told at once of what concerns agents of this host.
        client: Who submits (``submit:<client>``) and sends (``client:<client>``).
    """

    def __init__(
        self, store: RunStore, worker: Worker, *, client: str, clock: Clock, entropy: Entropy
    ) -> None:
        self._store = store
        self._worker = worker
        self._clock = clock
        self._entropy = entropy
        self.client = check_name("client", client)

    # --- beginning ------------------------------------------------------------------------------

    def new_run(
        self,
        message: Message,
        agent_id: AgentId,
        *,
        priority: int,
        retry_policy: RetryPolicy,
        terms: tuple[
            SpawnBudget | None, ExecutionBudget | None, HistoryRetention | None, str | None
        ],
    ) -> NewRun:
        """Return the run that a submitted message starts, root of a tree of its own."""
        run_id = run_id_of_submit(agent_id, f"submit:{self.client}", message.id)
        spawn, spend, retention, session = terms
        supervision = None
        if any(term is not None for term in terms):
            supervision = Supervision(
                run_id=run_id, root_id=run_id, session_id=session, priority=priority,
                spawn_budget=spawn or SpawnBudget(), execution_budget=spend or ExecutionBudget(),
                retention=retention or HistoryRetention.RUN,
            )  # fmt: skip
        limit = spend.deadline_s if spend is not None else None
        deadline = self._clock.now() + timedelta(seconds=limit) if limit is not None else None
        return NewRun(
            run_id, agent_id, priority=priority, retry_policy=retry_policy,
            deadline_at=deadline, supervision=supervision,
        )  # fmt: skip

    async def submit(self, run: NewRun, message: Message, on_conflict: OnConflict) -> RunId:
        """See `Runtime.submit`."""
        sent = message.sent_by(f"submit:{self.client}")
        done = await self._store.submit(run, sent, on_conflict=on_conflict)
        if done.arrived is None:
            await self._offer_known(done.run_id)
        else:
            is_new = done.run_id == run.run_id
            self._worker.offer(done.arrived, new_run=run if is_new else None)
            if on_conflict == "interrupt":
                await self._tell_interrupted(run.agent_id)
        return done.run_id

    async def _offer_known(self, run_id: RunId) -> None:
        """The first submit may have been written without an answer: nobody offered its run."""
        for found in await self._store.load([run_id]):
            if found.row.status is RunStatus.PENDING and found.row.last_seq < 0:
                self._worker.adopt(found.row, found.messages)

    async def _tell_interrupted(self, agent_id: AgentId) -> None:
        """The store flagged the agent's open run; other hosts were nudged, this one was not."""
        busy = await self._store.find_run_for_agent(agent_id)
        if busy is not None and busy.cancel_requested is not None:
            self._worker.cancel(busy.run_id, agent_id, busy.cancel_requested)

    async def redrive_run(self, run_id: RunId) -> RunId:
        """See `Runtime.redrive_run`."""
        done = await self._store.redrive_run(run_id)
        await self._offer_known(done.run_id)
        return done.run_id

    # --- talking --------------------------------------------------------------------------------

    async def send(self, agent_id: AgentId, msg: Message | Any, sender: str | None) -> bool:
        """See `Runtime.send`."""
        message = msg if isinstance(msg, Message) else Message.of(agent_id, msg)
        message = message.sent_by(sender or f"client:{self.client}")
        arrived = await self._store.deliver([message])
        self._worker.routed(tuple(arrived))
        return bool(arrived)

    async def signal(
        self, run_id: RunId, name: str, payload: JsonValue, message_id: str | None
    ) -> bool:
        """See `Runtime.signal`; the name may be an operator's."""
        outcome = await self._store.signal(
            run_id, name, payload, message_id=message_id or self._entropy.token(),
            sender=f"client:{self.client}",
        )  # fmt: skip
        if outcome.accepted and outcome.agent_id is not None:
            self._worker.signalled(run_id, outcome.agent_id)
        return outcome.accepted

    async def cancel(self, run_id: RunId, reason: str) -> CancelReport:
        """See `Runtime.cancel`."""
        report = await self._store.request_cancel(run_id, reason=reason)
        for cancelled, agent_id in report.runs:
            self._worker.cancel(cancelled, agent_id, reason)
        return report

    # --- ends -----------------------------------------------------------------------------------

    async def wait(self, run_id: RunId) -> RunRow:
        """See `Runtime.wait`."""
        ended = self._worker.endings.future_of(run_id)
        try:
            if self._worker.has(run_id) and (row := await ended) is not None:
                return row
            row = await self._store.run(run_id)
            while row is not None and not row.status.is_terminal:
                async with TaskScope() as scope:
                    scope.start(self._follow_to_end(run_id, ended), name=f"wait {run_id}")
                    await ended
                ended = self._worker.endings.future_of(run_id)
                row = await self._store.run(run_id)
        finally:
            ended.cancel()
        if row is None:
            raise UnknownRunError(run_id)
        return row

    async def _follow_to_end(self, run_id: RunId, ended: asyncio.Future[RunRow | None]) -> None:
        async for _ in self._store.tail(run_id):
            pass
        with suppress(asyncio.InvalidStateError):
            ended.set_result(None)

    async def result(self, run_id: RunId) -> JsonValue:
        """See `Runtime.result`."""
        row = await self.wait(run_id)
        if row.swept:
            raise RunSweptError(run_id, row.status)
        if row.status is RunStatus.COMPLETED:
            return row.result
        error = row.error or {}
        message = row.cancel_requested if row.status is RunStatus.CANCELLED else None
        raise RunFailedError(run_id, row.status, str(message or error.get("message") or ""))

    async def join(self, run_id: RunId) -> RunResult:
        """See `Runtime.join`."""
        return result_of_row(await self.wait(run_id))

    # --- looking --------------------------------------------------------------------------------

    async def handle(self, run_id: RunId) -> RunHandle:
        """See `Runtime.handle`."""
        return _handle_of(await self._row(run_id))

    async def children(self, run_id: RunId) -> list[RunHandle]:
        """See `Runtime.children`."""
        return [_handle_of(row) for row in await self._store.children(run_id)]

    async def status(self, run_id: RunId) -> RunStatusSummary:
        """See `Runtime.status`."""
        return await summary_of(self._store, await self._row(run_id))

    async def _row(self, run_id: RunId) -> RunRow:
        row = await self._store.run(run_id)
        if row is None:
            raise UnknownRunError(run_id)
        return row


def _handle_of(row: RunRow) -> RunHandle:
    return RunHandle(row.run_id, row.agent_id, row.parent)


def run_id_of(run: RunHandle | RunId | str) -> RunId:
    """Return the id of a run that is named by its handle or its id."""
    return run.run_id if isinstance(run, RunHandle) else RunId(run)


def own_tenant(agent_id: AgentId, tenant: str) -> AgentId:
    """Return the agent if `tenant` is its own, or the default.

    Raises:
        ContractError: It is another one.
    """
    if tenant not in ("default", agent_id.tenant):
        text = f"agent {agent_id} belongs to tenant {agent_id.tenant!r}, not {tenant!r}"
        raise ContractError(text)
    return agent_id
