"""A test bed: one host at a time over rows that survive it.

Memory runs in virtual time, the other backends in real time. On PostgreSQL alone the sender's
commit writes the receiver's row. On NATS the rows are PostgreSQL's, too, and every message between
agents travels through the broker.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from actors._inmemory.runs.store import MemoryStore
from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RetryPolicy
from actors._runtime import RunContext, Runtime
from actors._runtime.delivery.mail_service import Broker
from broker import JetStreamTransport
from tests.behaviour.agents import Acting, World
from tests.harness.faulty_store import FaultyStore
from tests.harness.simloop import SimClock, SimEntropy
from tests.harness.slow import BUSY_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import Message
    from actors._kernel.basics import Clock, Entropy
    from actors._kernel.runtime.log_entry import RunLogEntry
    from actors._kernel.runtime.rows import RunRow
    from actors._kernel.stores.run_store import RunStore
    from persistence.postgres import PostgresStore
    from tests.harness.faulty_store import Faults
    from tests.harness.simloop import SimLoop

FAST: Final = RetryPolicy(max_retries=3, backoff_s=0.01, jitter=0)
"""Retries almost immediately."""

LIMIT_S: Final = 20.0
"""Seconds after which a test gives up a wait."""


class OpenStore(Protocol):
    """Opens another store on the same rows, as another process would."""

    def __call__(self, owner: HostIncarnation) -> AbstractAsyncContextManager[RunStore]:
        """Open a store of this owner; it is closed at the end of the block."""
        ...


@dataclass
class Bed:
    """A started runtime that a test can crash and replace by another over the same rows.

    Attributes: backend: ``memory``, ``postgres`` or ``nats``. suspend_after: See `Runtime`; 0
    evicts a waiting run at once, 5 keeps it in memory in these tests. runtime: The current host.
    world: The effects of the test.
    """

    backend: str
    suspend_after: float
    open_store: OpenStore
    clock: Clock
    entropy: Entropy
    broker_at: tuple[str, str] | None = None
    """The broker's URL and the namespace there; None without a broker."""
    bury: Callable[[HostIncarnation], Awaitable[object]] | None = None
    """Releases the shards of a dead host. If None, a store opened for that owner does it."""
    world: World = field(default_factory=World)
    agents: dict[AgentId, Agent] = field(default_factory=dict)
    _stores: AsyncExitStack = field(default_factory=AsyncExitStack)
    _runtime: Runtime | None = None
    _names: itertools.count[int] = field(default_factory=itertools.count)
    _prefix: str = field(default_factory=lambda: f"b{secrets.token_hex(5)}")

    @property
    def runtime(self) -> Runtime:
        """The current host."""
        assert self._runtime is not None, "no host lives"
        return self._runtime

    @property
    def slack_s(self) -> float:
        """Tolerance in seconds for what comes later than in virtual time: machines and servers are busy."""
        return 0.0 if self.backend == "memory" else BUSY_S

    @property
    def drops(self) -> bool:
        """Whether waiting runs are evicted from memory at once."""
        return self.suspend_after == 0

    async def start(self, **settings: Any) -> Runtime:
        """Start a host that serves this bed's agents."""
        owner = HostIncarnation(f"{self._prefix}-{next(self._names)}")
        store = await self._stores.enter_async_context(self.open_store(owner))
        runtime = self._host(store, owner, **{"suspend_after": self.suspend_after, **settings})
        for agent in self.agents.values():
            await runtime.register(agent)
        self._runtime = runtime  # runs that this host takes over call the client at once
        await runtime.start()
        if runtime._host.mail is not None:
            await runtime._host.mail.ready()
        return runtime

    def _host(self, store: RunStore, owner: HostIncarnation, **settings: Any) -> Runtime:
        broker = None
        if self.broker_at is not None:
            url, namespace = self.broker_at
            transport = JetStreamTransport(url, namespace=namespace, owner=owner)
            rows = cast("PostgresStore", store)
            broker = Broker(transport, rows.mail, rows.outbox)
        return Runtime(
            store=store,
            clock=self.clock,
            entropy=self.entropy,
            owner=owner,
            broker=broker,
            **settings,
        )

    async def stop(self) -> None:
        """Shut the host down in order."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.stop()
        await self._stores.aclose()

    async def crash(self) -> None:
        """Crash the host: it writes nothing more, and its leases have expired."""
        runtime, self._runtime = self.runtime, None
        owner, leases = runtime.owner, runtime._host.worker.held.leases
        runtime._host.crash()
        await asyncio.sleep(0)
        await runtime._host._tasks.close()  # a dead process has no connections
        await self._stores.aclose()
        if self.bury is not None:
            await self.bury(owner)
            return
        async with self.open_store(HostIncarnation(f"{self._prefix}-undertaker")) as store:
            await store.shards.release(leases)

    def go_wrong(self, faults: Faults, die: Callable[[], None] = lambda: None) -> None:
        """Inject faults: hosts started from now on get a store that fails, or kills the host, at `faults`."""
        before = self.open_store

        @asynccontextmanager
        async def open_faulty(owner: HostIncarnation) -> AsyncIterator[RunStore]:
            async with before(owner) as store:
                yield FaultyStore.wrap(store, faults, die)

        self.open_store = open_faulty

    async def restart(self, **settings: Any) -> Runtime:
        """Crash the host and start another one."""
        await self.crash()
        return await self.start(**settings)

    @asynccontextmanager
    async def client(self, name: str = "other") -> AsyncIterator[Runtime]:
        """Yield a second process that submits and asks as this client, and executes nothing."""
        owner = HostIncarnation(f"{self._prefix}-client-{next(self._names)}")
        async with (
            self.open_store(owner) as store,
            Runtime(
                store=store,
                clock=self.clock,
                entropy=self.entropy,
                owner=owner,
                serve=False,
                client=name,
            ) as runtime,
        ):
            yield runtime

    @asynccontextmanager
    async def rival(self) -> AsyncIterator[Runtime]:
        """Yield a second host that serves no agent yet."""
        owner = HostIncarnation(f"{self._prefix}-rival-{next(self._names)}")
        async with self.open_store(owner) as store, self._host(store, owner) as runtime:
            yield runtime

    def name(self, key: str = "1") -> AgentId:
        """Return an agent id of a type that no other test has."""
        return AgentId(f"{self._prefix}.{next(self._names)}", key)

    async def serve(
        self, act: Callable[[RunContext, list[Message]], Awaitable[Any]], **attributes: Any
    ) -> AgentId:
        """Register an agent that is this function; later hosts serve it too."""
        agent = Acting(self.name(), act, **attributes)
        self.agents[agent.id] = agent
        await self.runtime.register(agent)
        return agent.id

    async def submit(self, agent_id: AgentId, payload: Any = None, **options: Any) -> RunId:
        """Submit to the current host; retries are fast unless the test sets a policy."""
        if "max_retries" not in options:
            options.setdefault("retry_policy", FAST)
        return await self.runtime.submit(agent_id, payload, **options)

    async def result(self, run_id: RunId) -> Any:
        """Return the run's output."""
        async with asyncio.timeout(LIMIT_S):
            return await self.runtime.result(run_id)

    async def ended(self, run_id: RunId) -> RunRow:
        """Return the run's row once it has ended in any status."""
        async with asyncio.timeout(LIMIT_S):
            return await self.runtime.wait(run_id)

    async def play(self, act: Callable[[RunContext, list[Message]], Awaitable[Any]]) -> Any:
        """Return the output of one run of a new agent."""
        return await self.result(await self.submit(await self.serve(act)))

    async def row(self, run_id: RunId) -> RunRow:
        """Return the run's row as stored now."""
        row = await self.runtime.store.reads.run(run_id)
        assert row is not None
        return row

    async def log(self, run_id: RunId, *kinds: str) -> list[RunLogEntry]:
        """Return the run's log, or only its entries of these kinds."""
        entries = [entry async for entry in self.runtime.entries(run_id)]
        return [entry for entry in entries if not kinds or entry.kind in kinds]

    async def kinds(self, run_id: RunId) -> list[str]:
        """Return the kinds of the run's log entries, without those of suspends and resumes."""
        aside = (EntryKind.RUN_SUSPENDED, EntryKind.RUN_RESUMED)
        return [entry.kind for entry in await self.log(run_id) if entry.kind not in aside]

    async def seen(
        self, run_id: RunId, kind: str, *, times: int = 1, name: str | None = None
    ) -> RunLogEntry:
        """Return the n-th entry of this kind (and step name) as soon as it is durable."""
        remaining = times
        async with asyncio.timeout(LIMIT_S):
            async for entry in self.runtime.tail(run_id):
                remaining -= entry.kind == kind and name in (None, entry.payload.get("name"))
                if remaining == 0:
                    return entry
        raise AssertionError(f"the run ended with {times - remaining} of {times} {kind}")

    async def until(self, holds: Callable[[], object], *, limit_s: float = LIMIT_S) -> None:
        """Return once `holds()` is true. For conditions without a notification."""
        async with asyncio.timeout(limit_s):
            while not holds():  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.001)

    async def marked(self, run_id: RunId, *, times: int = 1) -> None:
        """Return when the run's step `mark` is durable and the run waits (evicted, if the bed evicts)."""
        await self.seen(run_id, EntryKind.EFFECT_RESULT, name="mark")
        if self.drops:
            await self.seen(run_id, EntryKind.RUN_SUSPENDED, times=times)

    async def live_and_replayed(
        self, body: Callable[[RunContext], Awaitable[Any]], **attributes: Any
    ) -> Sequence[Any]:
        """Return what `body` returned, first live, then on each replay; at least one is after a crash."""
        values: list[Any] = []

        async def act(ctx: RunContext, inbox: list[Message]) -> None:
            del inbox
            values.append(await body(ctx))
            await ctx.step("mark", self.world.do, "mark")
            await ctx.sleep_until_signal("again")

        run_id = await self.submit(await self.serve(act, **attributes))
        await self.marked(run_id)
        await self.restart()
        await self.runtime.signal(run_id, "again")
        await self.result(run_id)
        assert len(values) >= 2, "nothing was replayed"
        assert self.world.count["mark"] == 1
        return values


def memory_bed(loop: SimLoop, suspend_after: float, seed: int) -> Bed:
    """Return a bed over rows in memory, in virtual time, without a host yet."""
    loop._choice.seed(seed)
    clock = SimClock(loop)
    first = MemoryStore(clock=clock)

    @asynccontextmanager
    async def open_store(owner: HostIncarnation) -> AsyncIterator[RunStore]:
        del owner
        sibling = first.sibling()
        yield sibling
        sibling.set_nudge_hook(None)

    return Bed("memory", suspend_after, open_store, clock, SimEntropy(seed))
