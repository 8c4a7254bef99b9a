"""The files that a walk through the product passes: `python -m tests.benchmarks.walks [NAME …] [--files]`.

A profile hook sees every function that is called while the walk runs, on any thread, and counts the product's
own files. Each walk is warm: the same has run before. Servers are embedded, as in the benchmarks.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import nats
from typing_extensions import override

from actors.workflow import FlowRuns, Flows, StepPlan, WorkflowSpec
from compose._assembly.local import local_servers
from tests.benchmarks import http, outside
from tests.benchmarks.bench import TYPE, agent_id, open_runtime, report
from tests.benchmarks.windows import Talker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import FrameType

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId
    from actors.workflow import RunState

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("actors", "broker", "persistence", "compose")
WARM: Final = 2
"""Walks before the one that is counted: connections are open, statements are prepared."""


class Passed:
    """Files of the product in which a function was called, in the order of the first calls."""

    def __init__(self) -> None:
        self._files: dict[str, None] = {}

    def start(self) -> None:
        """Begin to look, on this thread and on those that start later."""
        self._files.clear()
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    def stop(self) -> list[str]:
        """Look no more. Return the paths in the repository."""
        sys.setprofile(None)
        threading.setprofile(None)
        paths = (Path(file) for file in self._files if file.startswith(str(ROOT)))
        names = (path.relative_to(ROOT) for path in paths)
        return [str(name) for name in names if name.parts[0] in PACKAGES]

    @contextmanager
    def look(self) -> Iterator[list[str]]:
        """Count within a block: the list is filled at its end."""
        files: list[str] = []
        self.start()
        try:
            yield files
        finally:
            files += self.stop()

    def _see(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            self._files[frame.f_code.co_filename] = None


PASSED: Final = Passed()


class Walker(Talker):
    """An agent that does what its message names, and looks at it alone."""

    files: list[str]

    @override
    async def run(self, ctx: Any, inbox: list[Message]) -> None:
        """Do a step, or ask a model."""
        with PASSED.look() as files:
            if inbox[0].payload == "step":
                await ctx.step("s", _value)
            else:
                await ctx.generate("hello")
        Walker.files = files


class Receiver:
    """An agent whose code ends the walk of a message."""

    files: list[str]
    arrived = asyncio.Event()

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: Any, inbox: list[Message]) -> None:
        """Look no more: the message is here."""
        del ctx, inbox
        Receiver.files = PASSED.stop()
        Receiver.arrived.set()


async def _value() -> int:
    return 1


async def _in_a_run(servers: outside.Servers, order: str) -> list[str]:
    async with open_runtime(servers.postgres_url) as runtime:
        await runtime.register_type(TYPE, Walker)
        for number in range(WARM + 1):
            await runtime.result(await runtime.submit(agent_id(number), order))
    return Walker.files


async def step(servers: outside.Servers) -> list[str]:
    """From the call of `ctx.step` until it returns: the result is durable with the next flush."""
    return await _in_a_run(servers, "step")


async def generate(servers: outside.Servers) -> list[str]:
    """From the call of `ctx.generate` until it returns."""
    return await _in_a_run(servers, "generate")


async def message(servers: outside.Servers) -> list[str]:
    """From a publish of another service until the agent's code is called."""
    namespace = outside.Namespace(servers)
    async with outside.host(namespace, Receiver):
        client = await nats.connect(servers.nats_url, connect_timeout=20)
        for number in range(WARM + 1):
            agent = agent_id(number)
            PASSED.start()
            await client.request(
                namespace.subjects.external(agent, outside.PUBLISHER), outside.BODY, timeout=30
            )
            await asyncio.wait_for(Receiver.arrived.wait(), 60)
            Receiver.arrived.clear()
        await client.close()
    return Receiver.files


async def http_turn(servers: outside.Servers) -> list[str]:
    """From a request that starts a turn until the end of its stream of events, all in one process."""
    files: list[str] = []
    async with http.served(servers.postgres_url) as server:
        await http.make_session(server, "walk")
        for _ in range(WARM + 1):
            with PASSED.look() as files:
                await http.talk(server, "walk", 1)
    return files


def _node(name: str, next_node: str | None) -> Callable[[RunState, Any], StepPlan]:
    def act(_run: RunState, _ctx: Any) -> StepPlan:
        if next_node is None:
            return StepPlan(name, complete_output={"done": True})
        return StepPlan(name, next_node=next_node)

    return act


async def graph(servers: outside.Servers) -> list[str]:
    """From the start of a run of three nodes on a host until its result."""
    files: list[str] = []
    nodes = {"a": _node("a", "b"), "b": _node("b", "c"), "c": _node("c", None)}
    async with open_runtime(servers.postgres_url) as runtime:
        await Flows(TYPE, [WorkflowSpec("three", "a", nodes)]).register(runtime)
        runs = FlowRuns(runtime, TYPE)
        for _ in range(WARM + 1):
            with PASSED.look() as files:
                await runtime.result(await runs.start("three"))
    return files


WALKS: Final[dict[str, Callable[[outside.Servers], Awaitable[list[str]]]]] = {
    "step": step,
    "message": message,
    "generate": generate,
    "http_turn": http_turn,
    "graph": graph,
}


async def run(names: list[str], *, shows_files: bool) -> None:
    """Play walks one after the other, and print a line for each."""
    with tempfile.TemporaryDirectory(prefix="callboard-walks-") as folder:
        async with local_servers(Path(folder) / "servers") as local:
            servers = outside.Servers(local.postgres_url, local.nats_url)
            for name in names:
                files = await WALKS[name](servers)
                report(walk=name, files=len(files), **({"passed": files} if shows_files else {}))


def main() -> None:
    """Play the named walks, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*WALKS, []], help="default: all")
    parser.add_argument("--files", action="store_true", help="print the files, too")
    options = parser.parse_args()
    asyncio.run(run(options.names or list(WALKS), shows_files=options.files))


if __name__ == "__main__":
    main()
