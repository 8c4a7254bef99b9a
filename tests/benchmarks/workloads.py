"""What is played to be profiled, counted and timed: each workload on one host, by the public API.

A workload prepares what it needs, then plays so many operations and returns when what they began has ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

import asyncpg
import nats

from actors import SpawnBudget
from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId, run_id_of_mail
from actors._runtime import Runtime
from actors.testing import FunctionModel
from actors.workflow import FlowRuns
from persistence.postgres import PostgresStore
from tests.benchmarks import flows
from tests.benchmarks.bench import PAYLOAD, TYPE, agent_id, many, open_runtime
from tests.benchmarks.outside import BODY, PUBLISHER, Namespace, Servers, host
from tests.benchmarks.posts import NEWS, follow

if TYPE_CHECKING:
    from types import TracebackType

    from actors._kernel.runtime.ids import RunId

PARENT: Final = "parent"
FLOWS: Final = "flows"
"""The app of graphs, whose type is not that of `Player`."""
IDLE_S: Final = 0.01
"""Between two looks whether all has ended."""
LONE_HEARTBEAT_S: Final = 600.0


class Player:
    """An agent that does what its message says, so often: steps, questions or children."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id
        self.model = FunctionModel(lambda *_: "fine")

    async def run(self, ctx: Any, inbox: list[Message]) -> Any:
        """Do it; a question is answered, anything else is only taken."""
        for message in inbox:
            if message.reply_to is not None:
                await ctx.reply(message, PAYLOAD)
        order: Any = inbox[0].payload
        if not isinstance(order, dict) or "do" not in order:
            return PAYLOAD
        return await getattr(self, order["do"])(ctx, order["times"])

    async def steps(self, ctx: Any, times: int) -> None:
        """One after the other."""
        for _ in range(times):
            await ctx.step("s", _payload)

    async def models(self, ctx: Any, times: int) -> None:
        """Ask a model, one after the other."""
        for _ in range(times):
            await ctx.llm("hello")

    async def talks(self, ctx: Any, times: int) -> None:
        """Ask a model in a conversation of the run's own, one after the other."""
        for _ in range(times):
            await ctx.generate("hello")

    async def asks(self, ctx: Any, times: int) -> None:
        """Ask an agent of its own, one after the other."""
        for _ in range(times):
            outcome = await ctx.ask(agent_id(f"answers{self.id.key}"), PAYLOAD, timeout=30)
            assert outcome.kind == "replied", outcome

    async def children(self, ctx: Any, times: int) -> None:
        """Spawn them all, then join them."""
        handles = [await ctx.spawn(TYPE, boot=PAYLOAD) for _ in range(times)]
        assert len(await ctx.gather(*handles)) == times

    async def lone_children(self, ctx: Any, times: int) -> None:
        """Spawn a child and join it, one after the other."""
        for _ in range(times):
            await ctx.gather(await ctx.spawn(TYPE, boot=PAYLOAD))

    async def waits(self, ctx: Any, times: int) -> None:
        """For a signal."""
        for _ in range(times):
            await ctx.sleep_until_signal("go")


async def _payload() -> dict[str, Any]:
    return PAYLOAD


def order(do: str, times: int) -> dict[str, Any]:
    """Return the payload that tells a player what to do."""
    return {"do": do, "times": times}


class Publisher:
    """An outside program: a client of the broker in a thread, so that it is not counted."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    async def __aenter__(self) -> Self:
        self._thread.start()
        self._client = await self.awaited(nats.connect(self._url, connect_timeout=20))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.awaited(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()

    async def awaited(self, coro: Any) -> Any:
        """Await it in the thread."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coro, self._loop))

    def publish(self, subject: str, id_: str) -> None:
        """Publish, without waiting for the acknowledgement."""
        coro = self._client.request(subject, BODY, timeout=30, headers={"Nats-Msg-Id": id_})
        asyncio.run_coroutine_threadsafe(coro, self._loop)


@dataclass
class Stage:
    """A started host that serves players."""

    runtime: Runtime
    servers: Servers
    namespace: Namespace | None = None
    publisher: Publisher | None = None
    count: int = 0
    """Of names given, so that no two plays share an agent that must be new."""
    waiting: list[RunId] = field(default_factory=list)

    @property
    def store(self) -> PostgresStore:
        """Its rows."""
        store = self.runtime.store
        assert isinstance(store, PostgresStore)
        return store

    async def run(self, key: object, do: str, times: int = 1, **options: Any) -> None:
        """Submit a run and wait for its end."""
        run = await self.runtime.submit(agent_id(key), order(do, times), **options)
        await self.runtime.result(run)

    async def rests(self) -> None:
        """Return when nothing executes any more."""
        while self.runtime._host.worker.dispatcher.load:  # noqa: ASYNC110 - no event says "all"
            await asyncio.sleep(IDLE_S)


@asynccontextmanager
async def staged(
    servers: Servers, *, broker: bool = False, suspend_after: float = 5.0
) -> AsyncIterator[Stage]:
    """Yield a host, with the broker or without; as shipped, but that it hardly ever sends a heartbeat."""
    often = {"suspend_after": suspend_after, "heartbeat_s": LONE_HEARTBEAT_S}
    async with AsyncExitStack() as stack:
        if not broker:
            runtime = await stack.enter_async_context(open_runtime(servers.postgres_url, **often))
            await runtime.register_type(TYPE, Player)
            await flows.flows(FLOWS).register(runtime)
            yield Stage(runtime, servers)
            return
        namespace = Namespace(servers)
        runtime = await stack.enter_async_context(host(namespace, Player, **often))
        publisher = await stack.enter_async_context(Publisher(servers.nats_url))
        yield Stage(runtime, servers, namespace, publisher)


Play = Callable[[Stage, int], Awaitable[None]]


@dataclass(frozen=True)
class Workload:
    """So many operations, in a given shape.

    Attributes:
        unit: What one operation is.
        full: How many are played at full size.
        play: Plays so many.
        prepare: Makes what so many need.
        broker: Whether it needs one.
    """

    unit: str
    full: int
    play: Play
    prepare: Play | None = None
    broker: bool = False
    suspend_after: float = 5.0

    def stage(self, servers: Servers) -> AbstractAsyncContextManager[Stage]:
        """Open a host for it."""
        return staged(servers, broker=self.broker, suspend_after=self.suspend_after)


def calls(do: str, at_once: int, each: int = 10) -> Play:
    """Runs of so many calls of a method of `Player`, so many runs at once."""

    async def play(stage: Stage, total: int) -> None:
        await many(
            lambda i: stage.run(i, do, each),
            total=max(total // each, 1),
            at_once=at_once,
            warm_up=False,
        )

    return play


def graphs(at_once: int) -> Play:
    """Runs of a graph whose steps have an effect each, so many runs at once."""

    async def play(stage: Stage, total: int) -> None:
        started, runs = stage.count, max(1, total // flows.STEPS)
        stage.count += runs + at_once  # the first ones warm up

        async def run_flow(index: int) -> None:
            name = str(started + at_once + index)
            run_id = await FlowRuns(stage.runtime, FLOWS).start("work", vars={"n": 0}, id=name)
            await stage.runtime.result(run_id)

        await many(run_flow, total=runs, at_once=at_once)

    return play


def asks(at_once: int, each: int = 20) -> Play:
    """Runs of so many questions, so many at once."""

    async def play(stage: Stage, total: int) -> None:
        await many(
            lambda i: stage.run(i % at_once, "asks", each),
            total=max(total // each, 1),
            at_once=at_once,
            warm_up=False,
        )
        await stage.rests()

    return play


def children(trees: int, each: int) -> Play:
    """Trees of so many children, so many trees at once."""

    async def play(stage: Stage, total: int) -> None:
        size = min(each, total)
        budget = SpawnBudget(max_runs=size)
        await many(
            lambda i: stage.run(f"{PARENT}{i}", "children", size, spawn_budget=budget),
            total=max(total // size, 1),
            at_once=trees,
            warm_up=False,
        )

    return play


AT_ONCE: Final = 500


async def suspend(stage: Stage, total: int) -> None:
    """Begin so many runs and return when they are rows only."""

    async def submit_waiting(index: int) -> None:
        agent = agent_id(f"waits{stage.count + index}")
        stage.waiting.append(await stage.runtime.submit(agent, order("waits", 1)))

    await many(submit_waiting, total=total, at_once=AT_ONCE, warm_up=False)
    stage.count += total
    await stage.rests()


async def wake(stage: Stage, total: int) -> None:
    """Signal so many of the runs that wait, and return when they have ended."""
    runs = [stage.waiting.pop() for _ in range(total)]

    async def signal_run(index: int) -> None:
        ended = stage.runtime._host.worker.completions.future_of(runs[index])
        await stage.runtime.signal(runs[index], "go", 1)
        await ended

    await many(signal_run, total=total, at_once=AT_ONCE, warm_up=False)


def outside(agents: int) -> Play:
    """Messages that an outside program publishes to so many agents, as fast as it can."""

    async def play(stage: Stage, total: int) -> None:
        assert stage.namespace is not None
        assert stage.publisher is not None
        client = await nats_client(stage)
        try:
            await stage.publisher.awaited(
                stage.namespace.publish(client, total, agents, stage.count)
            )
        finally:
            await stage.publisher.awaited(client.close())
        stage.count += total
        await rows_done(stage, stage.count)

    return play


async def nats_client(stage: Stage) -> Any:
    """Return a connection of the publisher's."""
    assert stage.publisher is not None
    return await stage.publisher.awaited(nats.connect(stage.servers.nats_url, connect_timeout=20))


async def rows_done(stage: Stage, total: int) -> None:
    """Return when so many messages are in runs that have ended, looking by a connection that is not counted."""

    async def look() -> None:
        watcher = await asyncpg.connect(stage.servers.postgres_url)
        query = f"select count(*) from {stage.store.settings.schema}.inbox where state = 'd'"
        while await watcher.fetchval(query) < total:  # noqa: ASYNC110 - rows tell nobody
            await asyncio.sleep(0.05)
        await watcher.close()

    await asyncio.to_thread(asyncio.run, look())


async def one_outside(stage: Stage, total: int) -> None:
    """Messages to idle agents, one after the other."""
    assert stage.namespace is not None
    assert stage.publisher is not None
    for _ in range(total):
        stage.count += 1
        agent, id_ = agent_id(f"idle{stage.count}"), f"m{stage.count}"
        run = run_id_of_mail(agent, f"ext:{PUBLISHER}", id_)
        ended = stage.runtime._host.worker.completions.future_of(run)
        stage.publisher.publish(stage.namespace.subjects.external(agent, PUBLISHER), id_)
        await ended


async def followed(stage: Stage, total: int) -> None:
    """So many agents follow."""
    settings = stage.store.settings
    connection = await asyncpg.connect(
        stage.servers.postgres_url, server_settings={"search_path": settings.schema}
    )
    await follow(connection, total)
    await connection.close()


async def post(stage: Stage, total: int) -> None:
    """One post to all that follow; so many."""
    await stage.runtime.publish(NEWS.type, NEWS.source, PAYLOAD)
    stage.count += total
    await rows_done(stage, stage.count)


WORKLOADS: Final = {
    "step": Workload("step", 1000, calls("steps", 1)),
    "step-50": Workload("step", 15_000, calls("steps", 50)),
    "step-200": Workload("step", 30_000, calls("steps", 200)),
    "flow": Workload("step", 1_000, graphs(1)),
    "flow-50": Workload("step", 10_000, graphs(50)),
    "llm-50": Workload("llm", 10_000, calls("models", 50)),
    "generate-50": Workload("generate", 10_000, calls("talks", 50)),
    "ask": Workload("ask", 200, asks(1)),
    "ask-64": Workload("ask", 5_120, asks(64)),
    "child": Workload("child", 4_000, children(1, 100)),
    "child-8": Workload("child", 4_000, children(8, 100)),
    "child-10000": Workload("child", 10_000, children(1, 10_000)),
    "created": Workload("run", 10_000, suspend, suspend_after=0.0),
    "woken": Workload("wake", 10_000, wake, prepare=suspend, suspend_after=0.0),
    "idle-message": Workload("message", 300, one_outside, broker=True),
    "message-100": Workload("message", 10_000, outside(100), broker=True),
    "message-10000": Workload("message", 10_000, outside(10_000), broker=True),
    "post-1000": Workload("delivery", 1_000, post, prepare=followed),
    "post-10000": Workload("delivery", 10_000, post, prepare=followed),
}
