"""Writes of clients: rows of the store, of which this host's worker is notified at once."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

from actors._kernel.agent.agent import (
    ExecutionBudget,
    HistoryRetention,
    NewSession,
    SpawnBudget,
    Supervision,
)
from actors._kernel.agent.message import Message
from actors._kernel.basics import Clock, Entropy, check_number
from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, RunId, run_id_of_submit
from actors._kernel.runtime.rows import (
    OPERATOR,
    RESOLVE,
    RETRY,
    LoadedRun,
    NewRun,
    SignalOutcome,
    decision_id,
    standing,
    to_decide,
)
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors._kernel.stores.run_store import RunStore
from actors._kernel.stores.runs import OnConflict, check_on_conflict
from actors._kernel.text import check_name_of, check_policy
from actors._runtime.replay.verdict import known_id
from actors._runtime.verbs.spawning import check_supervision
from actors._runtime.worker.worker import Worker
from actors.errors import DecisionRefusedError, UnknownRunError

Terms: TypeAlias = tuple[
    SpawnBudget | None, ExecutionBudget | None, HistoryRetention | None, str | None
]
"""Budgets of spawning and of spending, what becomes of children, and the session; None for the default."""


class Writer:
    """Writes for clients and for the gateway.

    Args:
        store: The store that is written to.
        worker: The worker of this host, which is notified at once of changes for its agents.
        clock: The clock from whose time deadlines count.
        entropy: The source of ids for signals that have none.
    """

    def __init__(self, store: RunStore, worker: Worker, clock: Clock, entropy: Entropy) -> None:
        self._store, self._worker = store, worker
        self._clock, self._entropy = clock, entropy

    async def submit(
        self, run: NewRun, message: Message, on_conflict: OnConflict, *, is_apart: bool = False
    ) -> RunId:
        """Queue a run for a message with its sender; see `ArrivalStore.submit`."""
        check_on_conflict(on_conflict)
        outcome = await self._store.arrivals.submit(
            run, message, on_conflict=on_conflict, is_apart=is_apart
        )
        if outcome.arrived is None:
            await self.offer(outcome.run_id)
        else:
            is_new = outcome.run_id == run.run_id
            self._worker.intake.offer(outcome.arrived, new_run=run if is_new else None)
            if on_conflict == "interrupt":
                # The store may have flagged the agent's open run here: only other hosts were notified.
                busy_run = await self._store.lists.find_run_for_agent(run.agent_id)
                if busy_run is not None and busy_run.cancel_requested is not None:
                    self._worker.intake.cancel(
                        busy_run.run_id, run.agent_id, busy_run.cancel_requested
                    )
        return outcome.run_id

    def new_run(
        self,
        message: Message,
        agent_id: AgentId,
        *,
        priority: int,
        trace: str | None,
        retry_policy: RetryPolicy | None = None,
        terms: Terms = (None, None, None, None),
        session: NewSession | None = None,
    ) -> NewRun:
        """Return the run that a submitted message starts, root of a tree of its own.

        With `session` the agent is one, and the conversation of the tree has the name of its key.
        """
        check_number("priority", priority)
        if retry_policy is not None:
            check_policy(retry_policy)
        run_id = run_id_of_submit(agent_id, str(message.sender), message.id)
        spawn_budget, execution_budget, retention, conversation = terms
        if session is not None:
            conversation = agent_id.key
        supervision = None
        if any(term is not None for term in (*terms, conversation)):
            supervision = Supervision(
                run_id=run_id,
                root_id=run_id,
                session_id=conversation,
                priority=priority,
                spawn_budget=spawn_budget or SpawnBudget(),
                execution_budget=execution_budget or ExecutionBudget(),
                retention=retention or HistoryRetention.RUN,
            )
            check_supervision(supervision)
        limit = execution_budget.deadline_s if execution_budget is not None else None
        return NewRun(
            run_id,
            agent_id,
            priority=priority,
            retry_policy=retry_policy,
            deadline_at=None if limit is None else self._clock.now() + timedelta(seconds=limit),
            supervision=supervision,
            trace=trace,
            session=session,
        )

    async def offer(self, run_id: RunId) -> None:
        """Offer a run that exists already to the worker: its first writer may have died before it did."""
        reading = self._worker.held.readings
        for loaded_run in await self._store.reads.load([run_id]):
            if loaded_run.row.status is RunStatus.PENDING and loaded_run.row.last_seq < 0:
                self._worker.adoption.adopt(loaded_run.row, loaded_run.messages, reading=reading)

    async def signal(
        self, run_id: RunId, name: str, payload: JsonValue, *, message_id: str | None, sender: str
    ) -> bool:
        """Buffer a signal; return False for a known id or an ended run."""
        check_name_of("name of a signal", name)
        check_name_of("id of a signal", message_id or "")
        id_ = message_id or self._entropy.token()
        outcome = await self._store.arrivals.signal(
            known_id(run_id), name, payload, message_id=id_, sender=sender
        )
        self._notify(run_id, outcome)
        return outcome.accepted

    async def decide(
        self, run_id: RunId, position: str | None, decision: JsonValue, seq: int | None
    ) -> bool:
        """Decide for a parked run, bound to what it was at when it was read here."""
        run_id = known_id(run_id)
        check_name_of("position of a decision", position or "")
        loaded_run = await self._load(run_id)
        if loaded_run.row.status.is_terminal:
            return False
        name = RETRY if position is None else f"{RESOLVE}{position}"
        about = to_decide(name, loaded_run.row, loaded_run.entries) if seq is None else seq
        if about is None:
            raise DecisionRefusedError(
                run_id, position, standing(loaded_run.row, loaded_run.entries)
            )
        outcome = await self._store.arrivals.signal(
            run_id, name, decision, message_id=decision_id(name, about), sender=OPERATOR
        )
        self._notify(run_id, outcome)
        if outcome.accepted or outcome.same:
            return outcome.accepted
        # The store refused it: the run went on since it was read, or another decision came first.
        current = await self._load(run_id)
        if current.row.status.is_terminal:
            return False
        problem = f"that of seq {about} is over, {standing(current.row, current.entries)}"
        if to_decide(name, current.row, current.entries) == about:
            problem = "it was decided otherwise already"
        raise DecisionRefusedError(run_id, position, problem)

    def _notify(self, run_id: RunId, outcome: SignalOutcome) -> None:
        if outcome.accepted and outcome.agent_id is not None:
            self._worker.intake.signalled(run_id, outcome.agent_id)

    async def _load(self, run_id: RunId) -> LoadedRun:
        loaded_runs = await self._store.reads.load([run_id])
        if not loaded_runs:
            raise UnknownRunError(run_id)
        return loaded_runs[0]
