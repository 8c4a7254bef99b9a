"""Latency of a step, a question and an external message at a given arrival rate.

Arrivals follow a schedule, whatever became of those before; each is timed from its due instant, so
that queueing counts. Rates are parts of the peak, which is measured first, with all arrivals due at
once. The mock gets as many: a plain program that writes the same, see `mock.py`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import nats
from pydantic_core import from_json

from actors._kernel.runtime.ids import run_id_of_mail
from tests.benchmarks import mock
from tests.benchmarks.bench import PAYLOAD, TYPE, agent_id, open_runtime, report
from tests.benchmarks.outside import PUBLISHER, Namespace, Servers, host
from tests.benchmarks.timers import share
from tests.benchmarks.workloads import Publisher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId

LOADS: Final = (0.1, 0.7)
"""Parts of the peak rate."""
SECONDS: Final = 5.0
"""Seconds of arrivals, at full size."""
FEWEST: Final = 40

Operation = Callable[[], Awaitable[Any]]
"""One operation, from its arrival until it is done."""


class Line:
    """A queue of arrivals for the idle ones among some runs."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[asyncio.Future[None] | None] = asyncio.Queue()

    async def arrive(self) -> None:
        """Arrive, and return when the operation is complete."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait(done)
        await done

    async def serve(self, do: Callable[[int], Awaitable[Any]]) -> None:
        """Process one arrival after the other until all are processed, as a run does."""
        count = 0
        while (done := await self._waiting.get()) is not None:
            try:
                await do(count)
            except Exception as exc:
                done.set_exception(exc)
                raise
            count += 1
            done.set_result(None)
        self._waiting.put_nowait(None)

    def close(self) -> None:
        """Let those that serve return."""
        self._waiting.put_nowait(None)


class Worker:
    """An agent that serves a line, by steps or by questions; or that is asked."""

    line: Line

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: Any, inbox: list[Message]) -> None:
        """Serve until the line is closed, or reply; any other message is only taken."""
        if inbox[0].payload == "steps":
            await self.line.serve(lambda _: ctx.step("s", _payload))
        elif inbox[0].payload == "asks":
            target = agent_id(f"answers{self.id.key}")
            await self.line.serve(lambda _: ctx.ask(target, PAYLOAD, timeout=60))
        elif inbox[0].reply_to is not None:
            await ctx.reply(inbox[0], PAYLOAD)


async def _payload() -> dict[str, Any]:
    return PAYLOAD


async def at_rate(operation: Operation, rate: float, total: int) -> list[float]:
    """Return how many seconds each of so many arrivals took, from when it was due."""
    loop, chance, took = asyncio.get_running_loop(), random.Random(7), []
    due = loop.time()

    async def arrive(due: float) -> None:
        await operation()
        took.append(loop.time() - due)

    tasks = []
    for _ in range(total):
        due += chance.expovariate(rate)
        if (early := due - loop.time()) > 0:
            await asyncio.sleep(early)
        tasks.append(asyncio.ensure_future(arrive(due)))
    await asyncio.gather(*tasks)
    return took


async def peak(operation: Operation, total: int) -> float:
    """Return arrivals per second when all come at once."""
    await asyncio.gather(*(operation() for _ in range(total)))  # warm
    began = time.perf_counter()
    await asyncio.gather(*(operation() for _ in range(total)))
    return total / (time.perf_counter() - began)


@asynccontextmanager
async def runs_of(url: str, do: str, count: int) -> AsyncIterator[Operation]:
    """Yield arrivals at so many runs of a host."""
    line = Line()

    class Serving(Worker):
        pass

    Serving.line = line
    async with open_runtime(url) as runtime:
        await runtime.register_type(TYPE, Serving)
        runs = [await runtime.submit(agent_id(index), do) for index in range(count)]
        yield line.arrive
        line.close()
        for run in runs:
            await runtime.result(run)


@asynccontextmanager
async def mock_runs_of(url: str, do: str, count: int) -> AsyncIterator[Operation]:
    """Yield arrivals at so many runs of a plain program."""
    line = Line()
    async with mock.opened(url) as database:

        async def serve(index: int) -> None:
            run = mock.Run(database, f"bench/{index}")
            await run.submit(do)
            await line.serve(run.step if do == "steps" else lambda n: mock.ask(run, n))

        serving = [asyncio.ensure_future(serve(index)) for index in range(count)]
        yield line.arrive
        line.close()
        await asyncio.gather(*serving)


@asynccontextmanager
async def outsider(servers: Servers) -> AsyncIterator[Operation]:
    """Yield messages that an outside program publishes, each to an idle agent, until its run has ended."""
    namespace, count = Namespace(servers), 0
    async with host(namespace, Worker) as runtime, Publisher(servers.nats_url) as publisher:

        async def deliver() -> None:
            nonlocal count
            count += 1
            agent, id_ = agent_id(count), f"m{count}"
            run = run_id_of_mail(agent, f"ext:{PUBLISHER}", id_)
            ended = runtime._host.worker.completions.future_of(run)
            publisher.publish(namespace.subjects.external(agent, PUBLISHER), id_)
            await ended

        yield deliver


@asynccontextmanager
async def mock_outsider(servers: Servers) -> AsyncIterator[Operation]:
    """Yield the same for a plain program: a stream that syncs, one consumer, a row, the run."""
    name, count = f"raw-{mock.new_id()}", 0
    ended: dict[str, asyncio.Future[None]] = {}
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(mock.opened(servers.postgres_url))
        publisher = await stack.enter_async_context(Publisher(servers.nats_url))
        client: Any = await nats.connect(servers.nats_url, connect_timeout=20)
        stack.push_async_callback(client.close)
        stream: Any = client.jetstream()
        await stream.add_stream(name=name, subjects=[f"{name}.*"])
        stack.push_async_callback(stream.delete_stream, name)

        async def handle_message(msg: Any) -> None:
            key = msg.headers["Nats-Msg-Id"]
            agent, sender = msg.subject, f"ext:{PUBLISHER}"
            body = mock.message(agent, from_json(msg.data), sender=sender)
            await database.write(mail=[(agent, sender, body["id"], mock.text(body))])
            await msg.ack()
            await mock.take(database, agent, sender, body)
            ended[key].set_result(None)

        async def start(msg: Any) -> None:
            tasks.append(asyncio.ensure_future(handle_message(msg)))

        tasks: list[asyncio.Future[None]] = []
        await stream.subscribe(f"{name}.*", cb=start, manual_ack=True)

        async def deliver() -> None:
            nonlocal count
            count += 1
            done = ended[f"m{count}"] = asyncio.get_running_loop().create_future()
            publisher.publish(f"{name}.{count}", f"m{count}")
            await done

        yield deliver
        await asyncio.gather(*tasks)


Opened = Callable[[], AbstractAsyncContextManager[Operation]]


async def measured(name: str, ours: Opened, least: Opened, *, crowd: int, scale: float) -> None:
    """Print a line for each load; `crowd` arrivals find the peak."""
    measurements = []
    async with ours() as operation:
        most = await peak(operation, max(FEWEST, int(crowd * scale)))
        for load in LOADS:
            total = max(FEWEST, int(most * load * SECONDS * scale))
            measurements.append((load, total, await at_rate(operation, most * load, total)))
    async with least() as operation:
        for load, total, took in measurements:
            mocked = await at_rate(operation, most * load, total)
            report(
                benchmark="latency",
                of=name,
                load=load,
                per_s=round(most * load),
                arrivals=total,
                p50_ms=share(took, 0.5),
                p99_ms=share(took, 0.99),
                floor_mock_p50_ms=share(mocked, 0.5),
                floor_mock_p99_ms=share(mocked, 0.99),
            )


async def run(servers: Servers, *, scale: float = 1.0) -> None:
    """Print two lines each for a step, an ask and a message from outside."""
    for name, do, count, crowd in (("step", "steps", 200, 20_000), ("ask", "asks", 64, 2_000)):
        await measured(
            name,
            partial(runs_of, servers.postgres_url, do, count),
            partial(mock_runs_of, servers.postgres_url, do, count),
            crowd=crowd,
            scale=scale,
        )
    ours, least = partial(outsider, servers), partial(mock_outsider, servers)
    await measured("outside", ours, least, crowd=5_000, scale=scale)
