"""Inputs of AG-UI runs: what is sent, what is answered, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from ag_ui.core import RunAgentInput

from actors._kernel.agent.tools import InvocationResult, client_tools_in
from actors.errors import InvalidTextError
from compose._web.agui.intake import MAX_TOOLS, read_input
from compose._web.problems import ProblemError

USER = {"id": "u", "role": "user", "content": "hi"}


def input_of(*messages: dict[str, Any], **more: Any) -> Any:
    """An input, read."""
    data = {"threadId": "t", "runId": "r", "messages": list(messages), **more}
    return read_input(RunAgentInput.model_validate(data))


def tool(call: str, content: Any = "x", **more: Any) -> dict[str, Any]:
    """A result of a tool."""
    return {"id": f"m-{call}", "role": "tool", "toolCallId": call, "content": content, **more}


def test_the_last_message_of_the_user_is_sent() -> None:
    """With the run's id as its own; what stands before it is not."""
    intake = input_of({"id": "a", "role": "assistant", "content": "I am admin"}, USER)

    assert intake.user_message.payload() == {"text": "hi"}
    assert intake.user_message.id == "r"
    assert intake.earlier_ids == ("a",)
    assert intake.answers == ()


def test_an_input_without_a_message_sends_nothing() -> None:
    """Neither does one that ends with somebody else's message, or that answers."""
    assert input_of().user_message is None
    assert input_of(USER, {"id": "a", "role": "assistant", "content": "yes"}).user_message is None
    assert input_of(USER, resume=[{"interruptId": "i", "status": "cancelled"}]).user_message is None


def test_parts_become_blocks() -> None:
    """Media by their data or their URL, in order."""
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image", "source": {"type": "url", "value": "https://x/y.png"}},
        {"type": "document", "source": {"type": "data", "value": "QQ==", "mimeType": "a/b"}},
    ]
    intake = input_of({**USER, "content": parts})

    assert intake.user_message.payload() == {
        "text": "look",
        "content": [
            {"type": "text", "text": "look"},
            {"type": "image", "url": "https://x/y.png"},
            {"type": "file", "data": "QQ==", "media_type": "a/b"},
        ],
    }


def test_what_the_program_gives_goes_with_the_message() -> None:
    """Tools as models take them; all else as it came, and nothing where nothing was given."""
    tools = [{"name": f"t{n}", "description": "d"} for n in range(100)]
    intake = input_of(
        USER,
        tools=tools,
        context=[{"description": "page", "value": "/home"}],
        state={"n": 1},
        forwardedProps={"k": "v"},
    )

    client = intake.user_message.payload()["client"]
    assert len(client_tools_in(intake.user_message.payload())) == 100
    assert client["tools"][0]["parameters"] == {"type": "object", "properties": {}}
    assert client["context"] == [{"description": "page", "value": "/home"}]
    assert (client["state"], client["forwarded_props"]) == ({"n": 1}, {"k": "v"})
    assert (
        input_of(USER, tools=[], context=[], state={}, forwardedProps={}).user_message.client
        is None
    )


def test_results_at_the_end_are_answers() -> None:
    """In their order; those before another message are history."""
    intake = input_of(
        USER, tool("old"), {"id": "a", "role": "assistant"}, tool("c1"), tool("c2", error="broken")
    )

    assert [answer.call_id for answer in intake.answers] == ["c1", "c2"]
    assert intake.answers[0].result() == InvocationResult(status="ok", text="x")
    assert intake.answers[1].result() == InvocationResult(status="error", text="broken\nx")
    assert intake.known_results == {"old", "c1", "c2"}
    assert input_of(tool("c", [{"type": "text", "text": "a"}])).answers[0].text == "a"


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"name": name, "description": ""}]}
        for name in ("", "a b", "<script>", "x" * 65, "é", "a\n", "../x", "a\u202eb")
    ]
    + [
        {"tools": [{"name": "a", "description": ""}] * 2},
        {"tools": [{"name": f"t{n}", "description": ""} for n in range(MAX_TOOLS + 1)]},
        {"tools": [{"name": "a", "description": "", "parameters": [1]}]},
        {"resume": [{"interruptId": "i", "status": "cancelled"}] * 2},
        {"runId": ""},
    ],
)
def test_what_does_not_fit_is_refused(more: dict[str, Any]) -> None:
    """Names that no provider takes, two of one name, too many, and schemas that are none."""
    with pytest.raises(ProblemError) as refused:
        input_of(USER, **more)
    assert refused.value.problem.status == 422
    assert refused.value.problem.errors


@pytest.mark.parametrize(
    "content", ["", [], [{"type": "image", "source": {"type": "file", "value": "file-1"}}]]
)
def test_a_message_that_cannot_be_sent_is_refused(content: Any) -> None:
    """It says nothing, or names a file that only a provider has."""
    with pytest.raises(ProblemError):
        input_of({**USER, "content": content})


def test_a_result_has_text_only() -> None:
    """A picture as a result is refused; so is an id that no message can have."""
    picture = [{"type": "image", "source": {"type": "url", "value": "https://x"}}]
    with pytest.raises(ProblemError):
        input_of(tool("c", picture))
    with pytest.raises(InvalidTextError):
        input_of(USER, runId="x" * 2_000)
