"""An agent that is one function: what `@agent` makes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from actors.kernel.agent.agent import MAX_MESSAGES, AgentRunContext
from actors.kernel.agent.message import Message
from actors.kernel.agent.models import LLMClient
from actors.kernel.agent.tools import Tool
from actors.kernel.runtime.ids import AgentId
from actors.kernel.runtime.scheduler import RetryPolicy


class FunctionAgent:
    """An agent made of one coroutine function ``(ctx, inbox)``. Made by `agent`."""

    def __init__(  # noqa: PLR0913 - as `agent`
        self,
        agent_id: AgentId,
        fn: Callable[[Any, list[Message]], Awaitable[Any]],
        *,
        model: LLMClient | None = None,
        tools: Sequence[Tool] = (),
        version: str | None = None,
        deadline_s: float | None = None,
        retry: RetryPolicy | None = None,
        batch: int = MAX_MESSAGES,
        schemas: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = agent_id
        self.model = model
        self.tools = tuple(tools)
        self.version = version
        self.deadline_s = deadline_s
        self.retry = retry
        self.batch = batch
        self.__doc__ = fn.__doc__
        self.__wrapped__ = fn
        vars(self).update(schemas or {})
        self._fn = fn

    async def run(self, ctx: AgentRunContext, inbox: list[Message]) -> Any:
        """Call the function."""
        return await self._fn(ctx, inbox)
