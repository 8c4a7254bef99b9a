"""The runs that own the memory of a request: the run itself, or a run that a session or all runs share."""

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
    """The memory of other runs."""

    def owner(self, run: RunState, scope: str) -> RunState:
        """Return the run that has the memory of a scope for this run. The scope is ``session`` or ``global``.

        Raises:
            GraphError: The run's driver has no memory of this scope.
        """

    def named(self, run: RunState, run_id: str) -> RunState:
        """Return the run of this id.

        Raises:
            GraphError: There is no such run, or the driver cannot read other runs.
        """

    def put(self, owner: RunState, span: Span) -> None:
        """Add a span durably to the memory of a run that `owner` or `named` returned.

        A span of the same id is added once.
        """


@dataclass(frozen=True, slots=True)
class Memories:
    """The memories that a request may read or write.

    Attributes:
        run: The run that makes the request.
        shared: The memory of other runs.
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
        """Add a span to a memory; return the changes of the requesting run.

        They are empty if another run owns the memory.
        """
        if owner.run_id == self.run.run_id:
            return {"put": [[SPANS_PATH, SPAN_ID, span]]}
        self.shared.put(owner, span)
        return {}
