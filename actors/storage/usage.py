"""Totals of usage in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import TypeAlias

from typing_extensions import override

from actors.kernel.agent.transcript import ModelAnswer
from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.administration import EACH, UsageBy, UsageFilter, UsageStore, UsageTotal

UsageKey: TypeAlias = "tuple[AgentId | str | date | None, ...]"
UsageRows: TypeAlias = "dict[UsageKey, UsageTotal]"


def count_usage(rows: UsageRows, agent: AgentId, answer: ModelAnswer, day: date) -> None:
    """Add an answer to the totals of its agent."""
    used = answer.usage
    _add(
        rows,
        UsageTotal(
            tenant=agent.tenant,
            agent_id=agent,
            model=answer.model,
            day=day,
            calls=1,
            input=used.input,
            output=used.output,
            cached=used.cached,
            cache_written=used.cache_written,
            cost_usd=Decimal(0) if used.cost_usd is None else Decimal(repr(used.cost_usd)),
            unpriced=int(used.cost_usd is None),
        ),
    )


class MemoryUsage(UsageStore):
    """A `UsageStore` on the rows of an in-memory store.

    Args:
        rows: Function that returns the current rows.
    """

    def __init__(self, rows: Callable[[], UsageRows]) -> None:
        self._rows = rows

    @override
    async def totals(
        self, wanted: UsageFilter, *, by: Sequence[UsageBy] = EACH
    ) -> list[UsageTotal]:
        found: UsageRows = {}
        for row in self._rows().values():
            if _is_wanted(row, wanted):
                summed = replace(
                    row,
                    tenant=row.tenant if "tenant" in by else None,
                    agent_id=row.agent_id if "agent" in by else None,
                    model=row.model if "model" in by else None,
                    day=row.day if "day" in by else None,
                )
                _add(found, summed)
        return sorted(found.values(), key=_place)


def _add(rows: UsageRows, more: UsageTotal) -> None:
    key = (more.tenant, more.agent_id, more.model, more.day)
    known = rows.get(key)
    if known is None:
        rows[key] = more
        return
    rows[key] = replace(
        known,
        calls=known.calls + more.calls,
        input=known.input + more.input,
        output=known.output + more.output,
        cached=known.cached + more.cached,
        cache_written=known.cache_written + more.cache_written,
        cost_usd=known.cost_usd + more.cost_usd,
        unpriced=known.unpriced + more.unpriced,
    )


def _is_wanted(row: UsageTotal, wanted: UsageFilter) -> bool:
    assert row.agent_id is not None
    assert row.day is not None
    return (
        wanted.tenant in (None, row.tenant)
        and wanted.type_ in (None, row.agent_id.type)
        and wanted.agent_id in (None, row.agent_id)
        and wanted.model in (None, row.model)
        and (wanted.since is None or wanted.since <= row.day)
        and (wanted.until is None or row.day <= wanted.until)
    )


def _place(row: UsageTotal) -> tuple[str, str, str, date]:
    agent = "" if row.agent_id is None else str(row.agent_id)
    return row.tenant or "", agent, row.model or "", row.day or date.min
