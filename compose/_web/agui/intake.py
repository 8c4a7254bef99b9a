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
        said: The user's message. None if the last message is not a user's, or the input resumes interrupts.
        resume: Answers to interrupts.
        answers: The results of tools at the end of the messages.
        messages: All messages, as received.
    """

    thread_id: str
    run_id: str
    said: UserMessage | None
    resume: tuple[ResumeEntry, ...]
    answers: tuple[ToolAnswer, ...]
    messages: tuple[Message, ...]

    @property
    def known_messages(self) -> frozenset[str]:
        """Ids of messages that the client has."""
        return frozenset(one.id for one in self.messages)

    @property
    def known_results(self) -> frozenset[str]:
        """Ids of tool calls whose results the client has."""
        return frozenset(one.tool_call_id for one in self.messages if isinstance(one, ToolMessage))

    @property
    def before(self) -> tuple[str, ...]:
        """Ids of the messages before the user's last one, in reverse order."""
        earlier = self.messages[:-1] if self.said is not None else self.messages
        return tuple(one.id for one in reversed(earlier))


def read_input(given: RunAgentInput) -> AguiInput:
    """Validate an input.

    Raises:
        InvalidTextError: The run id is not valid as the id of a message.
        ProblemError: Another part of the input is not valid.
    """
    check_name_of("runId", given.run_id)
    if not given.run_id:
        raise _invalid("runId", "an empty text is not an id")
    messages = tuple(given.messages)
    last = messages[-1] if messages else None
    resume = tuple(given.resume or ())
    if len({one.interrupt_id for one in resume}) < len(resume):
        raise _invalid("resume", "an interrupt is answered twice")
    tail = takewhile(lambda one: isinstance(one, ToolMessage), reversed(messages))
    answers = [_answer_of(one) for one in tail if isinstance(one, ToolMessage)]
    said = None
    if isinstance(last, UserInput) and not resume:
        said = UserMessage(
            content=_blocks_of(last), id=given.run_id, client=_client_of(given) or None
        )
    return AguiInput(
        given.thread_id, given.run_id, said, resume, tuple(reversed(answers)), messages
    )


def _client_of(given: RunAgentInput) -> dict[str, JsonValue]:
    """Return the client's data of a message: tools, and context, state and properties for the agent's code."""
    context = [{"description": one.description, "value": one.value} for one in given.context or ()]
    more: dict[str, Any] = {
        "tools": _tools_of(given.tools or ()),
        "context": context,
        "state": given.state,
        "forwarded_props": given.forwarded_props,
    }
    return {name: value for name, value in more.items() if value not in (None, [], {})}


def _tools_of(tools: Sequence[ClientTool]) -> list[dict[str, Any]]:
    if len(tools) > MAX_TOOLS:
        raise _invalid("tools", f"{len(tools)} tools are too many: send at most {MAX_TOOLS}")
    names = [one.name for one in tools]
    for name in names:
        if not _TOOL_NAME.fullmatch(name):
            raise _invalid("tools", f"{name[:80]!r} is not a tool name: {_TOOL_NAME.pattern}")
    if len(set(names)) < len(names):
        raise _invalid("tools", "two tools have the same name")
    return [_tool_of(one) for one in tools]


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
    if all(isinstance(one, TextPart) and not one.text.strip() for one in content):
        raise _invalid("messages", "the last message is blank")
    return tuple(_block_of(one) for one in content)


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
        if not all(isinstance(one, TextPart) for one in content):
            raise _invalid("messages", "the result of a tool can have parts of type text only")
        content = "".join(one.text for one in content if isinstance(one, TextPart))
    return ToolAnswer(message.tool_call_id, content, message.error)


def _invalid(where: str, problem: str) -> ProblemError:
    found = [{"where": f"body.{where}", "problem": problem}]
    return ProblemError(HttpProblem(422, "invalid", f"body.{where}: {problem}", errors=found))
