"""`@agent("type")`: a coroutine function as an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.kernel.runtime.ids import DEFAULT_TENANT, AgentId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from actors.kernel.agent.llm import LLMClient
    from actors.kernel.agent.message import Message
    from actors.kernel.agent.tools import Tool
    from actors.kernel.runtime.scheduler import RetryPolicy
    from actors.runtime.context import RunContext


class FunctionAgent:
    """An agent made of one coroutine function ``(ctx, inbox)``. Made by `agent`."""

    def __init__(
        self,
        agent_id: AgentId,
        fn: Callable[[RunContext, list[Message]], Awaitable[Any]],
        *,
        model: LLMClient | None = None,
        tools: Sequence[Tool] = (),
        version: str | None = None,
        deadline_s: float | None = None,
        retry: RetryPolicy | None = None,
        schemas: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = agent_id
        self.model = model
        self.tools = tuple(tools)
        self.version = version
        self.deadline_s = deadline_s
        self.retry = retry
        self.__doc__ = fn.__doc__
        self.__wrapped__ = fn
        vars(self).update(schemas or {})
        self._fn = fn

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Call the function."""
        return await self._fn(ctx, inbox)


def agent(  # noqa: PLR0913 - each is an attribute that an agent may have
    type_: str,
    key: str = "main",
    *,
    tenant: str = DEFAULT_TENANT,
    model: LLMClient | None = None,
    tools: Sequence[Tool] = (),
    version: str | None = None,
    deadline_s: float | None = None,
    retry: RetryPolicy | None = None,
    input: Any = None,  # noqa: A002 - as the attribute of an agent class is called
    output: Any = None,
) -> Callable[[Callable[[RunContext, list[Message]], Awaitable[Any]]], FunctionAgent]:
    """Turn ``async def fn(ctx, inbox)`` into the agent ``type_/key``.

    Args:
        type_: The agent's type.
        key: Which agent of the type.
        tenant: Whose it is.
        model: For `ctx.llm`.
        tools: For `ctx.tool`.
        version: Of the code; recorded with each run.
        deadline_s: Seconds one attempt may take.
        retry: How failures of its runs are retried, where who starts one does not say it.
        input: Type of a message's payload, for `callboard describe`; nothing is checked by it.
        output: Type of what it returns; the function's return annotation when left out.
    """
    given = {"input": input, "output": output}
    schemas = {name: kind for name, kind in given.items() if kind is not None}

    def decorate(fn: Callable[[RunContext, list[Message]], Awaitable[Any]]) -> FunctionAgent:
        return FunctionAgent(
            AgentId(type_, key, tenant), fn, model=model, tools=tools, version=version,
            deadline_s=deadline_s, retry=retry, schemas=schemas,
        )  # fmt: skip

    return decorate
