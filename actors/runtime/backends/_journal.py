"""InMemoryJournal: results of effects in a dict."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from actors.runtime.backends._records import pack, unpack

if TYPE_CHECKING:
    from actors.kernel.runtime.effects import EffectId, EffectResult


class InMemoryJournal:
    """See `Journal`. Nothing survives the process."""

    def __init__(self) -> None:
        self._results: dict[EffectId, tuple[EffectResult, bytes]] = {}

    async def lookup(self, effect_id: EffectId) -> EffectResult | None:
        """See `Journal.lookup`."""
        found = self._results.get(effect_id)
        return replace(found[0], value=unpack(found[1])) if found else None

    async def record(self, result: EffectResult) -> None:
        """See `Journal.record`."""
        shell = replace(result, value=None)
        self._results.setdefault(result.effect_id, (shell, pack(result.value)))
