"""A node's request for memory, and the forms of its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actors.kernel.workflow.effects import EffectOutcome
from actors.kernel.workflow.run_state import RunState
from actors.workflow.machine.deltas import OpenStep
from actors.workflow.memory.archive import Archive
from actors.workflow.memory.owners import Memories
from actors.workflow.memory.payloads import Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """A request for memory.

    Attributes:
        run: The run that makes the request.
        opened: The effect.
        at: The instant of this attempt, in ISO 8601 in UTC.
        payload: The request's payload.
        archive: The artifacts.
        memories: The memories that the request may read or write.
    """

    run: RunState
    opened: OpenStep
    at: str
    payload: Payload
    archive: Archive
    memories: Memories

    def met(
        self, output: str | None, meta: Any = None, *, changes: dict[str, Any] | None = None
    ) -> EffectOutcome:
        """Return the outcome of a successful request.

        The result has the form of a tool's result, which models can read.
        """
        more = {} if meta is None else {"meta": meta}
        row = {**self._row(), "success": True, "output": output, "error": None, **more}
        told = {"mode": "executed", "results": [row]}
        return EffectOutcome.completed(told, changes=changes or None)

    def refused(self, problem: str) -> EffectOutcome:
        """Return the outcome of a request for data that does not exist.

        The run continues and can read the reason.
        """
        row = {**self._row(), "success": False, "output": None, "error": problem}
        return EffectOutcome.completed({"mode": "executed", "results": [row]})

    def _row(self) -> dict[str, Any]:
        return {"name": self.payload.name, "call_id": self.payload.get("call_id")}
