"""`ctx.generate` beside `ctx.llm`: live at 50 runs at once, and replayed over a session of 2,000 turns."""

from __future__ import annotations

import asyncio
import statistics
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from actors.testing import FunctionModel
from tests.benchmarks.bench import TYPE, agent_id, many, open_runtime, report, rests, woken_s
from tests.benchmarks.windows import Talker, fill

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId, RunId
    from actors._runtime import Runtime

CALLS: Final = 10
AT_ONCE: Final = 50
REPLAYED: Final = 50
LONG: Final = 2_000
ROUNDS: Final = 4


MODEL_S: Final = 0.05
"""Seconds of one answer: hosted models take longer to their first token."""


class Caller(Talker):
    """An agent that calls its model this often, in a conversation of the run's own or in its session."""

    @override
    async def run(self, ctx: Any, inbox: list[Message]) -> None:
        """Ask by the verb that the message names; then perhaps wait for a signal."""
        order: Any = inbox[0].payload
        for _ in range(order["times"]):
            if order["verb"] == "llm":
                await ctx.llm("hello")
            else:
                await ctx.generate("hello", session=order.get("session"))
        if order.get("waits") == "mail":  # for which runs stay in memory
            await ctx.receive()
        elif order.get("waits"):
            await ctx.sleep_until_signal("go")


class SlowCaller(Caller):
    """Its model takes `MODEL_S` to answer."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        super().__init__(id)
        self.model = FunctionModel(_slowly)


async def _slowly(*_: Any) -> str:
    await asyncio.sleep(MODEL_S)
    return "fine"


async def rate(runtime: Runtime, verb: str, *, runs: int, at_once: int, name: str) -> float:
    """Return calls per second of runs submitted and awaited."""

    async def run_agent(index: int) -> None:
        order = {"verb": verb, "times": CALLS, "session": f"{name}{index}"}
        await runtime.result(await runtime.submit(agent_id(f"{verb}{name}{index}"), order))

    return runs * CALLS / await many(run_agent, total=runs, at_once=at_once)


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print a line for the live calls of a model without latency, and one for those of a usual one."""
    await _compared(url, Caller, 0.0, scale=scale)
    await _compared(url, SlowCaller, MODEL_S, scale=scale)


async def _compared(url: str, caller: type[Caller], model_s: float, *, scale: float) -> None:
    at_once = max(2, int(AT_ONCE * min(1.0, 10 * scale)))
    runs = max(at_once, int(400 * scale))
    rates: dict[str, list[float]] = {"llm": [], "generate": []}
    async with open_runtime(url) as runtime:
        await runtime.register_type(TYPE, caller)
        for n in range(ROUNDS):
            for verb in sorted(rates, reverse=n % 2 == 0):
                rates[verb].append(
                    await rate(runtime, verb, runs=runs, at_once=at_once, name=f"r{n}")
                )
    own, least = (statistics.median(rates[verb]) for verb in ("generate", "llm"))
    report(
        benchmark="generates",
        at_once=at_once,
        runs=runs,
        model_ms=round(model_s * 1000),
        generates_per_s=round(own),
        floor_per_s=round(least),
        ratio=round(own / least, 3),
        goal_ratio=0.85 if model_s else None,
    )


async def suspended(runtime: Runtime, verb: str, agent: AgentId, times: int) -> RunId:
    """Return a run that has asked so often and is rows only."""
    run_id = await runtime.submit(agent, {"verb": verb, "times": times, "waits": True})
    await rests(runtime, run_id)
    return run_id


async def replayed(url: str, *, scale: float = 1.0) -> None:
    """Print a line for replays of 50 calls, those with a window over a session of 2,000 turns."""
    times, turns = max(5, int(REPLAYED * min(1.0, 10 * scale))), max(200, int(LONG * scale))
    took: dict[str, list[float]] = {"llm": [], "generate": []}
    async with open_runtime(url, suspend_after=0.0) as runtime:
        await runtime.register_type(TYPE, Caller)
        runs: dict[str, list[RunId]] = {verb: [] for verb in took}
        for n in range(max(3, int(20 * scale))):
            for verb in took:
                agent = agent_id(f"{verb}{n}")
                if verb == "generate":
                    await fill(runtime, agent, turns)
                runs[verb].append(await suspended(runtime, verb, agent, times))
        for n in range(len(runs["llm"])):
            for verb in sorted(took, reverse=n % 2 == 0):
                took[verb].append(await woken_s(runtime, runs[verb][n]))
    own, least = (statistics.median(took[verb]) for verb in ("generate", "llm"))
    report(
        benchmark="replayed_generates",
        calls=times,
        turns=turns,
        ms=round(own * 1000, 2),
        floor_ms=round(least * 1000, 2),
        ratio=round(own / least, 2),
        goal_ratio=1.1,
    )
