"""Chat messages as pydantic-ai's, and back: nothing is lost on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    CompactionPart,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from actors import ChatMessage, ContentBlock
from actors._kernel.agent.models import LLMResponse
from compose._models.messages import blocks_of, messages_of, model_messages, response_of

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
WORD = st.text("abcxyz-_1", min_size=1, max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORD, inner, max_size=2),
    max_leaves=4,
)
OBJECT = st.dictionaries(WORD, JSON, max_size=3)
PROVIDER = st.fixed_dictionaries(
    {"provider_name": st.sampled_from(["anthropic", "openai"])},
    optional={
        "id": WORD,
        "provider_details": st.dictionaries(WORD, JSON, min_size=1, max_size=2),
        "provider_url": WORD,
        "canonical_system": WORD,
    },
)


def block(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[ContentBlock]:
    """Blocks of one type with these fields."""
    return st.fixed_dictionaries({"type": st.just(kind), **fields}).map(ContentBlock.model_validate)


ANSWERED = st.one_of(
    block("text", text=TEXT), block("tool_call", id=WORD, name=WORD, arguments=OBJECT)
)
TOLD = st.one_of(
    block("reasoning", text=TEXT, signature=WORD, provider=PROVIDER),
    block("tool_call", id=WORD, name=WORD, invalid_arguments=st.just("{"), arguments=st.just({})),
)
SENT = st.one_of(
    block("text", text=TEXT),
    block("image", url=st.just("https://example.org/a.png")),
    block("image", data=st.just("aGk="), media_type=st.just("image/png")),
    block("tool_result", id=WORD, name=WORD, text=TEXT, status=st.sampled_from(["ok", "error"])),
    block("tool_result", id=WORD, name=WORD, structured=JSON, artifact_ref=WORD),
    block("cache_point", ttl=st.sampled_from(["5m", "1h"])),
)
UNKNOWN = st.builds(
    lambda kind, text, more: ContentBlock.model_validate(
        {**more, "type": f"x-{kind}", "text": text}
    ),
    WORD,
    st.none() | TEXT,
    OBJECT,
)
MESSAGE = st.builds(
    ChatMessage,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=st.lists(ANSWERED | TOLD | SENT | UNKNOWN, max_size=4),
    name=st.none() | WORD,
    metadata=st.dictionaries(WORD, TEXT, max_size=2),
)


@settings(max_examples=60)
@given(st.lists(MESSAGE, max_size=5))
def test_chat_messages_come_back_equal(messages: list[ChatMessage]) -> None:
    """Names, metadata, unknown blocks and their order included; also from JSON."""
    sent = model_messages(messages)
    stored = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(sent))

    assert messages_of(sent) == messages
    assert messages_of(stored) == messages


@settings(max_examples=60)
@given(st.lists(ANSWERED, max_size=4, unique_by=lambda block: (block.model_extra or {}).get("id")))
def test_an_answer_is_in_its_parts(blocks: list[ContentBlock]) -> None:
    """They come back from what a provider is sent alone."""
    response = replace(response_of(blocks), metadata=None)

    assert blocks_of(response) == blocks


@settings(max_examples=60)
@given(TOLD)
def test_data_of_a_provider_is_in_the_parts(block: ContentBlock) -> None:
    """Signatures, ids and details; arguments that are no JSON as they came."""
    response = replace(response_of([block]), metadata=None)

    [again] = blocks_of(response)

    given_extra, extra = block.model_extra or {}, again.model_extra or {}
    assert (again.text, extra.get("signature")) == (block.text, given_extra.get("signature"))
    assert extra.get("invalid_arguments") == given_extra.get("invalid_arguments")
    assert extra.get("provider") == given_extra.get("provider")


PARTS = [
    TextPart("hello"),
    TextPart("hello", id="m1", provider_name="openai", provider_details={"phase": "final"}),
    ThinkingPart("hm", signature="s", provider_name="anthropic"),
    ThinkingPart("", id="redacted_thinking", signature="s", provider_name="anthropic"),
    ThinkingPart("hm", id="rs_1", provider_name="openai", provider_details={"raw_content": ["x"]}),
    ToolCallPart("book", {"day": 1}, "c1"),
    ToolCallPart("book", {}, "c1", id="fc_1", provider_name="openai"),
    ToolCallPart("book", "{no json", "c1"),
    NativeToolCallPart("web_search", {"query": "x"}, "n1", provider_name="anthropic"),
    NativeToolReturnPart("web_search", {"found": [1]}, "n1", provider_name="anthropic"),
    FilePart(BinaryContent(b"png", media_type="image/png"), provider_name="google"),
    CompactionPart(content="short", provider_name="anthropic"),
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.part_kind)
def test_a_provider_gets_its_own_parts_again(part: Any) -> None:
    """Through a log, which holds JSON."""
    response = ModelResponse(
        [part], provider_name=part.provider_name, provider_url="u", canonical_system="c"
    )
    recorded = LLMResponse(content=blocks_of(response)).model_dump(mode="json")

    again = response_of(LLMResponse.model_validate(recorded).content)

    dumped = [
        cast("Any", ModelMessagesTypeAdapter.dump_python([message], mode="json"))[0]
        for message in (response, again)
    ]
    for message in dumped:
        for part_json in message["parts"]:
            part_json.pop("timestamp", None)
    assert dumped[1]["parts"] == dumped[0]["parts"]
    if (part.provider_name, part.part_kind) != (None, "text") and part.provider_name:
        assert (again.provider_name, again.canonical_system) == (part.provider_name, "c")


def test_results_of_one_answer_are_one_message() -> None:
    """Providers refuse an answer whose results come in several."""
    result = {"type": "tool_result", "name": "book", "text": "ok"}
    messages = [
        ChatMessage.of("user", "go"),
        ChatMessage(role="assistant", content=[ContentBlock(type="text", text="calling")]),
        *(
            ChatMessage(role="tool", content=[ContentBlock.model_validate({**result, "id": id_})])
            for id_ in ("1", "2")
        ),
        ChatMessage.of("user", "and?"),
    ]

    first, answer, last = model_messages(messages)

    assert isinstance(answer, ModelResponse)
    assert [part.part_kind for part in first.parts] == ["user-prompt"]
    assert [part.part_kind for part in last.parts] == ["tool-return", "tool-return", "user-prompt"]
    assert messages_of([first, answer, last]) == messages


@pytest.mark.parametrize(
    ("fields", "content", "outcome"),
    [
        ({"text": "done"}, "done", "success"),
        ({"structured": {"b": 1, "a": [2]}}, '{"a":[2],"b":1}', "success"),
        ({"text": "no", "status": "error"}, "no", "failed"),
        ({"text": "no", "status": "denied"}, "no", "denied"),
        ({"text": "no", "status": "odd"}, "no", "failed"),
        ({}, "", "success"),
    ],
)
def test_a_tool_result_tells_how_it_went(
    fields: dict[str, Any], content: str, outcome: str
) -> None:
    """Text if it has one, else its value as JSON."""
    block = ContentBlock.model_validate({"type": "tool_result", "id": "1", "name": "t", **fields})

    [message] = model_messages([ChatMessage(role="tool", content=[block])])

    [part] = message.parts
    assert isinstance(part, ToolReturnPart)
    assert (part.content, part.outcome, part.tool_call_id) == (content, outcome, "1")


def test_messages_of_other_programs_are_read() -> None:
    """As they were stored by pydantic-ai, without marks of ours."""
    theirs: list[ModelMessage] = [
        ModelRequest([SystemPromptPart("be brief"), UserPromptPart("hi")]),
        ModelResponse([TextPart("hello"), ToolCallPart("book", '{"day": 1}', "c1")]),
        ModelRequest([ToolReturnPart("book", "done", "c1")]),
        ModelRequest([UserPromptPart(["look", ImageUrl("https://example.org/a.png")])]),
    ]

    messages = messages_of(theirs)

    assert [message.role for message in messages] == ["system", "user", "assistant", "tool", "user"]
    assert [message.text for message in messages] == ["be brief", "hi", "hello", "", "look"]
    assert messages[2].content[1].model_extra == {
        "id": "c1",
        "name": "book",
        "arguments": {"day": 1},
    }
    assert messages[3].content[0].text == "done"
    assert messages[4].content[1].type == "image"


def test_ids_of_calls_are_unique_within_an_answer() -> None:
    """Each call has a result of its own, also if the model numbers badly."""
    calls = [ToolCallPart("book", {"n": n}, id_) for n, id_ in enumerate(["1", "1", "1~2", ""])]

    response = LLMResponse(content=blocks_of(ModelResponse(calls)))

    assert [call.id for call in response.tool_calls] == ["1", "1~2", "1~2~2", "call"]
    assert [call.arguments for call in response.tool_calls] == [{"n": n} for n in range(4)]


@pytest.mark.parametrize("args", ["{", "[1]", "null", '"x"', "{'a': 1}"])
def test_arguments_that_are_no_json_object_are_kept_as_text(args: str) -> None:
    """The call has none, and the text stands beside it."""
    [block] = blocks_of(ModelResponse([ToolCallPart("book", args, "1")]))

    assert block.model_extra == {
        "id": "1",
        "name": "book",
        "arguments": {},
        "invalid_arguments": args,
    }


def test_odd_characters_of_an_answer_are_replaced() -> None:
    """No log keeps NUL or half a surrogate pair; two halves are their character."""
    parts: list[ModelResponsePart] = [
        TextPart("a\x00b\ud83d\ude00c\ud800"),
        ToolCallPart("book", {"k\x00": ["\ud800", {"x": "\x00"}]}, "1"),
    ]

    response = LLMResponse(content=blocks_of(ModelResponse(parts)))

    assert response.text == "a\ufffdb\U0001f600c\ufffd"
    assert response.tool_calls[0].arguments == {"k\ufffd": ["\ufffd", {"x": "\ufffd"}]}
