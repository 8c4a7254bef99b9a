"""Runtime: register agents, submit messages, get results. The same on every assembly."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Self

from actors.kernel.runtime.ids import AgentId, HostIncarnation
from actors.kernel.runtime.shards import TOPICS
from actors.runtime.approvals import Approvals
from actors.runtime.backends import SupervisorView
from actors.runtime.client import Client
from actors.runtime.clock import SystemClock, SystemEntropy
from actors.runtime.desk import Desk
from actors.runtime.environment import Environment
from actors.runtime.following import ForeignTopics
from actors.runtime.front import RuntimeFront
from actors.runtime.live import LiveEvents
from actors.runtime.mail import Broker, MailService
from actors.runtime.meters import Meters
from actors.runtime.ownership import Ownership
from actors.runtime.parts import Foreign, Parts
from actors.runtime.registry import Registry
from actors.runtime.schedules import Schedules
from actors.runtime.services import Services
from actors.runtime.tasks import TaskScope
from actors.runtime.tracing import Tracing
from actors.runtime.wires import Wires
from actors.runtime.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from actors.kernel.agent.agent import Agent
    from actors.kernel.clock import Clock, Entropy
    from actors.kernel.runtime.commit import HostReport
    from actors.kernel.runtime.effects import Journal, ResultCache
    from actors.kernel.runtime.fanout import FanoutStrategy
    from actors.kernel.runtime.follow_graph import FollowGraph
    from actors.kernel.runtime.front import Front
    from actors.kernel.runtime.inbox import Inbox
    from actors.kernel.runtime.live import DeltaBus
    from actors.kernel.runtime.log_entry import EventLog
    from actors.kernel.runtime.scheduler import Scheduler
    from actors.kernel.runtime.store import RunStore
    from actors.kernel.runtime.supervisor import Supervisor
    from actors.kernel.runtime.wakeup import SignalBus
    from actors.runtime.doors import Door
    from actors.runtime.limiting import Limits

_log = logging.getLogger(__name__)


class Runtime(Client):
    """One host's runtime: a client, the agents served here, and the worker that runs them.

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
        tracing: Makes spans; by default there are some where OpenTelemetry is set up in this process.
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
    ) -> None:
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        foreign = Foreign(
            event_log=event_log, inbox=inbox, journal=journal, scheduler=scheduler,
            signal_bus=signal_bus, follow_graph=follow_graph, fanout=fanout,
        )  # fmt: skip
        store, self._serve = foreign.store(store, self._clock), serve
        self._registry, live, wires = Registry(), LiveEvents(self._clock, store), Wires()
        env = Environment(
            store=store, agents=self._registry, clock=self._clock, entropy=self._entropy,
            suspend_after=suspend_after, mail_of=wires.mail_of, on_routed=wires.on_routed,
            on_delta=live.publish, may_act=may_act, results=results,
            foreign_topics=(foreign_topics := ForeignTopics()),
            tracing=tracing or Tracing.configured(), meters=Meters.of(store),
            on_nudges=wires.on_nudges, on_spawned=wires.on_spawned, on_cancel=wires.on_cancel,
        )  # fmt: skip
        self._worker = Worker(env, capacity=capacity)
        self._ownership = Ownership(
            store, owner or HostIncarnation(self._entropy.token()), self._registry,
            self._worker, heartbeat_s=heartbeat_s,
        )  # fmt: skip
        follow = self._ownership.follow
        self._mail = None
        if broker is not None and serve:
            self._ownership.also_serves = (TOPICS,)
            self._mail = MailService(broker, store, self._worker, may_act=may_act, on_nudge=follow)
        wires.join(self._worker, self._ownership, self._mail)
        self._parts = Parts(
            store, foreign, clock=self._clock, entropy=self._entropy, worker=self._worker,
            on_nudge=follow,
        )  # fmt: skip
        foreign_topics.use(self._parts.topics)
        self._parts.inbox.set_deliver_hook(wires.on_inbox_deliver)
        self._services = Services(
            store, self._worker, self._ownership, clock=self._clock, mail=self._mail
        )
        self._supervisor = SupervisorView(store, lease_of=self._worker.lease_of, follow=follow)
        self._doors: list[Door] = []
        self._tasks = TaskScope()
        self._started = False
        desk = Desk(
            store, self._worker, live, client=client, clock=self._clock, entropy=self._entropy
        )
        super().__init__(store, desk, self._parts.topics, live)

    # --- parts ----------------------------------------------------------------------------------

    @property
    def store(self) -> RunStore:
        """The rows."""
        return self._store

    @property
    def clock(self) -> Clock:
        """Where this runtime takes time from."""
        return self._clock

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
        return self._services.limits

    @property
    def supervisor(self) -> Supervisor:
        """The tree of runs, from outside of them."""
        return self._supervisor

    @property
    def schedules(self) -> Schedules:
        """Messages that come to agents by themselves: at an instant, or by a cron expression."""
        return Schedules(
            self._store, self._entropy, on_change=self._services.firing.poke,
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

    @property
    def meters(self) -> Meters:
        """What this host counts of its own work."""
        return self._worker.meters

    @property
    def serves(self) -> tuple[str, ...]:
        """Types, and single agents as text, that are registered here."""
        served = self._registry.serves()
        return (*served.types, *map(str, served.agents))

    @property
    def front(self) -> Front:
        """What programs that are no hosts may ask, each for its own tenant."""
        return RuntimeFront(
            self._store, self._desk,
            registry=self._registry, topics=self._topics, live=self._live,
        )  # fmt: skip

    def attach(self, *, bus: DeltaBus | None = None, doors: Sequence[Door] = ()) -> None:
        """Before `start`: tell and hear of other hosts' live events, and serve who comes by `doors`."""
        self._live.bus = bus
        self._worker.on_end = self._live.announce_end
        self._doors.extend(doors)

    def on_report(self, report: HostReport) -> None:
        """For a heartbeat outside the event loop: what it said."""
        self._ownership.on_report(report)

    # --- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Claim shards and execute what is in them. Starting twice does nothing.

        Raises:
            PersistenceError: The store cannot be reached; starting may be tried again.
        """
        if self._started:
            return
        self._started = True
        try:
            if self._serve:
                await self._services.start(self._tasks)
        except BaseException:
            self._started = False
            await self._tasks.close()
            raise
        for door in self._doors:
            self._tasks.keep(door.run, name="door")

    async def stop(self, *, drain_s: float = 0.0) -> None:
        """End all executions without losing anything, give the shards up, end all tasks.

        Nothing new is started at once; what executes has `drain_s` seconds to end or suspend.
        """
        if not self._started:
            return
        self._started = False
        for door in self._doors:
            await _in_order(door.leave())
        if self._serve and drain_s > 0:
            await self._ownership.leave()
        await self._worker.stop(drain_s=drain_s)
        for door in self._doors:
            await _in_order(door.shut())
        if self._serve:
            await self._services.settle()
        await self._tasks.close()
        if self._serve:
            await self._services.stop()

    def crash(self) -> None:
        """Forget everything at once without writing anything. For tests of what survives."""
        self._started = False
        self._store.set_nudge_hook(None)
        self._tasks.cancel()
        self._worker.abandon()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.stop()

    # --- agents ---------------------------------------------------------------------------------

    async def register(self, agent: Agent) -> None:
        """Serve one agent. The same id again replaces it for executions that begin afterwards.

        Raises:
            RegistrationError: Not an agent, or its type is served with `register_type`.
        """
        self._registry.add(agent)
        await self.claim()

    async def register_type(self, type_: str, factory: Callable[[AgentId], Agent]) -> None:
        """Serve every key of a type; `factory(agent_id)` makes the agent for each execution.

        Raises:
            RegistrationError: Single agents of the type are registered.
        """
        self._registry.add_type(type_, factory)
        await self.claim()

    async def claim(self) -> None:
        """Look at once for shards that nobody owns any more; for those who saw a host die."""
        if self._started:
            await self._ownership.claim()


async def _in_order(closing: Awaitable[None]) -> None:
    """Close a door; one that fails keeps no host from stopping."""
    try:
        await closing
    except Exception as exc:  # noqa: BLE001 - see above
        _log.warning("a door could not be closed in order", exc_info=exc)
