"""The body of a chat completion, as the provider behind the server accepts it.

A conversation may have turns that its provider refuses: a blank text, an id of another provider's call, a tool
that does not exist. Each later request of the run would be refused, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from actors.context.fitting import (
    EARLIER,
    EMPTY_MESSAGE,
    NO_OUTPUT,
    CallIds,
    ProviderRules,
    by_sent_name,
    fitted_name,
    names_for,
    rules_of,
)
from actors.context.repair import repaired
from actors.kernel.agent.message import ChatMessage, ContentBlock
from actors.kernel.agent.models import GenerationOptions


def chat_request(
    messages: Sequence[ChatMessage], options: GenerationOptions, model: str, provider: str | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the body, and our names of tools by those of the provider that differ from them.

    If `provider` is None or not known, the body keeps the strictest common rules.
    """
    rules, chat = rules_of((provider or "").lower()), repaired(messages)
    names = names_for(rules, (tool.name for tool in options.tools), _called(chat))
    rows = _Rows(rules, names)
    system = options.system_instructions
    if system and system.strip():
        rows.add({"role": "system", "content": system})
    for message in chat:
        rows.add_message(message)
    body = {**options.extra, "model": model, "messages": rows.ended()}
    body |= _settings(options, rules, names)
    return body | ({"provider": provider} if provider else {}), by_sent_name(names)


def _settings(
    options: GenerationOptions, rules: ProviderRules, names: Mapping[str, str]
) -> dict[str, Any]:
    schema, tools = options.response_format, []
    choice: Any = options.tool_choice
    if choice not in {None, "auto", "none", "required"}:
        choice = {"type": "function", "function": {"name": names.get(choice, choice)}}
    for tool in options.tools:
        function = {**tool.model_dump(), "name": names[tool.name]}
        tools.append({"type": "function", "function": function})
    settings: dict[str, Any] = {
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
        "stop": list(options.stop) or None,
        "tools": tools or None,
        "tool_choice": choice,
    }
    if schema:
        name = fitted_name(str(schema.get("title") or "answer"), rules)
        settings["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": name, "schema": schema},
        }
    return {name: value for name, value in settings.items() if value is not None}


class _Rows:
    """The messages of one request, in the order of the conversation."""

    def __init__(self, rules: ProviderRules, names: Mapping[str, str]) -> None:
        self._rules, self._names = rules, names
        self._ids = CallIds(rules)
        self._rows: list[dict[str, Any]] = []

    def add_message(self, message: ChatMessage) -> None:
        """Add the rows of a message. A message of the user has one, also if it says nothing."""
        if message.role == "tool":
            for block in message.content:
                if block.type == "tool_result":
                    self.add(self._result(block))
            return
        text = message.text
        if not self._rules.takes_blank_text and not text.strip():
            text = ""
        urls = [
            (block.model_extra or {}).get("url")
            for block in message.content
            if block.type == "image"
        ]
        images = [url for url in urls if isinstance(url, str)]
        calls = _blocks(message, "tool_call") if message.role == "assistant" else []
        if message.role == "user" and not text and not images:
            text = EMPTY_MESSAGE
        if not (text or images or calls):
            return
        row: dict[str, Any] = {"role": message.role, "content": text or None}
        if images:
            parts = [{"type": "image_url", "image_url": {"url": url}} for url in images]
            row["content"] = ([{"type": "text", "text": text}] if text else []) + parts
        if message.role == "assistant":
            self._ids.next_answer()
        if calls:
            row["tool_calls"] = [self._call(call) for call in calls]
        self.add(row)

    def add(self, row: dict[str, Any]) -> None:
        """Add a row. If the provider takes no two turns of one role in a row, they become one."""
        last: dict[str, Any] = self._rows[-1] if self._rows else {"role": None}
        is_one = not self._rules.takes_equal_roles and row["role"] in {"user", "assistant"}
        if not is_one or last["role"] != row["role"]:
            self._rows.append(row)
            return
        last["content"] = _joined(last["content"], row["content"])
        if calls := [*last.get("tool_calls", ()), *row.get("tool_calls", ())]:
            last["tool_calls"] = calls

    def ended(self) -> list[dict[str, Any]]:
        """Return all rows. The first turn is of the user, if the provider wants that."""
        start = next((n for n, row in enumerate(self._rows) if row["role"] != "system"), None)
        if not self._rules.takes_first_answer:
            if start is None:
                self._rows.append({"role": "user", "content": EMPTY_MESSAGE})
            elif self._rows[start]["role"] == "assistant":
                self._rows.insert(start, {"role": "user", "content": EARLIER})
        last = self._rows[-1] if self._rows else {}
        if not self._rules.takes_blank_text and last.get("role") == "assistant":
            last["content"] = last["content"] and last["content"].rstrip()
        return self._rows

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        name, id_ = str(call.get("name") or ""), str(call.get("id") or "")
        arguments = json.dumps(call.get("arguments") or {}, ensure_ascii=False)
        function = {"name": self._names[name], "arguments": arguments}
        return {"id": self._ids.of_call(id_), "type": "function", "function": function}

    def _result(self, block: ContentBlock) -> dict[str, Any]:
        text, id_ = block.text or "", str((block.model_extra or {}).get("id") or "")
        if not self._rules.takes_blank_result and not text.strip():
            text = NO_OUTPUT
        return {"role": "tool", "tool_call_id": self._ids.of_result(id_), "content": text}


def _joined(before: Any, after: Any) -> Any:
    """Return the content of two turns as one: a text, or parts if one of them has parts."""
    if not before or not after:
        return before or after
    if isinstance(before, str) and isinstance(after, str):
        return f"{before}\n\n{after}"
    parts: list[Any] = []
    for content in (before, after):
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return parts


def _called(messages: Iterable[ChatMessage]) -> list[str]:
    return [
        str(call.get("name") or "")
        for message in messages
        if message.role == "assistant"
        for call in _blocks(message, "tool_call")
    ]


def _blocks(message: ChatMessage, kind: str) -> list[Mapping[str, Any]]:
    return [block.model_extra or {} for block in message.content if block.type == kind]
