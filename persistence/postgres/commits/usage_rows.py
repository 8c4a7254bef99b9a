"""Answers of models as `add_usage` takes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from actors.kernel.agent.model_answer import answer_of
from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import AgentId
from actors.kernel.runtime.log_entry import EntryKind, NewEntry

UsageRow: TypeAlias = "dict[str, JsonValue]"


def usage_rows(agent: AgentId, entries: Iterable[NewEntry]) -> list[UsageRow]:
    """Return a row for each answer that the entries record."""
    return [
        {
            "agent": str(agent),
            "model": answer.model,
            "input": answer.usage.input,
            "output": answer.usage.output,
            "cached": answer.usage.cached,
            "cache_written": answer.usage.cache_written,
            "cost_usd": answer.usage.cost_usd,
        }
        for answer in (answer_of(one.payload) for one in entries if one.kind == EntryKind.LLM_CALL)
        if answer is not None
    ]
