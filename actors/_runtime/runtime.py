"""Runtime: register agents, submit messages, get results. The same on every assembly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from functools import cached_property, partial
from typing import TYPE_CHECKING, Self

from actors._context.history import StoreHistory
from actors._kernel.agent.agent import Agent
from actors._kernel.basics import Clock, Entropy, check_number, check_s
from actors._kernel.hidden import HiddenNames
from actors._kernel.runtime.effects import Journal, ResultCache
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import DEFAULT_TENANT, AgentId, HostIncarnation
from actors._kernel.runtime.log_entry import EventLog
from actors._kernel.runtime.scheduler import Scheduler
from actors._kernel.runtime.sources import Inbox, Supervisor
from actors._kernel.runtime.waits import SignalBus
from actors._kernel.stores.administration import EACH, UsageBy, UsageFilter, UsageTotal
from actors._kernel.stores.limits import MAX_SLOTS
from actors._kernel.stores.outside import Front
from actors._kernel.stores.run_store import RunStore
from actors._kernel.stores.topics import FanoutStrategy, FollowGraph
from actors._runtime.client.approvals import Approvals
from actors._runtime.client.client import Client
from actors._runtime.client.gateway_api import RuntimeFront
from actors._runtime.client.live_events import LiveEvents
from actors._runtime.delivery.mail_service import Broker
from actors._runtime.host_parts import HostParts
from actors._runtime.loop.clock import SystemClock, SystemEntropy
from actors._runtime.loop.timers import IDLE_PER_SLOT, IdleRuns
from actors._runtime.parts.assembly import Foreign, Parts
from actors._runtime.parts.supervisor import SupervisorView
from actors._runtime.registry import Registry
from actors._runtime.schedules.api import Schedules
from actors._runtime.sharding.limit_sync import Limits
from actors._runtime.telemetry.counters import Counters
from actors._runtime.telemetry.spans import Tracing
from actors._runtime.verbs.conversation.windows import WindowReport, window_report
from actors._runtime.verbs.host_services import HostServices
from actors._runtime.verbs.messaging import ForeignTopics
from actors.errors import ContractError

if TYPE_CHECKING:
    from actors._kernel.stores.administration import Erasable, EraseProgress, EraseReport
    from actors._kernel.stores.memory import LongTermMemory


class Runtime(Client):
    """A host's runtime: a client, the agents served here, and the worker that runs them.

    `Runtime()` needs nothing but Python, and its state ends with its process. `compose.build_postgres_runtime`
    and `compose.build_local_runtime` make durable ones, for the same agents and calls.

    Args:
        event_log: A part of another system that replaces the store's own, as the next six arguments do. A
            commit is then a sequence of calls on these parts. It is not atomic if the process dies between
            two of the calls (`ComposedStore`).
        inbox: See `event_log`.
        journal: See `event_log`.
        scheduler: See `event_log`.
        signal_bus: See `event_log`.
        follow_graph: The subscriptions of agents to topics.
        fanout: The strategy that delivers posts to followers.
        store: The store of the rows, instead of parts; in memory by default.
        suspend_after: Seconds a run waits in memory before it becomes rows only; 0 = at once.
        capacity: Maximum number of runs that execute at once. Twice as many may wait in memory beside them.
        owner: This incarnation's name; a fresh one by default.
        client: Name of the client that submits, for order and dedup (`submit:<client>`).
        heartbeat_s: Seconds between heartbeats, where the store's leases expire.
        serve: False makes a client: it submits and asks, and executes nothing.
        may_act: Function that is asked before every effect; False near the end of a lease that was not renewed.
        broker: The transport of messages between hosts; without it the sender's commit writes the
            receiver's row.
        results: Where results of model calls and at-most-once effects outlive a crash that keeps
            them from the log; a hint, never needed.
        tracing: Makes spans; by default there are some where OpenTelemetry is set up in this process.
        hidden_names: What events of sessions do not show.

    Raises:
        ContractError: A number is out of its range.
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
        tracing: Tracing | None = None,
        hidden_names: HiddenNames | None = None,
    ) -> None:
        suspend_after = check_s("suspend_after", suspend_after)
        check_number("capacity", capacity, low=1, high=MAX_SLOTS)
        if heartbeat_s is not None and check_s("heartbeat_s", heartbeat_s) == 0:
            raise ContractError(f"heartbeat_s is {heartbeat_s}: give seconds above 0")
        clock, entropy = clock or SystemClock(), entropy or SystemEntropy()
        foreign = Foreign(event_log, inbox, journal, scheduler, signal_bus, follow_graph, fanout)
        store = foreign.store(store, clock)
        live = LiveEvents(clock, store)
        self._clock, self._entropy, self._registry = clock, entropy, Registry()
        self.hidden_names: HiddenNames = hidden_names or HiddenNames()
        env = HostServices(
            store=store,
            agents=self._registry,
            clock=clock,
            entropy=entropy,
            suspend_after=suspend_after,
            may_act=may_act,
            foreign_topics=ForeignTopics(),
            on_delta=live.publish,
            on_said=live.open_answers.close,
            on_end=live.announce_end,
            results=results,
            tracing=tracing or Tracing.configured(),
            counters=Counters.of(store),
            idle=IdleRuns(IDLE_PER_SLOT * capacity),
        )
        owner = owner or HostIncarnation(entropy.token())
        self._host = HostParts(
            env, live, owner, capacity=capacity, heartbeat_s=heartbeat_s, serve=serve, broker=broker
        )
        worker, publish = self._host.worker, self._host.notifications.publish
        self._parts = Parts(
            store, foreign, clock=clock, entropy=entropy, worker=worker, on_nudge=publish
        )
        env.foreign_topics.use(self._parts.topics)
        self._parts.inbox.set_deliver_hook(lambda agent_id: publish(Nudge("mail", agent_id)))
        self._supervisor = SupervisorView(store, lease_of=worker.lease_of, follow=publish)
        super().__init__(
            store, worker, self._parts.topics, live, client=client, clock=clock, entropy=entropy
        )

    @property
    def store(self) -> RunStore:
        """The rows."""
        return self._store

    @property
    def clock(self) -> Clock:
        """The runtime's source of time."""
        return self._clock

    @property
    def event_log(self) -> EventLog:
        """The injected event log, or a view of the store. The next six properties do the same."""
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
        """The subscriptions of agents to topics."""
        return self._parts.follow_graph

    @property
    def fanout(self) -> FanoutStrategy:
        """The strategy that delivers posts to followers."""
        return self._parts.fanout

    @property
    def approvals(self) -> Approvals:
        """The API of pending approvals."""
        return Approvals(self._store, on_answer=self._host.worker.intake.signalled)

    @property
    def limits(self) -> Limits:
        """The API of limits: runs that execute at once and starts per second, over all hosts."""
        return Limits(self._store.limits, on_change=self._host.limiting.read_now)

    @property
    def supervisor(self) -> Supervisor:
        """Trees of runs, as a program outside of them reads and changes them."""
        return self._supervisor

    @property
    def schedules(self) -> Schedules:
        """Schedules: messages that the runtime sends to agents at an instant or by a cron expression."""
        return Schedules(
            self._store,
            self._entropy,
            on_change=partial(self._host.notifications.publish, Nudge("schedule")),
            on_arrived=self._host.worker.intake.routed,
        )

    @property
    def history(self) -> StoreHistory:
        """Turns of conversations in the runtime's store, as a `HistoryProvider`.

        Agents whose context has a provider of its own are read there.
        """
        return StoreHistory(self._store.data.transcripts)

    def memory(self, tenant: str = DEFAULT_TENANT) -> LongTermMemory:
        """Return the long-term memory of a tenant, for programs beside its agents.

        An agent's own memories are about ``agent:`` and its id, its blocks about ``blocks:agent:`` and its id.
        Here nothing is recorded and no text is embedded: give `put` an embedding, or have words only.
        """
        return self._store.data.memories.of(tenant)

    async def window(self, agent: AgentId, session: str | None = None) -> WindowReport:
        """Return the window that a call of the agent's model would be sent now, before a new turn.

        The window is made of the stored turns, as by `ctx.generate`. No model is called and nothing is
        written: a strategy that needs a model leaves the window unchanged and sets `CompactionStep.would_ask`.
        Strategies that read a store, such as `RecallStrategy`, do read it.

        Args:
            agent: An agent that is registered in this process.
            session: The session; by default the agent's attribute `session`.

        Raises:
            ContractError: The agent is not registered here, or no session is given and it has none.
        """
        served_agent = self._registry.find(agent)
        if served_agent is None:
            remedy = "register it, or ask a process that does; its code makes its windows"
            raise ContractError(f"{agent} is not registered in this process: {remedy}")
        return await window_report(served_agent, self._store, session)

    async def usage(
        self,
        *,
        tenant: str | None = None,
        type_: str | None = None,
        agent: AgentId | None = None,
        model: str | None = None,
        since: date | None = None,
        until: date | None = None,
        by: Sequence[UsageBy] = EACH,
    ) -> list[UsageTotal]:
        """Return what recorded answers of models used and cost, also those of logs that were swept.

        Args:
            tenant: Only answers of this tenant. This and the next five select answers; by default all.
            type_: The agent's.
            agent: The agent whose runs' logs these are.
            model: The name of the agent's client, as logs have it.
            since: From this day on, in UTC.
            until: Up to this day, which is included.
            by: A sum for each value of these; the other columns are None. Without any there is one sum.
        """
        usage_filter = UsageFilter(
            tenant=tenant, type_=type_, agent_id=agent, model=model, since=since, until=until
        )
        return await self._store.data.usage.totals(usage_filter, by=by)

    async def erase(  # noqa: PLR0913 - the parts of a request, and how it is done
        self,
        *,
        tenant: str,
        agent: AgentId | None = None,
        session: str | None = None,
        about: str | None = None,
        cancel: bool = False,
        dry_run: bool = False,
        also: Sequence[Erasable] = (),
        wait_s: float = 30.0,
        on_progress: EraseProgress | None = None,
    ) -> EraseReport:
        """Remove what the deployment keeps of a tenant, an agent, a session or a subject.

        In batches, each durable when it is done. An erase that dies half-way is called again: it finds what is
        left. What is written meanwhile may stay. Totals of usage stay. Other tenants are never touched.

        Args:
            tenant: The owner. Alone: everything of the tenant.
            agent: Everything of this agent.
            session: With `agent`: only this conversation, its boards, and the ended runs that wrote it.
            about: Alone: memories, documents and entities of this subject.
            cancel: Cancel open runs first, and what waits for their agents; by default they are refused.
            dry_run: Remove nothing; the counts say what would go.
            also: Stores that the runtime does not know, such as a `RedisHistoryProvider`.
            wait_s: Seconds until cancelled runs must have ended.
            on_progress: Called after each batch with the number of rows so far.

        Raises:
            ContractError: The combination means nothing.
            OpenRunsError: Runs are open; it names up to 10. With `cancel`: they are, still, after `wait_s`.
            PersistenceError: A store could not be asked; what was removed stays removed.
        """
        from actors._inmemory.boards import GlobalTaskStore  # noqa: PLC0415
        from actors._kernel.stores.administration import EraseRequest  # noqa: PLC0415 - hosts never erase
        from actors._runtime.sharding.retention import Erasing  # noqa: PLC0415

        erasing = Erasing(
            self._store,
            EraseRequest(tenant=tenant, agent=agent, session=session, about=about),
            also=(*GlobalTaskStore.erasable(), *also),
            cancel=partial(self.cancel, reason="its data is erased") if cancel else None,
            wait_s=check_s("wait_s", wait_s),
            on_progress=on_progress,
        )
        now = self._clock.now()
        return await (erasing.preview(now) if dry_run else erasing.run(now))

    @property
    def owner(self) -> HostIncarnation:
        """This incarnation's name."""
        return self._host.ownership.owner

    @property
    def meters(self) -> Counters:
        """The counters of this host."""
        return self._host.worker.env.counters

    @property
    def serves(self) -> tuple[str, ...]:
        """Types, and single agents as text, that are registered here."""
        serves = self._registry.serves()
        return (*serves.types, *map(str, serves.agents))

    @cached_property
    def front(self) -> Front:
        """The API of external clients, each for its own tenant."""
        return RuntimeFront(
            self._store, self, self._writer, registry=self._registry, live=self.live
        )

    async def start(self) -> None:
        """Claim shards and execute what is in them. Starting twice does nothing.

        Raises:
            PersistenceError: The store cannot be reached; starting may be tried again.
        """
        await self._host.start()

    async def stop(self, *, drain_s: float = 0.0) -> None:
        """End all executions without losing anything, give the shards up, end all tasks.

        Nothing new is started at once; what executes has `drain_s` seconds to end or suspend.
        """
        await self._host.stop(drain_s=check_s("drain_s", drain_s))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.stop()

    async def register(self, agent: Agent) -> None:
        """Serve one agent. The same id again replaces it for executions that begin afterwards.

        Raises:
            RegistrationError: Not an agent, or its type is served with `register_type`.
        """
        self._registry.add(agent)
        self._host.prepare_models([agent])
        await self._host.claim()

    async def register_type(self, type_: str, factory: Callable[[AgentId], Agent]) -> None:
        """Serve every key of a type; `factory(agent_id)` makes the agent for each execution.

        Raises:
            RegistrationError: Single agents of the type are registered.
        """
        self._registry.add_type(type_, factory)
        await self._host.claim()


def host_of(runtime: Runtime) -> HostParts:
    """Return the parts of a runtime, for code that assembles or watches a host. They may change."""
    return runtime._host  # noqa: SLF001 - no part of what a runtime is to its users
