"""Validation of AG-UI inputs: the user's message, or the answers, and the client's tools."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from ag_ui.core import (
    ContentPart,
    DataSource,
    Message,
    ResumeEntry,
    RunAgentInput,
    TextPart,
    ToolMessage,
    UrlSource,
)
from ag_ui.core import Tool as ClientTool
from ag_ui.core import UserMessage as UserInput
from pydantic import JsonValue

from actors._kernel.agent.message import ContentBlock
from actors._kernel.agent.tools import InvocationResult
from actors._kernel.text import check_name_of
from actors._sessions.artifacts import UserMessage
from compose._web.problems import HttpProblem, ProblemError

MAX_TOOLS: Final = 128
"""Maximum number of tools of a client: models accept no more."""
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
"""Names of tools that model providers accept."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The result of a client's tool. `error` is the reason of a failure, or None."""

    call_id: str
    text: str
    error: str | None

    def result(self) -> InvocationResult:
        """Return the result in the form in which a run receives it."""
        if self.error is None:
            return InvocationResult(status="ok", text=self.text)
        return InvocationResult(status="error", text=f"{self.error}\n{self.text}".strip())


@dataclass(frozen=True, slots=True)
class AguiInput:
    """A validated input.

    Attributes:
        thread_id: The session.
        run_id: The id of the message that starts a new run.
        user_message: The user's message; None if the last one is not a user's, or the input resumes interrupts.
        resume: Answers to interrupts.
        answers: The results of tools at the end of the messages.
        messages: All messages, as received.
    """

    thread_id: str
    run_id: str
    user_message: UserMessage | None
    resume: tuple[ResumeEntry, ...]
    answers: tuple[ToolAnswer, ...]
    messages: tuple[Message, ...]

    @property
    def known_messages(self) -> frozenset[str]:
        """Ids of messages that the client has."""
        return frozenset(message.id for message in self.messages)

    @property
    def known_results(self) -> frozenset[str]:
        """Ids of tool calls whose results the client has."""
        return frozenset(
            message.tool_call_id for message in self.messages if isinstance(message, ToolMessage)
        )

    @property
    def earlier_ids(self) -> tuple[str, ...]:
        """Ids of the messages before the user's last one, in reverse order."""
        earlier_messages = self.messages[:-1] if self.user_message is not None else self.messages
        return tuple(message.id for message in reversed(earlier_messages))


def read_input(body: RunAgentInput) -> AguiInput:
    """Validate an input.

    Raises:
        InvalidTextError: The run id is not valid as the id of a message.
        ProblemError: Another part of the input is not valid.
    """
    check_name_of("runId", body.run_id)
    if not body.run_id:
        raise _invalid("runId", "an empty text is not an id")
    messages = tuple(body.messages)
    last = messages[-1] if messages else None
    resume = tuple(body.resume or ())
    if len({entry.interrupt_id for entry in resume}) < len(resume):
        raise _invalid("resume", "an interrupt is answered twice")
    tail = takewhile(lambda message: isinstance(message, ToolMessage), reversed(messages))
    answers = [_answer_of(message) for message in tail if isinstance(message, ToolMessage)]
    user_message = None
    if isinstance(last, UserInput) and not resume:
        user_message = UserMessage(
            content=_blocks_of(last), id=body.run_id, client=_client_of(body) or None
        )
    return AguiInput(
        body.thread_id, body.run_id, user_message, resume, tuple(reversed(answers)), messages
    )


def _client_of(body: RunAgentInput) -> dict[str, JsonValue]:
    """Return the client's data of a message: tools, and context, state and properties for the agent's code."""
    context = [
        {"description": entry.description, "value": entry.value} for entry in body.context or ()
    ]
    data: dict[str, Any] = {
        "tools": _tools_of(body.tools or ()),
        "context": context,
        "state": body.state,
        "forwarded_props": body.forwarded_props,
    }
    return {name: value for name, value in data.items() if value not in (None, [], {})}


def _tools_of(tools: Sequence[ClientTool]) -> list[dict[str, Any]]:
    if len(tools) > MAX_TOOLS:
        raise _invalid("tools", f"{len(tools)} tools are too many: send at most {MAX_TOOLS}")
    names = [tool.name for tool in tools]
    for name in names:
        if not _TOOL_NAME.fullmatch(name):
            raise _invalid("tools", f"{name[:80]!r} is not a tool name: {_TOOL_NAME.pattern}")
    if len(set(names)) < len(names):
        raise _invalid("tools", "two tools have the same name")
    return [_tool_of(tool) for tool in tools]


def _tool_of(tool: ClientTool) -> dict[str, Any]:
    schema = tool.parameters or {"type": "object", "properties": {}}
    if not isinstance(schema, dict):
        raise _invalid(
            "tools", f"the parameters of {tool.name!r} are not a JSON schema of an object"
        )
    return {"name": tool.name, "description": tool.description, "parameters": schema}


def _blocks_of(message: UserInput) -> tuple[ContentBlock, ...]:
    content = message.content
    if isinstance(content, str):
        content = [TextPart(text=content)] if content else []
    if all(isinstance(part, TextPart) and not part.text.strip() for part in content):
        raise _invalid("messages", "the last message is blank")
    return tuple(_block_of(part) for part in content)


def _block_of(part: ContentPart) -> ContentBlock:
    if isinstance(part, TextPart):
        return ContentBlock(type="text", text=part.text)
    kind, source = "file" if part.type == "document" else part.type, part.source
    data: dict[str, Any] = {"type": kind, "media_type": source.mime_type}
    if isinstance(source, DataSource):
        data["data"] = source.value
    elif isinstance(source, UrlSource):
        data["url"] = source.value
    else:
        raise _invalid("messages", "a file of a provider cannot be sent: give its data or a URL")
    return ContentBlock.model_validate(data)


def _answer_of(message: ToolMessage) -> ToolAnswer:
    content = message.content
    if not isinstance(content, str):
        if not all(isinstance(part, TextPart) for part in content):
            raise _invalid("messages", "the result of a tool can have parts of type text only")
        content = "".join(part.text for part in content if isinstance(part, TextPart))
    return ToolAnswer(message.tool_call_id, content, message.error)


def _invalid(where: str, problem: str) -> ProblemError:
    errors = [{"where": f"body.{where}", "problem": problem}]
    return ProblemError(HttpProblem(422, "invalid", f"body.{where}: {problem}", errors=errors))
