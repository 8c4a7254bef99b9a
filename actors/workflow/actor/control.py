"""Control of a run from outside: pause, go on, messages and limits, between two of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from actors.kernel.workflow.run_state import RunState
from actors.runtime.context.run_context import RunContext
from actors.workflow.actor.decisions import Decisions
from actors.workflow.machine import limits
from actors.workflow.machine.records import CONTROL, INBOX, is_paused, with_message
from actors.workflow.machine.variables import LIMITS, RUNTIME, namespace

SIGNAL: Final = "graph.control"
"""The name of the signals."""


class RunControl:
    """Signals to a run, taken at the boundaries of its steps.

    While it is paused, one branch waits for signals, and the others hold until that one lets them go.
    """

    def __init__(self, ctx: RunContext, decided: Decisions) -> None:
        self._ctx, self._decided = ctx, decided
        self._is_awaited = False

    @property
    def is_paused(self) -> bool:
        """True while the run is paused."""
        return is_paused(self._decided.state)

    async def look(self) -> None:
        """Grant what is wanted; return when the branch that asks may go on.

        What the log has there decides, else the present: so a replay goes on where the run did.
        """
        verbs = self._ctx.graph.boundaries
        while True:
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
    """Return what a signal changes in the vars: kind of the record, path and value; None: nothing."""
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
