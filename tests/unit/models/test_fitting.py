"""Requests that their provider accepts, whatever a conversation holds."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from actors import ChatMessage, ContentBlock, GenerationOptions, ToolSpec
from actors._context.fitting import RULES, STRICT, ProviderRules, by_sent_name, names_for, rules_of
from actors.context import repaired
from compose._models.fitting import called_names, fitted_options, fitted_turns
from compose._models.messages import model_messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_ai.messages import ModelMessage

CLAUDE, OPENAI, MISTRAL = rules_of("anthropic"), rules_of("openai"), rules_of("mistral")
EVERY = [pytest.param(rules, id=name) for name, rules in (*RULES.items(), ("other", STRICT))]
HI = ChatMessage.of("user", "hi")


def answer(*blocks: str | tuple[str, str]) -> ChatMessage:
    """An answer of texts, and of calls as (id, name)."""
    block_fields: list[dict[str, Any]] = [
        {"type": "text", "text": block}
        if isinstance(block, str)
        else {"type": "tool_call", "id": block[0], "name": block[1], "arguments": {}}
        for block in blocks
    ]
    return ChatMessage(
        role="assistant", content=[ContentBlock.model_validate(m) for m in block_fields]
    )


def result(id_: str, text: str = "ok", name: str = "book") -> ChatMessage:
    """A result of a tool."""
    block = {"type": "tool_result", "id": id_, "name": name, "text": text}
    return ChatMessage(role="tool", content=[ContentBlock.model_validate(block)])


def sent(
    chat: Sequence[ChatMessage], rules: ProviderRules, declared: Sequence[str] = ()
) -> list[ModelMessage]:
    """The turns that a provider is sent."""
    messages = model_messages(repaired(chat))
    names = names_for(rules, declared, called_names(messages))
    return fitted_turns(messages, rules, names)


def parts(messages: Sequence[ModelMessage], kind: type[Any]) -> list[Any]:
    """All parts of one kind."""
    return [part for message in messages for part in message.parts if isinstance(part, kind)]


def prompts(messages: Sequence[ModelMessage]) -> list[str]:
    """The texts of the user."""
    texts: list[str] = []
    for part in parts(messages, UserPromptPart):
        content = [part.content] if isinstance(part.content, str) else part.content
        texts += [text for text in content if isinstance(text, str)]
    return texts


@pytest.mark.parametrize("blank", ["", " ", "\n\n"])
def test_a_blank_answer_is_left_out(blank: str) -> None:
    """The turns around it are one request, as if the user had sent two messages."""
    [only] = sent([HI, answer(blank), ChatMessage.of("user", "and?")], CLAUDE)
    [_, called, _] = sent([HI, answer(blank, ("1", "book")), result("1")], CLAUDE)

    assert prompts([only]) == ["hi", "and?"]
    assert [part.part_kind for part in called.parts] == ["tool-call"]


def test_a_provider_that_takes_blank_text_is_sent_it() -> None:
    """What it accepts is not changed; an answer without any text has nothing to send."""
    chat = [ChatMessage.of("user", " "), answer(" "), result("1"), answer("")]

    messages = sent(chat, OPENAI)

    assert prompts(messages) == [" "]
    assert [part.content for part in parts(messages, TextPart)] == [" "]


@pytest.mark.parametrize(
    "message",
    [
        ChatMessage.of("user", " \n"),
        ChatMessage(role="user", content=[]),
        ChatMessage(role="user", content=[ContentBlock(type="hologram")]),
        ChatMessage(role="user", content=answer(("zz", "book")).content),
    ],
)
def test_a_user_who_says_nothing_is_sent_as_such(message: ChatMessage) -> None:
    """Also one whose block stands for a call that no model made: nothing answers it."""
    messages = sent([message], CLAUDE)

    assert prompts(messages) == ["(empty message)"]
    assert not parts(messages, ToolReturnPart)


def test_a_tool_that_gives_nothing_is_sent_as_such() -> None:
    """A result of None and one of no text are the same to a model."""
    chat = [HI, answer(("1", "book")), result("1", " ")]

    assert [part.content for part in parts(sent(chat, CLAUDE), ToolReturnPart)] == ["(no output)"]
    assert [part.content for part in parts(sent(chat, OPENAI), ToolReturnPart)] == [" "]


@pytest.mark.parametrize(
    "odd", ["functions.weather:0", "call_A|fc_B", "chatcmpl-tool-é", "call_0~2", "", "x" * 300]
)
@pytest.mark.parametrize("rules", EVERY)
def test_an_id_that_a_provider_refuses_is_replaced_by_the_same_one_each_time(
    odd: str, rules: ProviderRules
) -> None:
    """Call and result have it; later turns do not change it."""
    chat = [HI, answer((odd, "book")), result(odd)]

    first, later = sent(chat, rules), sent([*chat, answer("done"), HI], rules)

    ids = [part.tool_call_id for part in parts(first, ToolCallPart)]
    assert ids == [part.tool_call_id for part in parts(first, ToolReturnPart)]
    assert ids == [part.tool_call_id for part in parts(later, ToolCallPart)]
    assert rules.call_id.fullmatch(ids[0])


def test_an_id_of_an_earlier_turn_is_replaced() -> None:
    """Models that count from zero in each answer give it again; each result stays with its call."""
    round_ = [answer(("call_0", "book"), ("call_1", "drop")), result("call_0"), result("call_1")]

    messages = sent([HI, *round_, HI, *round_], OPENAI)

    calls = [part.tool_call_id for part in parts(messages, ToolCallPart)]
    assert calls == [part.tool_call_id for part in parts(messages, ToolReturnPart)]
    assert len({*calls}) == 4
    assert calls[:2] == ["call_0", "call_1"]


def test_a_valid_id_stays() -> None:
    """What the provider made itself is its own again."""
    chat = [HI, answer(("toolu_01A-b", "book")), result("toolu_01A-b")]

    assert parts(sent(chat, CLAUDE), ToolCallPart)[0].tool_call_id == "toolu_01A-b"
    assert len(parts(sent(chat, MISTRAL), ToolCallPart)[0].tool_call_id) == 9


@pytest.mark.parametrize("rules", EVERY)
def test_names_that_a_provider_refuses_are_replaced_and_come_back(rules: ProviderRules) -> None:
    """Of declared tools, and of tools that a model made up."""
    declared = ["cal.free", "cal_free", "cal free", "1st", "ok", "x" * 80]

    names = names_for(rules, declared, ["", "<tool>", "ok"])

    back = by_sent_name(names)
    assert len({*names.values()}) == len(names) == 8
    assert all(rules.tool_name.fullmatch(sent_name) for sent_name in names.values())
    assert (names["ok"], names["cal_free"]) == ("ok", "cal_free")
    assert all(back.get(sent_name, sent_name) == name for name, sent_name in names.items())


def test_declared_and_chosen_tools_have_the_names_of_the_turns() -> None:
    """One name for one tool, wherever a request has it."""
    options = GenerationOptions(tools=(ToolSpec(name="cal.free"),), tool_choice="cal.free")
    names = names_for(CLAUDE, ["cal.free"], [])

    fitted = fitted_options(options, names)

    assert (fitted.tools[0].name, fitted.tool_choice) == ("cal_free", "cal_free")
    messages = sent([HI, answer(("1", "cal.free")), result("1")], CLAUDE, ["cal.free"])
    assert parts(messages, ToolCallPart)[0].tool_name == "cal_free"


def test_media_of_a_result_follow_all_results() -> None:
    """Providers refuse anything between them."""
    picture = {"type": "image", "url": "https://example.org/a.png"}
    contents = [*result("1").content, ContentBlock.model_validate(picture)]
    chat = [HI, answer(("1", "see"), ("2", "see")), ChatMessage(role="tool", content=contents)]

    *_, last = sent([*chat, result("2")], CLAUDE)

    assert [part.part_kind for part in last.parts] == ["tool-return", "tool-return", "user-prompt"]


def test_a_conversation_begins_with_its_user() -> None:
    """A window whose beginning was cut may begin with an answer."""
    chat = [ChatMessage.of("system", "be brief"), answer("hello"), HI]

    messages = sent(chat, CLAUDE)

    assert prompts(messages) == ["(earlier turns are left out)", "hi"]
    assert prompts(sent(chat, OPENAI)) == ["hi"]
    assert prompts(sent(chat[:1], CLAUDE)) == ["(empty message)"]


def test_two_messages_of_a_user_are_one_for_a_chat_template() -> None:
    """Templates of open models refuse two turns of one role."""
    chat = [HI, ChatMessage.of("user", "there"), answer("a"), answer("b"), HI]

    messages = sent(chat, STRICT)

    assert prompts(messages) == ["hi\n\nthere", "hi"]
    assert [part.content for part in parts(messages, TextPart)] == ["a", "b"]
    assert len(messages) == 3


def test_an_answer_that_is_to_go_on_ends_without_white_space() -> None:
    """Only the last turn: earlier ones are sent as they were."""
    messages = sent([HI, answer("a "), HI, answer("b \n")], CLAUDE)

    assert [part.content for part in parts(messages, TextPart)] == ["a ", "b"]


def test_a_call_that_was_answered_within_its_turn_is_left_out() -> None:
    """Its result is no block that a provider is sent in an answer."""
    both = [*answer("so", ("1", "search")).content, *result("1").content]

    messages = sent([HI, ChatMessage(role="assistant", content=both), HI], CLAUDE)

    assert [len(message.parts) for message in messages] == [1, 1, 1]
    assert not called_names(messages)


def test_results_have_the_order_of_their_calls() -> None:
    """Some providers go by the order: a call without a result gets one behind the others."""
    chat = [HI, answer("", ("1", "search"), ("2", "book")), result("2", "found")]

    messages = sent(chat, CLAUDE)

    assert [part.tool_call_id for part in parts(messages, ToolReturnPart)] == ["1", "2"]


TEXT = st.sampled_from(["", " ", "\n", "a", "b "])
ID = st.sampled_from(["", "1", "call_0", "a.b:0", "a|b", "é", "y" * 70])
NAME = st.sampled_from(["", "book", "cal.free", "get it", "<t>", "x" * 80])
BLOCK = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, TEXT),
    st.builds(lambda id_, name: {"type": "tool_call", "id": id_, "name": name}, ID, NAME),
    st.builds(lambda id_, text: {"type": "tool_result", "id": id_, "text": text}, ID, TEXT),
    st.just({"type": "hologram"}),
).map(ContentBlock.model_validate)
CHAT = st.lists(
    st.builds(
        ChatMessage,
        role=st.sampled_from(["system", "user", "assistant", "tool"]),
        content=st.lists(BLOCK, max_size=3),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=150)
@given(CHAT, st.sampled_from([*RULES.values(), STRICT]))
def test_any_conversation_becomes_one_that_its_provider_takes(
    chat: list[ChatMessage], rules: ProviderRules
) -> None:
    """Every rule of the table at once."""
    messages = sent(chat, rules)

    calls = [part.tool_call_id for part in parts(messages, ToolCallPart)]
    results = [part.tool_call_id for part in parts(messages, ToolReturnPart)]
    assert sorted(calls) == sorted(results)
    assert len({*calls}) == len(calls)
    assert all(rules.call_id.fullmatch(call_id) for call_id in calls)
    assert all(rules.tool_name.fullmatch(name) for name in called_names(messages))
    texts = [*prompts(messages), *(part.content for part in parts(messages, TextPart))]
    assert rules.takes_blank_text or all(text.strip() for text in texts)
    assert all(m.parts for m in messages)
    dialogue = [m for m in messages if not all(isinstance(p, SystemPromptPart) for p in m.parts)]
    assert rules.takes_first_answer or isinstance(dialogue[0], ModelRequest)
    for before, after in pairwise(messages):
        call_ids = [part.tool_call_id for part in parts([before], ToolCallPart)]
        result_ids = [part.tool_call_id for part in parts([after], ToolReturnPart)]
        assert call_ids == result_ids or not isinstance(before, ModelResponse)
        assert rules.takes_equal_roles or type(before) is not type(after)
