"""The agent that interprets programs through ctx, and the outside world that its effects touch."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from actors.kernel.agent.message import Message
from actors.kernel.agent.tools import Tool
from actors.kernel.runtime.ids import AgentId
from tests.harness.simloop import EPOCH
from tests.model.program import Interpreter, make_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.model.program import Call, Case, Code

AGENT: AgentId = AgentId("program", "one")
SINK: AgentId = AgentId("sink", "model")


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of an effect, as the outside world saw it.

    Attributes:
        host: The how-many-th host executed it.
        log: What was durable when it began.
    """

    name: str
    number: int
    host: int
    at: float
    log: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class World:
    """Counts executions outside any store and hands out scripted outcomes.

    Attributes:
        host: The host that lives now; what another one does is a fault.
        log: Returns the durable log: kinds and names.
    """

    case: Case
    log: Callable[[], Awaitable[tuple[tuple[str, str], ...]]]
    host: int = 0
    begun: list[Execution] = field(default_factory=list)
    ended: list[Execution] = field(default_factory=list)
    ghosts: list[Execution] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """By name, how often each effect began to execute."""
        counts: dict[str, int] = {}
        for one in self.begun:
            counts[one.name] = counts.get(one.name, 0) + 1
        return counts

    async def execute(self, name: str, host: int) -> Any:
        """Execute the effect once more: wait as scripted, then return or raise as scripted."""
        durable = await self.log()
        number = self.counts().get(name, 0)
        now = asyncio.get_running_loop().time()
        execution = Execution(name, number, host, now, durable)
        if host != self.host:
            self.ghosts.append(execution)
        self.begun.append(execution)
        outcome = self.case.outcome(name.partition("@")[0], number)
        if outcome["d"] > 0:
            await asyncio.sleep(outcome["d"])
        self.ended.append(execution)
        if "err" in outcome:
            raise make_error(outcome["err"], f"{name}#{number}")
        return outcome.get("ok")


class ProgramAgent:
    """Runs its case's program for the message that says so; other messages are only noted."""

    def __init__(self, case: Case, world: World, *, id: AgentId = AGENT) -> None:  # noqa: A002
        self.id = id
        self._case = case
        self._world = world
        self._host = world.host
        self.tools = [
            Tool("idempotent_tool", "", self._use, idempotent=True),
            Tool("at_most_once_tool", "", self._use),
        ]

    async def run(self, ctx: Any, inbox: list[Message]) -> Any:
        """Interpret the program; a run that starts from mail only says what it got."""
        boot = inbox[0].payload
        if isinstance(boot, dict) and "mail" in boot:
            return {"unread": [message.payload for message in inbox]}
        return await self._drive(ctx, Interpreter(self._case.program, boot).main())

    async def _use(self, called: str, what: Any) -> Any:
        return await self._world.execute(called, self._host)

    async def _step(self, name: str, *_args: Any) -> Any:
        return await self._world.execute(name, self._host)

    async def _drive(self, ctx: Any, code: Code) -> Any:
        """Answer the calls of one generator; errors are thrown into it outside any handler."""
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                call = code.send(value) if error is None else code.throw(error)
            except StopIteration as stop:
                return stop.value
            value = error = None
            try:
                value = await getattr(self, f"_{call.verb}_verb")(ctx, call)
            except BaseException as exc:  # noqa: BLE001 - thrown into the code
                error = exc

    async def _step_verb(self, ctx: Any, call: Call) -> Any:
        name, mode, args = call.args
        return await ctx.step(name, self._step, name, *args, effect=mode)

    async def _tool_verb(self, ctx: Any, call: Call) -> Any:
        mode, kwargs = call.args
        name = "idempotent_tool" if mode == "idempotent" else "at_most_once_tool"
        result = await ctx.tool(name, **kwargs)
        return [result.status, result.structured, result.text if result.status != "ok" else ""]

    async def _sleep_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.sleep(call.args[0])

    async def _sleep_until_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.sleep_until(EPOCH + timedelta(seconds=call.args[0]))

    async def _signal_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.sleep_until_signal(call.args[0])

    async def _receive_verb(self, ctx: Any, call: Call) -> Any:
        message = await ctx.receive(timeout=call.args[0])
        return None if message is None else message.payload

    async def _now_verb(self, ctx: Any, _: Call) -> Any:
        now: datetime = await ctx.now()
        return (now - EPOCH).total_seconds()

    async def _random_verb(self, ctx: Any, _: Call) -> Any:
        return await ctx.random()

    async def _uuid_verb(self, ctx: Any, _: Call) -> Any:
        return await ctx.uuid()

    async def _get_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.state.get(call.args[0])

    async def _set_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.state.set(*call.args)

    async def _clear_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.state.clear(call.args[0])

    async def _send_verb(self, ctx: Any, call: Call) -> Any:
        await ctx.send(SINK, call.args[0])

    async def _patched_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.patched(call.args[0])

    async def _check_verb(self, ctx: Any, _: Call) -> Any:
        return ctx.check()

    async def _continue_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.continue_as_new(call.args[0])

    async def _gather_verb(self, ctx: Any, call: Call) -> Any:
        return await ctx.gather(*[self._drive(ctx, code) for code in call.args[0]])

    async def _select_verb(self, ctx: Any, call: Call) -> Any:
        selected = await ctx.select(*[self._drive(ctx, code) for code in call.args[0]])
        return [selected.index, selected.value]

    async def _scope_verb(self, ctx: Any, call: Call) -> Any:
        async with ctx.scope() as scope:
            return await self._drive(ctx, call.args[0](scope))

    async def _start_verb(self, ctx: Any, call: Call) -> Any:
        scope, code = call.args
        return scope.start(self._drive(ctx, code))

    async def _join_verb(self, _: Any, call: Call) -> Any:
        return await call.args[0]

    async def _cancel_verb(self, _: Any, call: Call) -> Any:
        await call.args[0].cancel()
