"""What a client does with runs from outside: begin them, talk to them, wait for their ends."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from actors.errors import DecisionRefusedError, UnknownRunError
from actors.kernel.agent.message import Message
from actors.kernel.agent.supervision import (
    ExecutionBudget,
    HistoryRetention,
    SpawnBudget,
    Supervision,
)
from actors.kernel.runtime.commit import NewRun
from actors.kernel.runtime.decisions import (
    OPERATOR,
    RESOLVE,
    RETRY,
    decision_id,
    standing,
    to_decide,
)
from actors.kernel.runtime.ids import AgentId, RunId, check_name, run_id_of_submit
from actors.kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.kernel.text import check_message, check_name_of, check_number, check_text_of
from actors.runtime.forking import fork_run
from actors.runtime.summary import known_id, row_of
from actors.runtime.terms import check_policy, check_supervision
from actors.runtime.trace_context import traceparent_for, with_traceparent

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.kernel.clock import Clock, Entropy
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import CancelReport, LoadedRun, RunRow
    from actors.kernel.runtime.store import OnConflict, RunStore
    from actors.runtime.live import LiveEvents
    from actors.runtime.worker import Worker

FIRST_LOOK_S: Final = 0.5
"""How long a wait relies on being told of an end elsewhere before it looks; each time twice as long."""
LAST_LOOK_S: Final = 8.0
"""The longest pause between two looks, while another host would tell of the end."""


class Desk:
    """One client's way to the runs of all hosts.

    Args:
        store: The rows.
        worker: Told at once of what concerns agents of this host.
        live: Hears of ends on other hosts.
        client: Who submits (``submit:<client>``) and sends (``client:<client>``).
    """

    def __init__(
        self,
        store: RunStore,
        worker: Worker,
        live: LiveEvents,
        *,
        client: str,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._store, self._worker, self._live = store, worker, live
        self._clock, self._entropy = clock, entropy
        self.client = check_name("client", client)

    # --- beginning ------------------------------------------------------------------------------

    def new_run(
        self,
        message: Message,
        agent_id: AgentId,
        *,
        priority: int,
        retry_policy: RetryPolicy | None,
        terms: tuple[
            SpawnBudget | None, ExecutionBudget | None, HistoryRetention | None, str | None
        ],
    ) -> NewRun:
        """Return the run that a submitted message starts, root of a tree of its own."""
        check_message(message)
        check_number("priority", priority)
        if retry_policy is not None:
            check_policy(retry_policy)
        run_id = run_id_of_submit(agent_id, f"submit:{self.client}", message.id)
        spawn, spend, retention, session = terms
        supervision = None
        if any(term is not None for term in terms):
            supervision = Supervision(
                run_id=run_id, root_id=run_id, session_id=session, priority=priority,
                spawn_budget=spawn or SpawnBudget(), execution_budget=spend or ExecutionBudget(),
                retention=retention or HistoryRetention.RUN,
            )  # fmt: skip
            check_supervision(supervision)
        limit = spend.deadline_s if spend is not None else None
        deadline = self._clock.now() + timedelta(seconds=limit) if limit is not None else None
        return NewRun(
            run_id, agent_id, priority=priority, retry_policy=retry_policy,
            deadline_at=deadline, supervision=supervision, trace=traceparent_for(message),
        )  # fmt: skip

    async def submit(self, run: NewRun, message: Message, on_conflict: OnConflict) -> RunId:
        """See `Runtime.submit`."""
        return await self._submit(run, message.sent_by(f"submit:{self.client}"), on_conflict)

    async def submit_sent(self, run: NewRun, sent: Message, on_conflict: OnConflict) -> RunId:
        """Submit in the name of the message's sender.

        Raises:
            ContractError: The message cannot be kept.
        """
        check_message(sent)
        check_number("priority", run.priority)
        return await self._submit(run, sent, on_conflict)

    async def _submit(self, run: NewRun, sent: Message, on_conflict: OnConflict) -> RunId:
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
        done = await self._store.redrive_run(known_id(run_id))
        await self._offer_known(done.run_id)
        return done.run_id

    async def fork_run(self, run_id: RunId, at_seq: int, copy: int) -> RunId:
        """See `Runtime.fork_run`."""
        done = await fork_run(self._store, run_id, at_seq=at_seq, copy=copy)
        await self._offer_known(done.run_id)
        return done.run_id

    # --- talking --------------------------------------------------------------------------------

    async def send(self, agent_id: AgentId, msg: Message | Any, sender: str | None) -> bool:
        """See `Runtime.send`."""
        message = msg.checked() if isinstance(msg, Message) else Message.of(agent_id, msg)
        message = with_traceparent(message.sent_by(sender or f"client:{self.client}"))
        check_message(message)
        arrived = await self._store.deliver([message])
        self._worker.routed(tuple(arrived))
        return bool(arrived)

    async def signal(
        self,
        run_id: RunId,
        name: str,
        payload: JsonValue,
        message_id: str | None,
        *,
        sender: str | None = None,
    ) -> bool:
        """See `Runtime.signal`; the sender is this client by default."""
        check_name_of("name of a signal", name)
        check_name_of("id of a signal", message_id or "")
        outcome = await self._store.signal(
            known_id(run_id), name, payload, message_id=message_id or self._entropy.token(),
            sender=sender or f"client:{self.client}",
        )  # fmt: skip
        if outcome.accepted and outcome.agent_id is not None:
            self._worker.signalled(run_id, outcome.agent_id)
        return outcome.accepted

    async def resolve(
        self, run_id: RunId, position: str | None, decision: JsonValue, seq: int | None
    ) -> bool:
        """See `Runtime.resolve`. Bound to what the run was at when it was read here."""
        run_id = known_id(run_id)
        check_name_of("position of a decision", position or "")
        loaded = await self._loaded(run_id)
        if loaded.row.status.is_terminal:
            return False
        name = RETRY if position is None else f"{RESOLVE}{position}"
        about = to_decide(name, loaded.row, loaded.entries) if seq is None else seq
        if about is None:
            raise DecisionRefusedError(run_id, position, standing(loaded.row, loaded.entries))
        outcome = await self._store.signal(
            run_id, name, decision, message_id=decision_id(name, about), sender=OPERATOR
        )
        if outcome.accepted and outcome.agent_id is not None:
            self._worker.signalled(run_id, outcome.agent_id)
        if outcome.accepted or outcome.same:
            return outcome.accepted
        now = await self._loaded(run_id)
        if now.row.status.is_terminal:
            return False
        problem = f"that of seq {about} is over, {standing(now.row, now.entries)}"
        if to_decide(name, now.row, now.entries) == about:
            problem = "it was decided otherwise already"
        raise DecisionRefusedError(run_id, position, problem)

    async def _loaded(self, run_id: RunId) -> LoadedRun:
        found = await self._store.load([run_id])
        if not found:
            raise UnknownRunError(run_id)
        return found[0]

    async def cancel(self, run_id: RunId, reason: str) -> CancelReport:
        """See `Runtime.cancel`."""
        check_text_of("reason of a cancel", reason)
        report = await self._store.request_cancel(known_id(run_id), reason=reason)
        for cancelled, agent_id in report.runs:
            self._worker.cancel(cancelled, agent_id, reason)
        return report

    # --- ends -----------------------------------------------------------------------------------

    async def wait(self, run_id: RunId) -> RunRow:
        """See `Runtime.wait`.

        A run in memory here ends here, or is lost aloud. Of the end of another one the bus tells, which
        is a hint: its row is looked at now and then.
        """
        endings, pause_s = self._worker.endings, FIRST_LOOK_S
        unwatch: Callable[[], None] | None = None
        try:
            while True:
                ended = endings.future_of(run_id)  # before the look: no end falls between them
                try:
                    if self._worker.has(run_id):
                        await ended
                    else:
                        row = await row_of(self._store, run_id)
                        if row.status.is_terminal:
                            return row
                        if unwatch is None:
                            unwatch = self._live.watch_end(
                                row.agent_id, run_id, lambda: endings.tell(run_id, None)
                            )
                        await asyncio.wait([ended], timeout=pause_s)
                        longer_s = min(2 * pause_s, LAST_LOOK_S)
                        pause_s = longer_s if self._live.hears_ends else FIRST_LOOK_S
                    if ended.done() and (told := ended.result()) is not None:
                        return told
                finally:
                    ended.cancel()
        finally:
            if unwatch is not None:
                unwatch()
