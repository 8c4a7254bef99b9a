"""A session whose runs another process executes: how late its reader sees pieces of answers, and entries.

The floor is core NATS: publish there, subscribe here, with the client as it is. An entry is read from its table
when a hint came, so beside it stands the same message with one such read. Both processes read one clock
(`time.monotonic_ns` is the machine's). `python -m tests.benchmarks.talks_elsewhere` is the other process.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import asyncpg
import nats
from typing_extensions import override

from actors._kernel.agent.message import ContentBlock
from actors._kernel.agent.models import Completion, LLMResponse, TextDelta
from actors._kernel.agent.tools import Tool, ToolCall
from actors.agents import ReActAgent
from actors.sessions import AgentRuntime
from actors.testing import FunctionModel
from compose._assembly.runtime import build_runtime
from compose._assembly.settings import Settings
from persistence._postgres.reads.reads import SQL_ENTRIES
from tests.benchmarks.bench import report
from tests.benchmarks.outside import Namespace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors.sessions import SessionEvent
    from persistence.postgres import PostgresStore
    from tests.benchmarks.outside import Servers

APP: Final = "elsewhere"
ROUNDS: Final = 4
RUNS: Final = 5
"""Of each round, behind one that is not measured."""
CALLS: Final = 5
"""Of the model in a run; each but the last one asks for a tool."""
PIECES: Final = 20
PAUSE_S: Final = 0.004
"""Between two pieces, and two messages of the floor."""


class Stamping(FunctionModel):
    """A model whose pieces are the moments at which it says them."""

    def __init__(self) -> None:
        super().__init__(lambda *_: "")

    @override
    async def generate_stream(self, messages: Any, *, options: Any = None) -> AsyncIterator[Any]:
        """Yield moments, and ask for the tool so many times since the user's message."""
        del options
        text = ""
        for _ in range(PIECES):
            await asyncio.sleep(PAUSE_S)
            piece = f"{time.monotonic_ns()} "
            text += piece
            yield TextDelta(text=piece)
        content = [ContentBlock(type="text", text=text)]
        users = [i for i, message in enumerate(messages) if message.role == "user"]
        calls = sum(message.role == "assistant" for message in messages[users[-1] :])
        if calls < CALLS - 1:
            content.append(ToolCall(id=f"c{len(messages)}", name="look", arguments={}).block())
        yield Completion(response=LLMResponse(content=content, model="stamping"))


async def look() -> str:
    """Look."""
    return "seen"


async def serve(postgres_url: str, nats_url: str, name: str) -> None:
    """Execute the runs, and do what stdin says: publish for the floor, or print when commits were done."""
    commits: dict[str, int] = {}
    settings = Settings(db_schema=f"bench_{name}", namespace=name)
    agent = ReActAgent("boss", model=Stamping(), tools=[Tool("look", "Look.", look)])
    async with (
        build_runtime(nats_url, postgres_url, settings=settings) as runtime,
        AgentRuntime(agents=agent, runtime=runtime, app=APP),
        await nats.connect(nats_url) as line,
    ):
        committer: Any = cast("PostgresStore", runtime.store).commits
        answered = committer._answer_committed

        def committed(unit: Any, *results: Any) -> None:
            now = time.monotonic_ns()
            for seq in range(unit.first.expected + 1, unit.last + 1):
                commits[f"{unit.first.lease.run_id}:{seq}"] = now
            answered(unit, *results)

        committer._answer_committed = committed
        _say("ready")
        while order := (await asyncio.to_thread(sys.stdin.readline)).strip():
            if order == "commits":
                _say(commits)
            for _ in range(0 if order == "commits" else int(order)):
                await asyncio.sleep(PAUSE_S)
                await line.publish(f"{name}.floor", str(time.monotonic_ns()).encode())
            _say("done")


def _say(what: object) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - for the other process


class OtherProcess:
    """The process that executes the runs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @asynccontextmanager
    async def started(cls, namespace: Namespace) -> AsyncIterator[OtherProcess]:
        """Yield one that serves the sessions, and end it."""
        where = (namespace.servers.postgres_url, namespace.servers.nats_url, namespace.name)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.benchmarks.talks_elsewhere",
            *where,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**24,
        )
        try:
            other = cls(process)
            assert await other.heard() == "ready"
            yield other
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()

    async def heard(self) -> Any:
        """Return what it says next."""
        assert self._process.stdout is not None
        return json.loads(await self._process.stdout.readline())

    def tell(self, order: object) -> None:
        """Give it an order, whose answer ends with ``done``."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n".encode())


async def run(servers: Servers, *, scale: float = 1.0) -> None:
    """Print a line for pieces and one for entries, each with core NATS in the same minute."""
    namespace, late = (
        Namespace(servers),
        dict[str, list[int]](floor=[], read=[], delta=[], entry=[]),
    )
    settings = Settings(db_schema=namespace.schema, namespace=namespace.name)
    runtime_context = build_runtime(
        servers.nats_url, servers.postgres_url, settings=settings, serve=False
    )
    async with (
        OtherProcess.started(namespace) as other,
        runtime_context as runtime,
        AgentRuntime(runtime=runtime, app=APP) as talks,
    ):
        for _ in range(max(1, round(ROUNDS * scale))):
            runs = 1 + max(1, round(RUNS * scale))
            await _floor(namespace, other, runs * CALLS * PIECES, late)
            await _read(talks, other, runs, late)
    floor, read = _percentiles(late["floor"]), _percentiles(late["read"])
    for what, goal in (("delta", 3), ("entry", 5)):
        ours = _percentiles(late[what])
        report(
            benchmark=f"talks_elsewhere_{what}",
            count=len(late[what]),
            **{f"{name}_ms": ms for name, ms in ours.items()},
            **{f"floor_{name}_ms": ms for name, ms in floor.items()},
            **{f"floor_with_read_{name}_ms": ms for name, ms in read.items()},
            **{f"times_{name}": round(ours[name] / floor[name], 2) for name in ours},
            ratio=round(floor["p50"] / ours["p50"], 3),
            goal_times=goal,
        )


def _percentiles(late: list[int]) -> dict[str, float]:
    cut = statistics.quantiles(late, n=100)
    return {"p50": round(cut[49] / 1e6, 3), "p99": round(cut[98] / 1e6, 3)}


async def _floor(
    namespace: Namespace, other: OtherProcess, count: int, late: dict[str, list[int]]
) -> None:
    """Note how late messages of the other process come, and for how long one row is read then."""
    total = len(late["read"]) + count
    rows = await asyncpg.connect(
        namespace.servers.postgres_url, server_settings={"search_path": namespace.schema}
    )

    async def take(message: Any) -> None:
        late["floor"].append(time.monotonic_ns() - int(message.data))
        await rows.fetch(SQL_ENTRIES, "none", 0, 1000)
        late["read"].append(time.monotonic_ns() - int(message.data))

    async with await nats.connect(namespace.servers.nats_url) as line:
        await line.subscribe(f"{namespace.name}.floor", cb=take)
        await line.flush()
        other.tell(count)
        assert await other.heard() == "done"
        while len(late["read"]) < total:  # noqa: ASYNC110 - they come by themselves
            await asyncio.sleep(0.01)
    await rows.close()


async def _read(
    talks: AgentRuntime, other: OtherProcess, runs: int, late: dict[str, list[int]]
) -> None:
    """Read a session's runs, of which the first one warms up."""
    session = f"s{time.monotonic_ns()}"
    arrival_times: dict[str, int] = {}
    async with aclosing(talks.tail_session(session)) as events:
        for n in range(runs):
            await talks.start("go", session_id=session)
            async for event in events:
                now = time.monotonic_ns()
                if n and event.type == "text_delta":
                    late["delta"] += [now - int(piece) for piece in _texts(event)]
                if n and event.seq >= 0:
                    arrival_times.setdefault(f"{event.run_id}:{event.seq}", now)
                if event.type in ("run_completed", "run_failed"):
                    break
    other.tell("commits")
    commits = await other.heard()
    assert await other.heard() == "done"
    late["entry"] += [now - commits[key] for key, now in arrival_times.items()]


def _texts(event: SessionEvent) -> list[str]:
    payload: Any = event.payload
    return str(payload["text"]).split()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
