"""Runtime: register agents, submit messages, get results. The same on every assembly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from actors.kernel.agent.message import Message, sender_of
from actors.kernel.json import recordable
from actors.kernel.runtime.ids import AgentId, HostIncarnation, RunId, TopicId
from actors.kernel.runtime.scheduler import RetryPolicy
from actors.kernel.runtime.shards import TOPICS
from actors.kernel.runtime.store import Nudge
from actors.runtime.approvals import Approvals
from actors.runtime.backends import SupervisorView
from actors.runtime.clock import SystemClock, SystemEntropy
from actors.runtime.desk import Desk, own_tenant, run_id_of
from actors.runtime.environment import Environment
from actors.runtime.firing import ScheduleService
from actors.runtime.following import ForeignTopics
from actors.runtime.limiting import Limiting, Limits
from actors.runtime.live import LiveEvents
from actors.runtime.mail import Broker, MailService
from actors.runtime.ownership import Ownership
from actors.runtime.parts import Foreign, Parts
from actors.runtime.postman import Postman
from actors.runtime.registry import Registry
from actors.runtime.schedules import Schedules
from actors.runtime.signals import RESOLVE, RETRY, refuse_reserved
from actors.runtime.tasks import TaskScope
from actors.runtime.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from types import TracebackType

    from actors.kernel.agent.agent import Agent
    from actors.kernel.agent.supervision import ExecutionBudget, HistoryRetention, SpawnBudget
    from actors.kernel.clock import Clock, Entropy
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import CancelReport, HostReport, RunRow, Spawned
    from actors.kernel.runtime.communication import RunStatusSummary
    from actors.kernel.runtime.effects import Journal, ResultCache
    from actors.kernel.runtime.fanout import FanoutReport, FanoutStrategy
    from actors.kernel.runtime.follow_graph import FollowGraph, FollowMode, Subscription
    from actors.kernel.runtime.ids import ShardId
    from actors.kernel.runtime.inbox import Inbox
    from actors.kernel.runtime.log_entry import EventLog, RunLogEntry
    from actors.kernel.runtime.scheduler import Scheduler
    from actors.kernel.runtime.store import OnConflict, RunStore
    from actors.kernel.runtime.supervisor import RunHandle, RunResult, Supervisor
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
        self._serve = serve
        self._registry = Registry()
        self._live = LiveEvents(self._clock)
        env = Environment(
            store=self._store, agents=self._registry, clock=self._clock, entropy=self._entropy,
            suspend_after=suspend_after, mail_of=self._mail_of, on_routed=self._on_routed,
            on_delta=self._live.publish, may_act=may_act, results=results,
            foreign_topics=(foreign_topics := ForeignTopics()),
            on_nudges=self._on_nudges, on_spawned=self._on_spawned, on_cancel=self._on_cancel,
        )  # fmt: skip
        self._worker = Worker(env, capacity=capacity)
        self._ownership = Ownership(
            self._store, owner or HostIncarnation(self._entropy.token()), self._registry,
            self._worker, heartbeat_s=heartbeat_s,
        )  # fmt: skip
        self._mail: MailService | None = None
        if broker is not None and serve:
            self._mail = MailService(
                broker, self._store, self._worker, may_act=may_act, on_nudge=self._ownership.follow
            )
            self._ownership.also_serves = (TOPICS,)
        self._parts = Parts(
            self._store, foreign, clock=self._clock, entropy=self._entropy, worker=self._worker,
            on_nudge=self._ownership.follow,
        )  # fmt: skip
        foreign_topics.use(self._parts.topics)
        self._sender = sender_of("client", client)
        self._wire_services()
        self._parts.inbox.set_deliver_hook(self._on_inbox_deliver)
        self._desk = Desk(
            self._store, self._worker, client=client, clock=self._clock, entropy=self._entropy
        )
        self._supervisor = SupervisorView(
            self._store, lease_of=self._worker.lease_of, follow=self._ownership.follow
        )
        self._tasks = TaskScope()
        self._started = False

    def _wire_services(self) -> None:
        """Make what runs beside the worker: schedules, limits, posts; each hears of its own hints."""
        self._firing = ScheduleService(self._store, self._worker, self._clock)
        self._ownership.on_schedule = self._firing.poke
        self._ownership.on_shards = self._on_shards
        self._limiting = Limiting(
            self._store.limits, self._ownership.owner, self._worker.admission,
            on_admitted=self._worker.start_ready,
        )  # fmt: skip
        self._ownership.on_limits = self._limiting.follow
        self._limits = Limits(self._store.limits, on_change=self._limiting.read_now)
        self._postman = Postman(self._store.posts, self._worker)
        self._ownership.on_fanout = self._on_fanout

    def _on_shards(self) -> None:
        self._firing.poke()
        self._postman.look_again()
        if self._mail is not None:
            self._mail.follow_shards()

    def _on_fanout(self, shard: ShardId) -> None:
        self._postman.look(shard)
        if self._mail is not None:
            self._mail.look_for_posts()

    def _on_inbox_deliver(self, agent_id: AgentId) -> None:
        self._ownership.follow(Nudge("mail", agent_id))

    def _mail_of(self, agent_id: AgentId) -> Any:
        return self._worker.mail_of(agent_id)

    def _on_nudges(self, nudges: Sequence[Nudge]) -> None:
        for nudge in nudges:
            self._ownership.follow(nudge)

    def _on_spawned(self, children: Sequence[tuple[Spawned, int]]) -> None:
        self._worker.spawned(children)

    def _on_cancel(self, run_id: RunId, agent_id: AgentId, reason: str) -> None:
        self._worker.cancel(run_id, agent_id, reason)

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
    def approvals(self) -> Approvals:
        """What waits for a person's decision."""
        return Approvals(self._store, on_answer=self._worker.signalled)

    @property
    def limits(self) -> Limits:
        """How many runs execute at once and start per second, over all hosts."""
        return self._limits

    @property
    def supervisor(self) -> Supervisor:
        """The tree of runs, from outside of them."""
        return self._supervisor

    @property
    def schedules(self) -> Schedules:
        """Messages that come to agents by themselves: at an instant, or by a cron expression."""
        return Schedules(
            self._store, self._entropy, on_change=self._firing.poke,
            on_arrived=self._worker.routed,
        )  # fmt: skip

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
            await self._limiting.start()
            await self._ownership.start(self._tasks)
            self._tasks.start(self._limiting.run(), name="limits")
            self._tasks.start(self._firing.run(), name="schedules")
            self._tasks.start(self._postman.run(), name="posts")
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
            await self._limiting.stop()
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

    async def submit(  # noqa: PLR0913 - what a run can be given from outside
        self,
        agent_id: AgentId,
        msg: Message | Any,
        *,
        priority: int = 5,
        tenant: str = "default",
        max_retries: int = 3,
        retry_policy: RetryPolicy | None = None,
        on_conflict: OnConflict = "queue",
        spawn_budget: SpawnBudget | None = None,
        execution_budget: ExecutionBudget | None = None,
        retention: HistoryRetention | None = None,
        session_id: str | None = None,
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
            spawn_budget: How many runs may be spawned, by this one and all below; 50 by default.
            execution_budget: What they all may spend; its deadline counts from now.
            retention: What becomes of children that are open when the run ends.
            session_id: Of the conversation it belongs to.

        Raises:
            RunConflictError: `on_conflict="reject"` and the agent is busy.
            ContractError: `tenant` is not the agent's.
        """
        own_tenant(agent_id, tenant)
        message = msg if isinstance(msg, Message) else Message.of(agent_id, msg)
        run = self._desk.new_run(
            message, agent_id, priority=priority,
            retry_policy=retry_policy or RetryPolicy(max_retries=max_retries),
            terms=(spawn_budget, execution_budget, retention, session_id),
        )  # fmt: skip
        return await self._desk.submit(run, message, on_conflict)

    async def send(
        self, agent_id: AgentId, msg: Message | Any, *, sender: str | None = None
    ) -> bool:
        """Deliver plain mail: it wakes `ctx.receive`, or starts the agent's next run.

        Returns False when the message id is known from this sender.
        """
        return await self._desk.send(agent_id, msg, sender)

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
        return await self._parts.topics.follow(follower, topic, mode)

    async def unfollow(
        self, follower: AgentId, topic_type: str, topic_source: str = "default"
    ) -> bool:
        """End that; False when the agent did not follow the topic, which is no error."""
        topic = TopicId(topic_type, topic_source, follower.tenant)
        return await self._parts.topics.unfollow(follower, topic)

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

        The same message id of the same sender again reaches nobody twice. No follower is no error.
        `sender` is this client by default; followers find it in the message's metadata.
        """
        topic = TopicId(topic_type, topic_source, tenant)
        return await self._parts.topics.publish(topic, msg, sender or self._sender)

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
        return await self._desk.signal(run_id, name, clean, message_id)

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
        return await self._desk.signal(run_id, name, decision, None)

    async def cancel(self, run_id: RunId, *, reason: str = "") -> CancelReport:
        """Ask a run and its subtree to stop.

        Waiting ones end at once, executing ones at their next await.

        Raises:
            UnknownRunError: There is no such run.
        """
        return await self._desk.cancel(run_id, reason)

    async def result(self, run_id: RunId) -> JsonValue:
        """Wait for the run's end and return its output.

        Raises:
            UnknownRunError: There is no such run.
            RunFailedError: It failed for good or was cancelled.
            RunSweptError: It ended so long ago that its result is not kept.
        """
        return await self._desk.result(run_id)

    async def wait(self, run_id: RunId) -> RunRow:
        """Wait for the run's end, here or on another host, and return its row.

        Raises:
            UnknownRunError: There is no such run.
        """
        return await self._desk.wait(run_id)

    async def join(self, run: RunHandle | RunId) -> RunResult:
        """Wait for the run's end, here or on another host, and return how it ended.

        Of a run that was swept that is its status alone.

        Raises:
            UnknownRunError: There is no such run.
        """
        return await self._desk.join(run_id_of(run))

    async def redrive_run(self, run_id: RunId) -> RunId:
        """Start a failed run's work again as a new run with the same messages; return its id. Once.

        Raises:
            UnknownRunError: There is no such run.
            IllegalTransitionError: It has not failed.
        """
        return await self._desk.redrive_run(run_id)

    # --- reading --------------------------------------------------------------------------------

    async def handle(self, run_id: RunId) -> RunHandle:
        """Return the handle of a run, also of another process's.

        Raises:
            UnknownRunError: There is no such run.
        """
        return await self._desk.handle(run_id)

    async def status(self, run: RunHandle | RunId) -> RunStatusSummary:
        """Return how far a run is.

        Raises:
            UnknownRunError: There is no such run.
        """
        return await self._desk.status(run_id_of(run))

    async def children(self, run_id: RunId) -> list[RunHandle]:
        """Return the runs spawned by this one, in the order they were."""
        return await self._desk.children(run_id)

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
