"""Tools of a run's client: a call is a question to it."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from actors.kernel.agent.tools import InvocationResult, ToolSpec
from actors.runtime.context.call import RunState
from actors.runtime.context.conversation.chat import OUTPUT_TOOL
from actors.runtime.context.model_calls import ToolCalls
from actors.runtime.context.question import Questions


class ToolsOfChat:
    """The tools of one execution of a run: those of its agent, and those that came with its messages.

    A tool of the agent hides one of the same name that came with a message.
    """

    def __init__(self, run: RunState, questions: Questions, own: ToolCalls) -> None:
        self._questions, self._own = questions, own
        taken = {OUTPUT_TOOL, *(spec.name for spec in own.specs)}
        self._given = {one.name: one for one in run.client_tools if one.name not in taken}

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as a model sees them."""
        return (*self._own.specs, *self._given.values())

    async def call(self, name: str, arguments: dict[str, Any], call_id: str) -> InvocationResult:
        """Call a tool. One of the client waits, as rows only if it takes long, for the client's result."""
        if name not in self._given:
            return await self._own.call(name, arguments, call_id)
        return _result_of(await self._questions.client_tool(call_id, name, arguments), name)


def _result_of(payload: Any, name: str) -> InvocationResult:
    try:
        return InvocationResult.model_validate(payload)
    except ValidationError:
        text = f"the client gave no result of tool {name!r} that can be read"
        return InvocationResult(status="error", text=text)
