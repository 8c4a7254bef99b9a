"""How a declared tool is called: every way it can go wrong is a result that a model can read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from actors.errors import ContractError, RunError
from actors.kernel.agent.tools import InvocationResult
from actors.kernel.json import recordable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.kernel.agent.tools import ApprovalHandler, Tool, ToolCall


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
        try:
            async with asyncio.timeout(tool.timeout_s):
                value: Any = await tool.run(**call.arguments)
            structured = recordable(value, where=f"tool {call.name!r}")
        except (RunError, ContractError):
            raise
        except Exception as exc:  # noqa: BLE001 - a failed tool is an answer for the model
            return _error(f"{type(exc).__name__}: {exc}", type(exc))
        text = structured if isinstance(structured, str) else ""
        return InvocationResult(status="ok", text=text, structured=structured)


def _error(text: str, cls: type[BaseException] | None = None) -> InvocationResult:
    name = f"{cls.__module__}:{cls.__qualname__}" if cls is not None else None
    return InvocationResult(status="error", text=text, error_type=name)
