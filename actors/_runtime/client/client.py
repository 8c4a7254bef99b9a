"""Client of a store: submit runs, send messages and signals, wait for results. It needs no served agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Literal

from actors._kernel.agent.agent import ExecutionBudget, HistoryRetention, SpawnBudget
from actors._kernel.agent.message import Message, payload_of, sender_of
from actors._kernel.basics import Clock, Entropy, check_number
from actors._kernel.json import JsonValue, check_readable
from actors._kernel.runtime.communication import FollowMode, RunStatusSummary
from actors._kernel.runtime.ids import AgentId, RunId, TopicId, check_name
from actors._kernel.runtime.log_entry import RunLogEntry
from actors._kernel.runtime.rows import CancelReport, RunRow
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors._kernel.runtime.sources import RunHandle, RunResult
from actors._kernel.stores.run_store import RunStore
from actors._kernel.stores.runs import OnConflict
from actors._kernel.stores.topics import FanoutReport, Subscription
from actors._kernel.text import check_message, check_text_of, is_name
from actors._runtime.client.live_events import LiveEvents
from actors._runtime.client.writer import Writer
from actors._runtime.replay.verdict import known_id, result_of_row, row_of, summary_of
from actors._runtime.telemetry.span_attributes import traceparent_for, with_traceparent
from actors._runtime.verbs.buffers import refuse_reserved, resolution
from actors._runtime.verbs.messaging import Topics
from actors._runtime.worker.launcher import fork_run
from actors._runtime.worker.worker import Worker
from actors.errors import ContractError, RunFailedError, RunSweptError

FIRST_POLL_S: Final = 0.5
"""Seconds for which a wait relies on a notification before it polls; twice as long each time."""
MAX_POLL_S: Final = 8.0
"""The longest pause between two polls, while another host would notify of the end."""


class Client:
    """The calls of a runtime that concern runs of all hosts.

    Args:
        store: The rows.
        worker: The worker of this host, notified at once of changes for its agents.
        topics: Follows and posts.
        live: What runs say live; hears of ends on other hosts. It is an attribute, too.
        client: The client's name, in the senders ``submit:<client>`` (runs) and ``client:<client>`` (else).
    """

    live: LiveEvents

    def __init__(
        self,
        store: RunStore,
        worker: Worker,
        topics: Topics,
        live: LiveEvents,
        *,
        client: str,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._store, self._worker, self._topics, self.live = store, worker, topics, live
        self._writer = Writer(store, worker, clock, entropy)
        self._submitter = sender_of("submit", check_name("client", client))
        self._sender = sender_of("client", client)

    async def submit(  # noqa: PLR0913 - what a run can be given from outside
        self,
        agent_id: AgentId,
        msg: Message | Any,
        *,
        priority: int = 5,
        tenant: str = "default",
        max_retries: int | None = None,
        retry_policy: RetryPolicy | None = None,
        on_conflict: OnConflict = "queue",
        spawn_budget: SpawnBudget | None = None,
        execution_budget: ExecutionBudget | None = None,
        retention: HistoryRetention | None = None,
        session_id: str | None = None,
        sender: str | None = None,
    ) -> RunId:
        """Deliver a message and queue one run for it, in one commit; return the run's id.

        Survives a crash from the moment it returns. The same message id again returns the first
        run. `tenant` has to be the agent's.

        Args:
            agent_id: The agent of the run.
            msg: A message, or JSON data to make one of.
            priority: Lower first.
            tenant: Refused when it is not the agent's.
            max_retries: Attempts after the first; `retry_policy` says more and wins.
            retry_policy: The retries after failures. If neither `max_retries` nor `retry_policy` is given,
                the `retry` of the agent that starts the run applies, else three retries.
            on_conflict: When the agent has an open run: wait behind it, join it, be rejected, or
                cancel it first.
            spawn_budget: Maximum number of runs that this run and all runs below it may spawn; 50 by default.
            execution_budget: Limits for all of these runs together; the deadline counts from now.
            retention: The treatment of children that are open when the run ends.
            session_id: The conversation that the run belongs to.
            sender: The sender, for whom order and message ids count; by default this client.

        Raises:
            RunConflictError: `on_conflict="reject"` and the agent is busy.
            ContractError: `tenant` is not the agent's, or `on_conflict` is no rule.
            MessageTooLargeError: The payload has more than 256 KiB as JSON; so for all that is sent.
        """
        _check_tenant(agent_id, tenant)
        message = msg.checked() if isinstance(msg, Message) else Message.of(agent_id, msg)
        check_message(message)
        sent_message = message.sent_by(sender or self._submitter)
        if retry_policy is None and max_retries is not None:
            check_number("max_retries", max_retries, low=0)
            retry_policy = RetryPolicy(max_retries=max_retries)
        run = self._writer.new_run(
            sent_message,
            agent_id,
            priority=priority,
            trace=traceparent_for(message),
            retry_policy=retry_policy,
            terms=(spawn_budget, execution_budget, retention, session_id),
        )
        return await self._writer.submit(run, sent_message, on_conflict)

    async def send(
        self, agent_id: AgentId, msg: Message | Any, *, sender: str | None = None
    ) -> bool:
        """Deliver a plain message: it wakes `ctx.receive`, or starts the agent's next run.

        Returns False when the message id is known from this sender.
        """
        message = msg.checked() if isinstance(msg, Message) else Message.of(agent_id, msg)
        message = with_traceparent(message.sent_by(sender or self._sender))
        check_message(message)
        arrived = await self._store.arrivals.deliver([message])
        self._worker.intake.routed(tuple(arrived))
        return bool(arrived)

    async def follow(
        self,
        follower: AgentId,
        topic_type: str,
        topic_source: str = "default",
        *,
        mode: FollowMode = "eager",
    ) -> Subscription:
        """Let an agent get what is published to a topic of its tenant from now on; durable then.

        Following again changes the mode at most. What the modes mean says `RunContext.follow`.
        """
        topic = TopicId(topic_type, topic_source, follower.tenant)
        return await self._topics.follow(follower, topic, mode)

    async def unfollow(
        self, follower: AgentId, topic_type: str, topic_source: str = "default"
    ) -> bool:
        """End a subscription; return False if the agent did not follow the topic, which is no error."""
        topic = TopicId(topic_type, topic_source, follower.tenant)
        return await self._topics.unfollow(follower, topic)

    async def publish(
        self,
        topic_type: str,
        topic_source: str,
        msg: Message | Any,
        *,
        sender: str | None = None,
        tenant: str = "default",
    ) -> FanoutReport:
        """Bring a message to every follower of this moment, once each; durable when this returns.

        The same message id of the same sender again reaches no receiver twice. No follower is no error.
        `sender` is this client by default; followers find it in the message's metadata.
        """
        topic = TopicId(topic_type, topic_source, tenant)
        return await self._topics.publish(topic, msg, sender or self._sender)

    async def signal(
        self, run_id: RunId, name: str, payload: Any = None, *, message_id: str | None = None
    ) -> bool:
        """Buffer a signal for a run and wake it; return False for a known id or an ended run.

        Raises:
            ContractError: The name begins with ``~``.
            NotSerializableError: `payload` is not JSON data.
            MessageTooLargeError: It has more than 256 KiB.
            UnknownRunError: There is no such run.
        """
        refuse_reserved(name)
        data = payload_of(payload, what=f"signal {name!r}")
        return await self._writer.signal(
            run_id, name, data, message_id=message_id, sender=self._sender
        )

    async def resolve(
        self,
        run_id: RunId,
        position: str | None = None,
        *,
        action: Literal["value", "retry", "fail"] = "retry",
        value: Any = None,
        error: str = "failed by operator",
        seq: int | None = None,
    ) -> bool:
        """Decide for a parked run, which then goes on. A decision counts for one doubt, once.

        It is bound to what the run is at when this is called: it never decides what comes later.
        Returns True when it counts; False when nothing changed: the run has ended, or exactly this
        was decided before.

        Args:
            run_id: The run.
            position: Of the effect in doubt; None starts a run anew that is parked for another
                reason, or waits for its next attempt.
            action: The effect happened and gave `value`, execute it now, or let it raise `error`.
            value: JSON data, for ``value``.
            error: Text, for ``fail``.
            seq: Of the entry that this is about, as `DecisionRefusedError` and `callboard runs show`
                name it: the effect's intent, or the last one of the log. By default that of now.

        Raises:
            DecisionRefusedError: The run is not parked at that, or it was decided otherwise.
            NotSerializableError: `value` is not JSON data.
            UnknownRunError: There is no such run.
        """
        check_text_of("error of a decision", error)
        if seq is not None:
            check_number("seq", seq)
        decision = resolution(action, value=value, error=error)
        return await self._writer.decide(run_id, position, decision, seq)

    async def cancel(self, run_id: RunId, *, reason: str = "") -> CancelReport:
        """Ask a run and its subtree to stop.

        Waiting ones end at once, executing ones at their next await.

        Raises:
            UnknownRunError: There is no such run.
        """
        check_text_of("reason of a cancel", reason)
        report = await self._store.arrivals.request_cancel(known_id(run_id), reason=reason)
        for cancelled_id, agent_id in report.runs:
            self._worker.intake.cancel(cancelled_id, agent_id, reason)
        return report

    async def result(self, run_id: RunId) -> JsonValue:
        """Wait for the run's end and return its output.

        Raises:
            UnknownRunError: There is no such run.
            RunFailedError: It failed for good or was cancelled.
            RunSweptError: It ended so long ago that its result is not kept.
        """
        row = await self.wait(run_id)
        if row.swept:
            raise RunSweptError(run_id, row.status)
        if row.status is RunStatus.COMPLETED:
            check_readable(row.result, f"the result of run {run_id}")
            return row.result
        error = row.error or {}
        message = row.cancel_requested if row.status is RunStatus.CANCELLED else None
        raise RunFailedError(run_id, row.status, str(message or error.get("message") or ""))

    async def wait(self, run_id: RunId) -> RunRow:
        """Wait for the run's end, here or on another host, and return its row.

        Raises:
            UnknownRunError: There is no such run.
        """
        # The worker notifies of the end of a run in memory here. For another run the bus does, which may lose
        # a hint, so the run's row is polled, too.
        completions, pause_s = self._worker.completions, FIRST_POLL_S
        unwatch: Callable[[], None] | None = None
        try:
            while True:
                # Before the row is read: an end between the two would be missed.
                end_future = completions.future_of(run_id)
                try:
                    if self._worker.has(run_id):
                        await end_future
                    else:
                        row = await row_of(self._store, run_id)
                        if row.status.is_terminal:
                            return row
                        if unwatch is None:
                            unwatch = self.live.watch_end(
                                row.agent_id, run_id, lambda: completions.complete(run_id, None)
                            )
                        await asyncio.wait([end_future], timeout=pause_s)
                        longer_s = min(2 * pause_s, MAX_POLL_S)
                        pause_s = longer_s if self.live.hears_ends else FIRST_POLL_S
                    if end_future.done() and (ended_row := end_future.result()) is not None:
                        return ended_row
                finally:
                    end_future.cancel()
        finally:
            if unwatch is not None:
                unwatch()

    async def join(self, run: RunHandle | RunId) -> RunResult:
        """Wait for the run's end, here or on another host, and return how it ended.

        Of a run that was swept that is its status alone.

        Raises:
            UnknownRunError: There is no such run.
        """
        return result_of_row(await self.wait(known_id(run)))

    async def redrive_run(self, run_id: RunId) -> RunId:
        """Start a failed run's work again as a new run with the same messages; return its id. Once.

        Raises:
            UnknownRunError: There is no such run.
            IllegalTransitionError: It has not failed.
            AlreadyRedrivenError: Dead letters of it were sent again already, by `dlq redrive`.
        """
        new_run = await self._store.operators.redrive_run(known_id(run_id))
        await self._writer.offer(new_run.run_id)
        return new_run.run_id

    async def fork_run(self, run_id: RunId, *, at_seq: int, copy: int = 0) -> RunId:
        """Queue a run that continues after entry `at_seq` of another run's log; return its id.

        Entries up to there are replayed, and everything later is executed again, as if the host had died
        right there; the agent's state is what it is now. The same seq and `copy` again: the same run.

        Raises:
            UnknownRunError: There is no such run.
            ContractError: Nothing can go on from there; the message says why, and where else.
        """
        check_number("at_seq", at_seq)
        check_number("copy", copy, low=0)
        fork = await fork_run(self._store, run_id, at_seq=at_seq, copy=copy)
        await self._writer.offer(fork.run_id)
        return fork.run_id

    async def handle(self, run_id: RunId) -> RunHandle:
        """Return the handle of a run, also of another process's.

        Raises:
            UnknownRunError: There is no such run.
        """
        return _handle_of(await row_of(self._store, run_id))

    async def status(self, run: RunHandle | RunId) -> RunStatusSummary:
        """Return how far a run is.

        Raises:
            UnknownRunError: There is no such run.
        """
        return await summary_of(self._store, await row_of(self._store, known_id(run)))

    async def children(self, run_id: RunId) -> list[RunHandle]:
        """Return the runs spawned by this one, in the order they were."""
        if not is_name(run_id):
            return []
        return [_handle_of(row) for row in await self._store.lists.children(run_id)]

    def entries(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """Yield the run's log from `from_seq` to its present end.

        Raises:
            UnknownRunError: No run can have this id.
        """
        run_id = known_id(run_id)
        check_number("from_seq", from_seq)
        return self._store.reads.entries(run_id, from_seq=from_seq)

    def tail(
        self, run_id: RunId, *, from_seq: int = 0, live: bool = False, whole: bool = False
    ) -> AsyncIterator[RunLogEntry]:
        """Yield the run's log, then new entries as they come; ends after the terminal one.

        A reader that comes back continues with `from_seq` = the last seq it saw + 1.

        Args:
            run_id: The run.
            from_seq: The first seq to read.
            live: Also yield ``text.delta`` and ``reasoning.delta`` of model calls, and ``custom.delta``
                of `RunContext.emit_delta`: of this process, and with NATS of all hosts. They are not
                stored and have seq -1; their payload is ``{"text", "attempt", "n"}`` and, of custom
                ones that are no text, ``data``, see `Delta`.
            whole: With `live`: the first piece of an answer that is under way is all of it so far, and
                its payload has ``whole``.

        Raises:
            UnknownRunError: No run can have this id.
        """
        run_id = known_id(run_id)
        check_number("from_seq", from_seq)
        log = self._store.reads.tail(run_id, from_seq=from_seq)
        if not live:
            return log
        return self.live.merge(run_id, log, whole=whole, after=from_seq - 1)


def _handle_of(row: RunRow) -> RunHandle:
    return RunHandle(row.run_id, row.agent_id, row.parent)


def _check_tenant(agent_id: AgentId, tenant: str) -> None:
    if tenant not in ("default", agent_id.tenant):
        text = f"agent {agent_id} belongs to tenant {agent_id.tenant!r}, not {tenant!r}"
        raise ContractError(text)
