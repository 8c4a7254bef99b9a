"""`@agent("type")`: a coroutine function as an agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from actors._kernel.agent.agent import MAX_MESSAGES
from actors._kernel.agent.message import Message
from actors._kernel.agent.models import LLMClient
from actors._kernel.agent.tools import Tool
from actors._kernel.runtime.ids import DEFAULT_TENANT, AgentId
from actors._kernel.runtime.scheduler import RetryPolicy
from actors._runtime.registry import FunctionAgent
from actors._runtime.verbs.run_context import RunContext


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
    batch: int = MAX_MESSAGES,
    input: Any = None,  # noqa: A002 - as the attribute of an agent class is called
    output: Any = None,
) -> Callable[[Callable[[RunContext, list[Message]], Awaitable[Any]]], FunctionAgent]:
    """Turn ``async def fn(ctx, inbox)`` into the agent ``type_/key``.

    Args:
        type_: The agent's type.
        key: The agent's key within its type.
        tenant: The agent's tenant.
        model: The model for `ctx.llm`.
        tools: The tools for `ctx.tool`.
        version: Version of the code; recorded with each run.
        deadline_s: Seconds one attempt may take.
        retry: Retry policy of its runs, unless the call that starts a run gives one.
        batch: Maximum number of waiting messages that one run gets; 1: each has a run of its own.
        input: Type of a message's payload, for `callboard describe`; nothing is checked by it.
        output: Type of what it returns; the function's return annotation when left out.
    """
    types = {"input": input, "output": output}
    schemas = {
        name: type_of_value for name, type_of_value in types.items() if type_of_value is not None
    }

    def decorate(fn: Callable[[RunContext, list[Message]], Awaitable[Any]]) -> FunctionAgent:
        return FunctionAgent(
            AgentId(type_, key, tenant),
            fn,
            model=model,
            tools=tools,
            version=version,
            deadline_s=deadline_s,
            retry=retry,
            batch=batch,
            schemas=schemas,
        )

    return decorate
