"""Conversion of a model's answer into content blocks, and back, so that a provider receives its own data again.

Blocks: ``text``; ``reasoning`` with its signature; ``tool_call`` with ``id name arguments``, and
``invalid_arguments`` if the model's text is not a JSON object; ``provider_part`` for any other part, unchanged.
Data that a provider needs back beside the text (ids, signatures, details) is in the block's ``provider``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pydantic import ValidationError
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_core import from_json

from actors.kernel.agent.message import ContentBlock
from compose.models.clean_text import clean_json

_FIELDS: Final = ("id", "provider_name", "provider_details", "citations")
_OF_RESPONSE: Final = ("provider_name", "provider_url", "canonical_system")

BLOCKS: Final = "callboard_blocks"
"""Key of the blocks in a response's metadata, which is never sent."""
PROVIDER: Final = "provider"
PROVIDER_PART: Final = "provider_part"


def blocks_of(response: ModelResponse) -> list[ContentBlock]:
    """Return the answer's blocks, cleaned of characters that a log cannot store, with unique ids of calls.

    The blocks of a response from `response_of` are equal to the blocks that it was made from.
    """
    kept = (response.metadata or {}).get(BLOCKS)
    if kept is not None:
        return [ContentBlock.model_validate(block) for block in kept]
    blocks = [_block(part, response) for part in response.parts]
    return _with_unique_ids([block for block in blocks if block])


def _block(part: ModelResponsePart, response: ModelResponse) -> dict[str, Any]:
    match part:
        case TextPart():
            block: dict[str, Any] = {"type": "text", "text": part.content}
        case ThinkingPart():
            block = {"type": "reasoning", "text": part.content}
            if part.signature:
                block["signature"] = part.signature
        case ToolCallPart():
            block = {"type": "tool_call", "id": part.tool_call_id, "name": part.tool_name}
            block |= _arguments(part.args)
        case _:
            block = {"type": PROVIDER_PART, "part": _dumped(part)}
    return clean_json(block | _provider(part, response))  # type: ignore[no-any-return]


def _arguments(args: object) -> dict[str, Any]:
    if not isinstance(args, str) or not args.strip():
        return {"arguments": args or {}}
    try:
        parsed = from_json(args)
    except ValueError:
        parsed = None
    if isinstance(parsed, dict):
        return {"arguments": parsed}
    return {"arguments": {}, "invalid_arguments": args}


def _provider(part: ModelResponsePart, response: ModelResponse) -> dict[str, Any]:
    """Return the data that only the provider understands; empty if there is none.

    Reasoning always names its provider, because it must not be sent to another one.
    """
    dumped = _dumped(part)
    own = {name: dumped[name] for name in _FIELDS if dumped.get(name) is not None}
    is_plain = set(own) <= {"provider_name"} and isinstance(part, TextPart | ToolCallPart)
    if is_plain:
        return {}
    of_response = {
        name: value for name in _OF_RESPONSE if (value := getattr(response, name)) is not None
    }
    return {PROVIDER: of_response | own}


def _dumped(part: ModelResponsePart) -> dict[str, Any]:
    [dumped] = ModelMessagesTypeAdapter.dump_python([ModelResponse(parts=[part])], mode="json")
    return dict(dumped["parts"][0])


def _with_unique_ids(blocks: list[dict[str, Any]]) -> list[ContentBlock]:
    """Return the blocks. A call with an earlier call's id gets a new id, so that each has its own result."""
    seen: set[str] = set()
    for block in blocks:
        if block["type"] == "tool_call":
            first, n = block["id"] or "call", 1
            block["id"] = first
            while block["id"] in seen:
                n += 1
                block["id"] = f"{first}~{n}"
            seen.add(block["id"])
    return [ContentBlock.model_validate(block) for block in blocks]


def response_of(blocks: Sequence[ContentBlock]) -> ModelResponse:
    """Return the answer that consists of these blocks, for any provider.

    Blocks without a counterpart are kept in `metadata` only.
    """
    dumped = [block.model_dump() for block in blocks]
    providers = [block[PROVIDER] for block in dumped if isinstance(block.get(PROVIDER), dict)]
    of_response = {
        name: providers[0][name] for name in _OF_RESPONSE if providers and name in providers[0]
    }
    made = [part for block in dumped if (part := _part(block)) is not None]
    parts = [valid for part in made if (valid := _valid(part)) is not None]
    return ModelResponse(parts=parts, metadata={BLOCKS: dumped}, **of_response)


def _part(block: dict[str, Any]) -> dict[str, Any] | None:
    provider = block.get(PROVIDER)
    given = provider if isinstance(provider, dict) else {}
    own = {name: given[name] for name in _FIELDS if name in given}
    made = _MADE.get(block["type"])
    return None if made is None else made(block, own)


def _text(block: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    return {"part_kind": "text", "content": block.get("text") or "", **own}


def _thinking(block: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    own.pop("citations", None)
    signature = block.get("signature")
    return {
        "part_kind": "thinking",
        "content": block.get("text") or "",
        "signature": signature,
        **own,
    }


def _call(block: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    own.pop("citations", None)
    args = block.get("invalid_arguments") or block.get("arguments")
    return {
        "part_kind": "tool-call",
        "tool_name": str(block.get("name") or ""),
        "tool_call_id": str(block.get("id") or ""),
        "args": args if isinstance(args, str | dict) else {},
        **own,
    }


def _given(block: dict[str, Any], own: dict[str, Any]) -> dict[str, Any] | None:
    part = block.get("part")
    return {**part, **own} if isinstance(part, dict) else None


_MADE: Final[dict[str, Callable[[dict[str, Any], dict[str, Any]], dict[str, Any] | None]]] = {
    "text": _text,
    "reasoning": _thinking,
    "tool_call": _call,
    PROVIDER_PART: _given,
}


def _valid(part: dict[str, Any]) -> ModelResponsePart | None:
    """Return the part; None if it is invalid, because one invalid block must not stop a conversation."""
    try:
        [message] = ModelMessagesTypeAdapter.validate_python(
            [{"kind": "response", "parts": [part]}]
        )
    except ValidationError:
        return None
    return message.parts[0]  # type: ignore[return-value]
