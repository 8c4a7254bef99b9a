"""How a declared tool is called: every way it can go wrong is a result that a model can read."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from actors.errors import ContractError, RunError
from actors.kernel.agent.tools import ApprovalPolicy, InvocationResult
from actors.kernel.json import recordable
from actors.runtime.error_record import text_of, type_of
from actors.runtime.threads import in_thread, refuse_coroutines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.kernel.agent.tools import ApprovalHandler, Tool, ToolCall, ToolInvoker
    from actors.kernel.runtime.communication import Approval


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """What an agent declares about its tools."""

    tools: tuple[Tool, ...]
    invoker: ToolInvoker
    policy: ApprovalPolicy

    @classmethod
    def of(cls, agent: object) -> Self:
        """Return what this agent declares, with the defaults for what it does not."""
        return cls(
            tools=tuple(getattr(agent, "tools", None) or ()),
            invoker=getattr(agent, "tool_invoker", None) or DirectToolInvoker(),
            policy=getattr(agent, "approval_policy", None) or ApprovalPolicy(),
        )

    def find(self, name: str) -> Tool | None:
        """Return the tool of this name."""
        return next((tool for tool in self.tools if tool.name == name), None)


def denied(name: str, decision: Approval) -> InvocationResult:
    """Return the result of a call that nobody agreed to."""
    comment = f": {decision.comment}" if decision.comment else ""
    said = f"{decision.by} denied it" if decision.by else "nobody decided in time"
    return InvocationResult(status="denied", text=f"tool {name!r} was not called: {said}{comment}")


class DirectToolInvoker:
    """Calls the tool's function in this process. See `ToolInvoker`.

    `TerminalError`, `RetryAfter` and other `RunError`s of a tool are raised: they are about the run.
    """

    async def invoke(
        self,
        call: ToolCall,
        *,
        tools: Sequence[Tool],
        idempotency_key: str,
        approval: ApprovalHandler | None = None,
    ) -> InvocationResult:
        """See `ToolInvoker.invoke`. The key is also `actors.idempotency_key()` inside the tool."""
        tool = next((t for t in tools if t.name == call.name), None)
        if tool is None:
            known = ", ".join(sorted(t.name for t in tools)) or "none"
            return _error(f"tool {call.name!r} is not declared by this agent (declared: {known})")
        limit = asyncio.timeout(tool.timeout_s)
        try:
            async with limit:
                value: Any = await _called(tool, call)
            structured = recordable(value, where=f"tool {call.name!r}")
        except (RunError, ContractError):
            raise
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - a failed tool is an answer for the model
            why = f"tool {call.name!r} took longer than {tool.timeout_s} s"
            said = why if limit.expired() else text_of(exc)
            type_ = type_of(exc)
            name = type_.rpartition(":")[2].rpartition(".")[2]
            return _error(f"{name}: {said}", type_)
        text = structured if isinstance(structured, str) else ""
        return InvocationResult(status="ok", text=text, structured=structured)


async def _called(tool: Tool, call: ToolCall) -> Any:
    if not tool.thread:
        return await tool.run(**call.arguments)
    refuse_coroutines(tool.run, f"tool {tool.name!r}")
    return await in_thread(tool.run, **call.arguments)


def _error(text: str, type_: str | None = None) -> InvocationResult:
    return InvocationResult(status="error", text=text, error_type=type_)
