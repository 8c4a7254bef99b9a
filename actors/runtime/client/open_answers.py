"""Answers that are under way on this host, for readers who come in the middle of one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from actors.kernel.runtime.hints import Delta
from actors.kernel.runtime.ids import RunId

MAX_BYTES: Final = 256 * 1024
"""Largest answer that is kept, as UTF-8. A reader that joins a longer one sees only its later pieces."""


@dataclass(slots=True)
class _Text:
    last: Delta
    pieces: list[str] = field(default_factory=list)
    size: int = 0


class OpenAnswers:
    """The texts so far of model calls that execute here, by run and position."""

    def __init__(self) -> None:
        self._runs: dict[RunId, dict[tuple[str, str], _Text]] = {}

    def add(self, delta: Delta) -> None:
        """Add a piece of a model's answer or reasoning. One that begins at 0 again voids those before it."""
        if delta.kind == "custom.delta":
            return
        texts = self._runs.get(delta.run_id)
        if texts is None:
            texts = self._runs[delta.run_id] = {}
        key = (delta.position, delta.kind)
        known = texts.get(key)
        if known is None or delta.n == 0:
            known = texts[key] = _Text(delta)
        known.last = delta
        known.size += len(delta.text.encode("utf-8", "surrogatepass"))
        if known.size <= MAX_BYTES:
            known.pieces.append(delta.text)
        else:
            known.pieces.clear()

    def close(self, run_id: RunId, position: str) -> None:
        """Forget the call at a position: its result is recorded, or it is tried again later."""
        texts = self._runs.get(run_id)
        if texts is None:
            return
        for kind in ("text.delta", "reasoning.delta"):
            texts.pop((position, kind), None)
        if not texts:
            del self._runs[run_id]

    def of(self, run_id: RunId) -> list[Delta]:
        """Return each answer of a run so far as one piece, in the order of the numbers of their last ones."""
        known = [one for one in self._runs.get(run_id, {}).values() if one.pieces]
        known.sort(key=lambda one: one.last.n)
        return [replace(one.last, text="".join(one.pieces), is_whole=True) for one in known]

    def __len__(self) -> int:
        return len(self._runs)
