"""Control of a run by signals: pause, resume, messages and limits.

A run takes them between two of its steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from actors.kernel.workflow.run_state import RunState
from actors.runtime.verbs.run_context import RunContext
from actors.workflow.actor.decisions import Decisions
from actors.workflow.machine import limits
from actors.workflow.machine.records import CONTROL, INBOX, is_paused, with_message
from actors.workflow.machine.variables import LIMITS, RUNTIME, namespace

SIGNAL: Final = "graph.control"
"""Name of the signals that control a run."""


class RunControl:
    """The signals that control a run. The run takes them at the boundaries of its steps.

    While the run is paused, one branch waits for signals. The other branches wait until that branch releases
    them.
    """

    def __init__(self, ctx: RunContext, decided: Decisions) -> None:
        self._ctx, self._decided = ctx, decided
        self._is_awaited = False

    @property
    def is_paused(self) -> bool:
        """True while the run is paused."""
        return is_paused(self._decided.state)

    async def look(self) -> None:
        """Apply pending control signals; return when the calling branch may continue.

        If the log has an entry at this position, the entry decides. Otherwise the signals of now decide. So a
        replay continues at the positions at which the run continued.
        """
        verbs = self._ctx.graph.boundaries
        while self.is_paused or not verbs.is_clear(SIGNAL):
            known = await verbs.boundary()
            if known.is_known and not known.is_held:
                return
            told = known.signal
            if not known.is_known:
                told = None if self._is_awaited else await verbs.take_signal(SIGNAL)
                if told is None and not self.is_paused:
                    return
                if told is None:
                    told = await self._hold()
            if told is not None:
                self._grant(told)

    async def _hold(self) -> Any:
        verbs, is_first = self._ctx.graph.boundaries, not self._is_awaited
        self._is_awaited = True
        try:
            return await verbs.hold(lambda: not self.is_paused, SIGNAL if is_first else None)
        finally:
            self._is_awaited = self._is_awaited and not is_first

    def _grant(self, told: Any) -> None:
        found = wanted(self._decided.state, told, self._decided.now())
        if found is not None:
            self._decided.note(*found)
        if not self.is_paused:
            self._ctx.graph.boundaries.release()


def wanted(state: RunState, told: Any, at: str) -> tuple[str, list[str], Any] | None:
    """Return the change of the vars that a signal asks for: the record's kind, the path and the value.

    None: the signal changes nothing.
    """
    if not isinstance(told, Mapping):
        return None
    kind = told.get("kind")
    if kind in {"pause", "unpause"} and is_paused(state) is not (kind == "pause"):
        return (
            kind,
            [RUNTIME, CONTROL],
            {"paused": kind == "pause", "reason": told.get("reason"), "at": at},
        )
    if kind == "steer":
        return kind, [RUNTIME, INBOX], with_message(state, told.get("message"))
    if kind == "limits" and isinstance(told.get("updates"), Mapping):
        return kind, [LIMITS], namespace(state.vars, LIMITS) | limits.known_updates(told["updates"])
    return None
