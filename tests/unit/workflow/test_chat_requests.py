"""A graph's turns are sent to a model behind a server as its provider accepts them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from actors._context.fitting import RULES, rules_of
from actors._workflow.integrations.chat_payload import messages_of, options_of
from actors._workflow.integrations.remote_model import chat_request

ODD: dict[str, Any] = {
    "system_prompt": " ",
    "messages": [
        {"role": "assistant", "content": "\n\n"},
        {"role": "user", "content": " "},
        {
            "role": "assistant",
            "content": " ",
            "tool_calls": [
                {"call_id": "functions.look:0", "name": "get.weather", "arguments": {"a": 1}},
                {"call_id": "call_A|fc_B", "name": "<tool>", "arguments": {}},
                {"call_id": "c3", "name": "", "arguments": {}},
            ],
        },
        {"role": "tool", "tool_call_id": "functions.look:0", "content": ""},
        {"role": "tool", "tool_call_id": "call_A|fc_B", "content": "sun"},
        {"role": "tool", "tool_call_id": "zz", "content": "of no call"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c3", "name": "look"}]},
        {"role": "assistant", "content": "It is sunny. "},
    ],
    "prompt": "",
    "tools": [{"name": "get.weather"}, {"name": "look"}],
    "params": {"tool_choice": "get.weather"},
    "response_schema": {"title": "Weather report", "type": "object"},
}


def sent(payload: dict[str, Any], provider: str | None = None) -> tuple[dict[str, Any], Any]:
    """Return the body of a payload, and our names of tools."""
    return chat_request(messages_of(payload), options_of(payload, ()), "m", provider)


@pytest.mark.parametrize("provider", [None, "Other", *RULES])
def test_odd_turns_become_those_that_their_provider_takes(provider: str | None) -> None:
    """Ids, names and texts keep its rules, each call has one result, and the first turn is a user's."""
    rules = rules_of((provider or "").lower())
    body, names = sent(ODD, provider)
    rows = body["messages"]
    calls = [call for row in rows for call in row.get("tool_calls", ())]
    results = [row for row in rows if row["role"] == "tool"]

    assert [row["tool_call_id"] for row in results] == [call["id"] for call in calls]
    assert len({call["id"] for call in calls}) == len(calls) == 4
    assert all(rules.call_id.fullmatch(call["id"]) for call in calls)
    declared = [tool["function"]["name"] for tool in body["tools"]]
    called = [call["function"]["name"] for call in calls]
    assert all(rules.tool_name.fullmatch(name) for name in (*declared, *called))
    assert called[0] == declared[0] == body["tool_choice"]["function"]["name"]
    assert names.get(called[0], called[0]) == "get.weather"
    assert names[called[1]] == "<tool>"
    assert rules.tool_name.fullmatch(body["response_format"]["json_schema"]["name"])
    for row in rows:
        text = row["content"]
        if row["role"] != "tool":
            assert text is None or text.strip() or rules.takes_blank_text
            assert text or row.get("tool_calls")
        elif not rules.takes_blank_result:
            assert text.strip()
    roles = [row["role"] for row in rows]
    assert roles[0] == "user" or rules.takes_first_answer
    if not rules.takes_equal_roles:
        assert not [role for role, after in pairwise(roles) if role == after != "tool"]


def test_usual_turns_are_sent_as_they_are() -> None:
    """Ids, names and texts, and system texts at their places."""
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turns = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://i"}}]},
    ]
    body, names = sent({"messages": turns, "prompt": "and?"}, "openai")

    assert body["messages"] == [*turns, {"role": "user", "content": "and?"}]
    assert (body["provider"], names) == ("openai", {})


def test_two_turns_of_a_user_are_one_for_a_chat_template() -> None:
    """Texts are joined; with an image they are parts."""
    turns = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert sent({"messages": turns})[0]["messages"] == [{"role": "user", "content": "a\n\nb"}]

    image = {"type": "image_url", "image_url": {"url": "http://i"}}
    turns.append({"role": "user", "content": [image]})  # type: ignore[dict-item]
    (row,) = sent({"messages": turns})[0]["messages"]
    assert row["content"] == [{"type": "text", "text": "a\n\nb"}, image]


def test_a_conversation_of_system_texts_gets_a_turn_of_its_user() -> None:
    """Such a request has nothing to answer for most providers."""
    body, _ = sent({"messages": [{"role": "system", "content": "Say hello."}]})
    assert [row["role"] for row in body["messages"]] == ["system", "user"]
