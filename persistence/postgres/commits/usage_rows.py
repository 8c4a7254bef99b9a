"""Answers of models as `add_usage` takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from actors.kernel.agent.transcript import answer_of
from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import AgentId

UsageRow: TypeAlias = "dict[str, JsonValue]"


def usage_row(agent: AgentId, payload: Mapping[str, JsonValue]) -> UsageRow | None:
    """Return the usage row of an `llm.call` entry with this payload; None: the entry records an error."""
    answer = answer_of(payload)
    if answer is None:
        return None
    return {
        "agent": str(agent),
        "model": answer.model,
        "input": answer.usage.input,
        "output": answer.usage.output,
        "cached": answer.usage.cached,
        "cache_written": answer.usage.cache_written,
        "cost_usd": answer.usage.cost_usd,
    }
