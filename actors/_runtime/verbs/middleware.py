"""The calls around `agent.run`: middleware, outermost first, and hooks, which only observe."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from actors._kernel.agent.agent import Agent, AgentRunContext, RunMeta
from actors._kernel.agent.hooks import (
    CallNext,
    Hook,
    HookEvent,
    HookKind,
    InvocationContext,
    Middleware,
)
from actors._kernel.agent.message import Message
from actors._kernel.basics import Clock
from actors._kernel.json import JsonValue

_log = logging.getLogger("callboard.context")

HOOK_LIMIT_S: Final = 5.0
"""Time limit of one hook, in seconds."""


async def call_agent(agent: Agent, ctx: AgentRunContext, inbox: list[Message]) -> Any:
    """Call the agent's code, `agent.run`, through its middleware. Return the result of the outermost call."""
    middleware: Any = getattr(agent, "middleware", None)
    if not middleware:
        return await agent.run(ctx, inbox)
    call = InvocationContext(agent, ctx, inbox)
    if hasattr(middleware, "execute"):
        await middleware.execute(call, _final)
    else:
        call_next: CallNext = _final
        for item in reversed(list(middleware)):
            call_next = _link(item, call_next)
        await call_next(call)
    return call.output


async def _final(call: InvocationContext) -> None:
    call.output = await call.agent.run(call.ctx, call.inbox)


def _link(item: Middleware, following: CallNext) -> CallNext:
    async def call_next(call: InvocationContext) -> None:
        await item.process(call, following)

    return call_next


class Hooks:
    """The observers of one agent. Their errors and their delays do not affect a run."""

    def __init__(self, agent: Agent, meta: RunMeta, clock: Clock) -> None:
        self._hooks: Sequence[Hook] = getattr(agent, "hooks", None) or ()
        self._meta = meta
        self._clock = clock

    def __bool__(self) -> bool:
        return bool(self._hooks)

    async def dispatch(
        self,
        kind: HookKind,
        *,
        name: str = "",
        position: str = "",
        data: Mapping[str, JsonValue] | None = None,
    ) -> None:
        """Call every hook, one after the other, each within its time limit."""
        meta = self._meta
        for hook in self._hooks:
            event = HookEvent(
                kind=kind,
                run_id=meta.run_id,
                agent_id=meta.agent_id,
                attempt=meta.attempt,
                at=self._clock.now(),
                name=name,
                position=position,
                data={**(data or {})},
            )
            try:
                async with asyncio.timeout(HOOK_LIMIT_S):
                    await hook(event)
            except BaseException as exc:  # whatever a hook does, the run and the host go on
                task = asyncio.current_task()
                if isinstance(exc, GeneratorExit):
                    raise
                if task is not None and task.cancelling():
                    raise asyncio.CancelledError from exc
                _log.warning("hook failed; the run goes on", extra={"hook": kind}, exc_info=True)
