"""The runs whose memory an effect means: its own, or one that a session or all runs share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from actors.kernel.workflow.run_state import RunState
from actors.workflow.memory.payloads import Payload
from actors.workflow.memory.spans import SPAN_ID, SPANS_PATH, Span

RUN: Final = "run"
SESSION: Final = "session"
GLOBAL: Final = "global"
ALL: Final = "all"
SCOPES: Final = (RUN, SESSION, GLOBAL)


class SharedMemory(Protocol):
    """Memory beside that of the run itself."""

    def owner(self, run: RunState, scope: str) -> RunState:
        """Return the run that holds the memory of a scope, ``session`` or ``global``, for this run.

        Raises:
            GraphError: There is no such memory where this run is driven.
        """

    def named(self, run: RunState, run_id: str) -> RunState:
        """Return the run of this id.

        Raises:
            GraphError: There is none, or other runs cannot be reached from here.
        """

    def put(self, owner: RunState, span: Span) -> None:
        """Put a span into the memory of a run that `owner` or `named` returned, durably, once for its id."""


@dataclass(frozen=True, slots=True)
class Memories:
    """The memories that a request means.

    Attributes:
        run: The run that asks.
        shared: Those beside its own.
    """

    run: RunState
    shared: SharedMemory

    def one(self, payload: Payload) -> RunState:
        """Return the owner of the memory that a request writes to."""
        target = payload.text("target_run_id")
        if target:
            return self.run if target == self.run.run_id else self.shared.named(self.run, target)
        return self._of(payload.choice("scope", *SCOPES))

    def some(self, payload: Payload) -> list[RunState]:
        """Return the owners of the memories that a request searches."""
        if payload.text("target_run_id") or payload.choice("scope", *SCOPES, ALL) != ALL:
            return [self.one(payload)]
        found = {one.run_id: one for one in map(self._of, SCOPES)}
        return [*found.values()]

    def _of(self, scope: str) -> RunState:
        return self.run if scope == RUN else self.shared.owner(self.run, scope)

    def put(self, owner: RunState, span: Span) -> dict[str, list[object]]:
        """Put a span into a memory; return the changes of the run that asks, which are none for another's."""
        if owner.run_id == self.run.run_id:
            return {"put": [[SPANS_PATH, SPAN_ID, span]]}
        self.shared.put(owner, span)
        return {}
