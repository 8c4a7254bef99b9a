"""Runtime: register agents, submit messages, get results. The same on every assembly."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self

from actors.errors import ContractError, RunFailedError, UnknownRunError
from actors.kernel.agent.message import Message
from actors.kernel.json import recordable
from actors.kernel.runtime.commit import NewRun
from actors.kernel.runtime.ids import AgentId, HostIncarnation, RunId, check_name, run_id_of_submit
from actors.kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.kernel.runtime.store import Nudge
from actors.runtime.clock import SystemClock, SystemEntropy
from actors.runtime.execution import Environment
from actors.runtime.live import LiveEvents
from actors.runtime.mail import Broker, MailService
from actors.runtime.ownership import Ownership
from actors.runtime.parts import Foreign, Parts
from actors.runtime.registry import Registry
from actors.runtime.signals import RESOLVE, RETRY, refuse_reserved
from actors.runtime.tasks import TaskScope
from actors.runtime.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

    from actors.kernel.agent.agent import Agent
    from actors.kernel.clock import Clock, Entropy
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import CancelReport, HostReport, RunRow
    from actors.kernel.runtime.effects import Journal, ResultCache
    from actors.kernel.runtime.fanout import FanoutStrategy
    from actors.kernel.runtime.follow_graph import FollowGraph
    from actors.kernel.runtime.inbox import Inbox
    from actors.kernel.runtime.log_entry import EventLog, RunLogEntry
    from actors.kernel.runtime.scheduler import Scheduler
    from actors.kernel.runtime.store import OnConflict, RunStore
    from actors.kernel.runtime.wakeup import SignalBus


class Runtime:
    """One host's runtime: a store, the agents served here, and the worker that runs them.

    `Runtime()` needs nothing but Python and forgets everything with its process. A durable one comes
    from `compose.build_postgres_runtime` or `compose.build_local_runtime`; agents and calls are the
    same.

    Args:
        event_log: With the next six: foreign parts, each used for what it is for. A commit is then
            ordered calls on them, and a crash between two of those is not covered (`ComposedStore`).
        inbox: See `event_log`.
        journal: See `event_log`.
        scheduler: See `event_log`.
        signal_bus: See `event_log`.
        follow_graph: Who follows what.
        fanout: How posts reach followers.
        store: Where rows live, instead of parts; in memory by default.
        suspend_after: Seconds a run waits in memory before it becomes rows only; 0 = at once.
        capacity: How many runs are in memory at once.
        owner: This incarnation's name; a fresh one by default.
        client: Who submits, for order and dedup (`submit:<client>`).
        heartbeat_s: Seconds between heartbeats, where the store's leases expire.
        serve: False makes a client: it submits and asks, and executes nothing.
        may_act: Asked before every effect; False near the end of a lease that was not renewed.
        broker: How mail travels between hosts; without it the sender's commit writes the
            receiver's row.
        results: Where results of model calls and at-most-once effects outlive a crash that keeps
            them from the log; a hint, never needed.
    """

    def __init__(  # noqa: PLR0913 - every part can be handed in
        self,
        *,
        event_log: EventLog | None = None,
        inbox: Inbox | None = None,
        journal: Journal | None = None,
        scheduler: Scheduler | None = None,
        signal_bus: SignalBus | None = None,
        follow_graph: FollowGraph | None = None,
        fanout: FanoutStrategy | None = None,
        store: RunStore | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        suspend_after: float = 5.0,
        capacity: int = 1000,
        owner: HostIncarnation | None = None,
        client: str = "local",
        heartbeat_s: float | None = None,
        serve: bool = True,
        may_act: Callable[[], bool] = lambda: True,
        broker: Broker | None = None,
        results: ResultCache | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        foreign = Foreign(
            event_log=event_log, inbox=inbox, journal=journal, scheduler=scheduler,
            signal_bus=signal_bus, follow_graph=follow_graph, fanout=fanout,
        )  # fmt: skip
        self._store = foreign.store(store, self._clock)
        self._client = check_name("client", client)
        self._serve = serve
        self._registry = Registry()
        self._live = LiveEvents(self._clock)
        env = Environment(
            store=self._store, clock=self._clock, entropy=self._entropy,
            suspend_after=suspend_after, mail_of=self._mail_of, on_routed=self._on_routed,
            on_delta=self._live.publish, may_act=may_act, results=results,
        )  # fmt: skip
        self._worker = Worker(env, self._registry, capacity=capacity)
        self._ownership = Ownership(
            self._store, owner or HostIncarnation(self._entropy.token()), self._registry,
            self._worker, heartbeat_s=heartbeat_s,
        )  # fmt: skip
        self._mail: MailService | None = None
        if broker is not None and serve:
            self._mail = MailService(
                broker, self._store, self._worker, may_act=may_act, on_nudge=self._ownership.follow
            )
            self._ownership.on_shards = self._mail.follow_shards
        self._parts = Parts(
            self._store, foreign, clock=self._clock, entropy=self._entropy, worker=self._worker
        )
        self._parts.inbox.set_deliver_hook(self._on_inbox_deliver)
        self._tasks = TaskScope()
        self._started = False

    def _on_inbox_deliver(self, agent_id: AgentId) -> None:
        self._ownership.follow(Nudge("mail", agent_id))

    def _mail_of(self, agent_id: AgentId) -> Any:
        return self._worker.mail_of(agent_id)

    def _on_routed(self, arrived: Any) -> None:
        (self._worker if self._mail is None else self._mail).routed(arrived)

    # --- parts ----------------------------------------------------------------------------------

    @property
    def store(self) -> RunStore:
        """The rows."""
        return self._store

    @property
    def event_log(self) -> EventLog:
        """The logs: the injected one, or a view of the store; so with the six below."""
        return self._parts.event_log

    @property
    def inbox(self) -> Inbox:
        """The mailboxes. A delivery with `notify` wakes or starts a run like `send`."""
        return self._parts.inbox

    @property
    def journal(self) -> Journal:
        """Results by effect id."""
        return self._parts.journal

    @property
    def scheduler(self) -> Scheduler:
        """Runs, their status and leases."""
        return self._parts.scheduler

    @property
    def signal_bus(self) -> SignalBus:
        """Signals and timers."""
        return self._parts.signal_bus

    @property
    def follow_graph(self) -> FollowGraph:
        """Who follows what."""
        return self._parts.follow_graph

    @property
    def fanout(self) -> FanoutStrategy:
        """How posts reach followers."""
        return self._parts.fanout

    @property
    def owner(self) -> HostIncarnation:
        """This incarnation's name."""
        return self._ownership.owner

    @property
    def mail(self) -> MailService | None:
        """How mail travels between hosts; None without a broker."""
        return self._mail

    @property
    def worker(self) -> Worker:
        """The run loop."""
        return self._worker

    def on_report(self, report: HostReport) -> None:
        """For a heartbeat outside the event loop: what it said."""
        self._ownership.on_report(report)

    # --- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Claim shards and execute what is in them. Starting twice does nothing."""
        if self._started:
            return
        self._started = True
        if self._serve:
            await self._ownership.start(self._tasks)
        if self._mail is not None:
            self._tasks.start(self._mail.run(), name="mail")

    async def stop(self, *, drain_s: float = 0.0) -> None:
        """End all executions without losing anything, give the shards up, end all tasks.

        Nothing new is started at once; what executes has `drain_s` seconds to end or suspend.
        """
        if not self._started:
            return
        self._started = False
        if self._serve and drain_s > 0:
            await self._ownership.leave()
        await self._worker.stop(drain_s=drain_s)
        await self._tasks.close()
        if self._serve:
            await self._ownership.stop()

    def crash(self) -> None:
        """Forget everything at once without writing anything. For tests of what survives."""
        self._started = False
        self._store.set_nudge_hook(None)
        self._tasks.cancel()
        self._worker.abandon()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    # --- agents ---------------------------------------------------------------------------------

    async def register(self, agent: Agent) -> None:
        """Serve one agent. The same id again replaces it for executions that begin afterwards.

        Raises:
            RegistrationError: Not an agent, or its type is served with `register_type`.
        """
        self._registry.add(agent)
        await self._changed()

    async def register_type(self, type_: str, factory: Callable[[AgentId], Agent]) -> None:
        """Serve every key of a type; `factory(agent_id)` makes the agent for each execution.

        Raises:
            RegistrationError: Single agents of the type are registered.
        """
        self._registry.add_type(type_, factory)
        await self._changed()

    async def claim(self) -> None:
        """Look at once for shards that nobody owns any more; for those who saw a host die."""
        await self._changed()

    async def _changed(self) -> None:
        if self._started:
            await self._ownership.claim()

    # --- work -----------------------------------------------------------------------------------

    async def submit(
        self,
        agent_id: AgentId,
        msg: Message | Any,
        *,
        priority: int = 5,
        tenant: str = "default",
        max_retries: int = 3,
        retry_policy: RetryPolicy | None = None,
        on_conflict: OnConflict = "queue",
    ) -> RunId:
        """Deliver a message and queue one run for it, in one commit; return the run's id.

        Survives a crash from the moment it returns. The same message id again returns the first
        run. `tenant` has to be the agent's.

        Args:
            agent_id: Whose run it is.
            msg: A message, or JSON data to make one of.
            priority: Lower first.
            tenant: Refused when it is not the agent's.
            max_retries: Attempts after the first; `retry_policy` says more and wins.
            retry_policy: How failures are retried.
            on_conflict: When the agent has an open run: wait behind it, join it, be rejected, or
                cancel it first.

        Raises:
            RunConflictError: `on_conflict="reject"` and the agent is busy.
            ContractError: `tenant` is not the agent's.
        """
        if tenant not in ("default", agent_id.tenant):
            text = f"agent {agent_id} belongs to tenant {agent_id.tenant!r}, not {tenant!r}"
            raise ContractError(text)
        message = msg if isinstance(msg, Message) else Message.of(agent_id, msg)
        sender = f"submit:{self._client}"
        run = NewRun(
            run_id_of_submit(agent_id, sender, message.id), agent_id, priority=priority,
            retry_policy=retry_policy or RetryPolicy(max_retries=max_retries),
        )  # fmt: skip
        done = await self._store.submit(run, message.sent_by(sender), on_conflict=on_conflict)
        if done.arrived is None:
            await self._offer_known(done.run_id)
        else:
            is_new = done.run_id == run.run_id
            self._worker.offer(done.arrived, new_run=run if is_new else None)
            if on_conflict == "interrupt":
                await self._tell_interrupted(agent_id)
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

    async def send(
        self, agent_id: AgentId, msg: Message | Any, *, sender: str | None = None
    ) -> bool:
        """Deliver plain mail: it wakes `ctx.receive`, or starts the agent's next run.

        Returns False when the message id is known from this sender.
        """
        message = msg if isinstance(msg, Message) else Message.of(agent_id, msg)
        message = message.sent_by(sender or f"client:{self._client}")
        arrived = await self._store.deliver([message])
        self._worker.routed(tuple(arrived))
        return bool(arrived)

    async def signal(
        self, run_id: RunId, name: str, payload: Any = None, *, message_id: str | None = None
    ) -> bool:
        """Buffer a signal for a run and wake it; False for a known id or an ended run.

        Raises:
            ContractError: The name begins with ``~``.
            NotSerializableError: `payload` is not JSON data.
            UnknownRunError: There is no such run.
        """
        refuse_reserved(name)
        clean = recordable(payload, where=f"signal {name!r}")
        return await self._signal(run_id, name, clean, message_id)

    async def resolve(
        self,
        run_id: RunId,
        position: str | None = None,
        *,
        action: Literal["value", "retry", "fail"] = "retry",
        value: Any = None,
        error: str = "failed by operator",
    ) -> bool:
        """Decide for a parked run, which then goes on; False when it has ended.

        Args:
            run_id: The run.
            position: Of the effect in doubt; None starts a run anew that is parked for another
                reason.
            action: The effect happened and gave `value`, execute it now, or let it raise `error`.
            value: JSON data, for ``value``.
            error: Text, for ``fail``.

        Raises:
            NotSerializableError: `value` is not JSON data.
            UnknownRunError: There is no such run.
        """
        decision: dict[str, JsonValue] = {"action": action}
        if action == "value":
            decision["value"] = recordable(value, where=f"value for {position}")
        elif action == "fail":
            decision["error"] = error
        name = RETRY if position is None else f"{RESOLVE}{position}"
        return await self._signal(run_id, name, decision, None)

    async def _signal(
        self, run_id: RunId, name: str, payload: JsonValue, message_id: str | None
    ) -> bool:
        outcome = await self._store.signal(
            run_id, name, payload, message_id=message_id or self._entropy.token(),
            sender=f"client:{self._client}",
        )  # fmt: skip
        if outcome.accepted and outcome.agent_id is not None:
            self._worker.signalled(run_id, outcome.agent_id)
        return outcome.accepted

    async def cancel(self, run_id: RunId, *, reason: str = "") -> CancelReport:
        """Ask a run and its subtree to stop.

        Waiting ones end at once, executing ones at their next await.

        Raises:
            UnknownRunError: There is no such run.
        """
        report = await self._store.request_cancel(run_id, reason=reason)
        for cancelled, agent_id in report.runs:
            self._worker.cancel(cancelled, agent_id, reason)
        return report

    async def result(self, run_id: RunId) -> JsonValue:
        """Wait for the run's end and return its output.

        Raises:
            UnknownRunError: There is no such run.
            RunFailedError: It failed for good or was cancelled.
        """
        row = await self.wait(run_id)
        if row.status is RunStatus.COMPLETED:
            return row.result
        error = row.error or {}
        message = row.cancel_requested if row.status is RunStatus.CANCELLED else None
        raise RunFailedError(run_id, row.status, str(message or error.get("message") or ""))

    async def wait(self, run_id: RunId) -> RunRow:
        """Wait for the run's end, here or on another host, and return its row.

        Raises:
            UnknownRunError: There is no such run.
        """
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

    # --- reading --------------------------------------------------------------------------------

    def entries(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """Yield the run's log from `from_seq` to its present end."""
        return self._store.entries(run_id, from_seq=from_seq)

    def tail(
        self, run_id: RunId, *, from_seq: int = 0, live: bool = False
    ) -> AsyncIterator[RunLogEntry]:
        """Yield the run's log, then new entries as they come; ends after the terminal one.

        A reader that comes back goes on with `from_seq` one behind the last seq it saw.

        Args:
            run_id: The run.
            from_seq: Where to begin, inclusive.
            live: Also yield ``text.delta`` and ``reasoning.delta`` of model calls that execute in
                this process; they are not stored and have seq -1.
        """
        log = self._store.tail(run_id, from_seq=from_seq)
        return self._live.merge(run_id, log) if live else log
