"""The parts of one host, in the order in which they start and stop."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import asynccontextmanager

from actors._kernel.agent.agent import Agent
from actors._kernel.agent.models import prepare
from actors._kernel.runtime.hints import DeltaBus, LogHints
from actors._kernel.runtime.ids import TOPICS, HostIncarnation
from actors._runtime.client.gateway_api import GatewayListener
from actors._runtime.client.live_events import LiveEvents
from actors._runtime.delivery.fanout import PostDelivery
from actors._runtime.delivery.mail_service import Broker, MailService
from actors._runtime.loop.notifications import Notifications
from actors._runtime.loop.tasks import TaskScope
from actors._runtime.schedules.ticker import ScheduleService
from actors._runtime.sharding.limit_sync import Limiting
from actors._runtime.sharding.ownership import Ownership
from actors._runtime.verbs.host_services import HostServices
from actors._runtime.worker.worker import Worker

_log = logging.getLogger("callboard.runtime")


class HostParts:
    """The worker of a runtime, and the services beside it. For code that assembles a host; see `host_of`.

    Args:
        env: The services that executions share.
        live: The live events of runs.
        owner: This incarnation's name.
        capacity: Maximum number of runs that execute at once.
        heartbeat_s: Seconds between heartbeats from the event loop, or None if there are none.
        serve: False for a client, which executes nothing.
        broker: The transport of messages between hosts, or None.

    Attributes:
        notifications: The source of hints for the parts.
        worker: The run loop.
        ownership: The shards of this host.
        mail: The transport of messages between hosts, or None without a broker.
        limiting: The limits of the deployment.
        serves: True if this runtime executes agents, False if it is a client.
    """

    def __init__(
        self,
        env: HostServices,
        live: LiveEvents,
        owner: HostIncarnation,
        *,
        capacity: int,
        heartbeat_s: float | None,
        serve: bool,
        broker: Broker | None,
    ) -> None:
        mail_broker = broker if serve else None
        self.notifications = notifications = Notifications()
        self._store, self._live, self.serves = env.store, live, serve
        self._is_started = self._is_putting_off = False
        self._tasks = TaskScope()
        self.worker = worker = Worker(env, notifications, capacity=capacity)
        self.ownership = Ownership(
            owner,
            worker,
            notifications,
            tasks=self._tasks,
            heartbeat_s=heartbeat_s,
            also_serves=() if mail_broker is None else (TOPICS,),
        )
        self._schedules = ScheduleService(worker, notifications)
        self.limiting = Limiting(env.store.limits, owner, worker.dispatcher, notifications)
        self._posts = PostDelivery(worker, notifications)
        self.mail = None
        if mail_broker is not None:
            self.mail = MailService(mail_broker, worker, notifications)
        self._listeners: list[GatewayListener] = []
        self._unprepared_models: dict[int, object] = {}
        """By identity, since many agents have one model."""

    async def start(self) -> None:
        """Start all parts, in order. Starting twice does nothing."""
        if self._is_started:
            return
        self._is_started = True
        try:
            if self.serves:
                await self._start_serving()
        # Also a cancellation: parts that were started before the failure would run on without a host.
        except BaseException:
            self._is_started = False
            await self._tasks.close()
            raise
        for listener in self._listeners:
            self._tasks.keep(listener.run, name="gateway listener")

    async def _start_serving(self) -> None:
        """Claim shards, and begin what runs in the background."""
        await self.limiting.start()
        await self.ownership.start()
        self._tasks.keep(self.limiting.run, name="limits")
        self._tasks.keep(self._schedules.run, name="schedules")
        self._tasks.keep(self._posts.run, name="posts")
        if self.mail is not None:
            self._tasks.keep(self.mail.run, name="mail")
        self.prepare_models(())

    async def stop(self, *, drain_s: float) -> None:
        """Stop all parts, in order: first what takes work, last the leases."""
        if not self._is_started:
            return
        self._is_started = False
        # External clients first: other hosts get their next requests. Their open requests end with the runs.
        for listener in self._listeners:
            await _in_order(listener.leave())
        if self.serves and drain_s > 0:
            await self.ownership.leave()
        await self.worker.stop(drain_s=drain_s)
        for listener in self._listeners:
            await _in_order(listener.shut())
        if self.serves:  # a claim under way comes to its end before its task is ended
            await self.ownership.claim_no_more()
            await self.limiting.ask_no_more()
        await self._tasks.close()
        if self.serves:
            await self.limiting.stop()
            await self.ownership.stop()

    def attach(
        self,
        *,
        bus: DeltaBus | None = None,
        log_hints: LogHints | None = None,
        listeners: Sequence[GatewayListener] = (),
    ) -> None:
        """Before `start`: exchange live events and hints with other hosts, and serve external clients."""
        if bus is not None:
            self._live.join(bus)
        if log_hints is not None:
            self._store.prefer_log_hints(log_hints)
        self._listeners.extend(listeners)

    def crash(self) -> None:
        """Forget everything at once without writing anything. For tests of what survives."""
        self._is_started = False
        self._store.set_nudge_hook(None)
        self._tasks.cancel()
        self.worker.abandon()

    def prepare_models(self, agents: Iterable[Agent]) -> None:
        """Let the models of agents load in the background what their first calls need, once this host serves.

        The import of a provider's SDK takes seconds, which the first run would wait for.
        """
        models = self._unprepared_models
        for agent in agents:
            model = getattr(agent, "model", None)
            if hasattr(model, "prepare"):
                models[id(model)] = model
        if models and self._is_started and self.serves:
            self._unprepared_models = {}
            self._tasks.start(_prepare(models.values()), name="models")

    async def claim(self) -> None:
        """Poll now for shards without an owner; for callers that saw a host die."""
        if self._is_started and not self._is_putting_off:
            await self.ownership.claim()

    @asynccontextmanager
    async def claiming_once(self) -> AsyncIterator[None]:
        """Claim at the end of the block, for all that is registered in it."""
        self._is_putting_off = True
        try:
            yield
        finally:
            self._is_putting_off = False
        await self.claim()


async def _prepare(models: Iterable[object]) -> None:
    for model in models:
        try:
            await prepare(model)
        except Exception as exc:  # noqa: BLE001 - a client may raise anything: its first call raises it again
            extra = {"model": str(getattr(model, "name", "")), "reason": str(exc)}
            _log.warning("a model could not be prepared", extra=extra)


async def _in_order(call: Awaitable[None]) -> None:
    """Close a listener. An error does not keep the host from stopping."""
    try:
        await call
    except Exception as exc:  # noqa: BLE001 - see above
        _log.warning("a gateway listener could not be closed in order", exc_info=exc)
