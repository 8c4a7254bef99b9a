"""Runs that start runs: handles, results, and the one who keeps the tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from actors.kernel.agent.agent import Agent
from actors.kernel.agent.message import Message
from actors.kernel.agent.supervision import Supervision
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.scheduler import RunStatus


@dataclass(frozen=True, slots=True)
class RunHandle:
    """Names a run; holds nothing alive. `parent_run` is the run that spawned it, if one did."""

    run_id: RunId
    agent_id: AgentId
    parent_run: RunId | None = None


class RunResult(BaseModel):
    """The result of a run that ended.

    Attributes:
        run_id: The run.
        status: COMPLETED, FAILED or CANCELLED.
        output: What its `run` returned.
        error: Type and message, for FAILED; the reason, for CANCELLED.
        metadata: Small facts, for example token counts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    status: RunStatus
    output: JsonValue = None
    error: dict[str, JsonValue] | None = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


class Supervisor(Protocol):
    """The tree of runs: who spawned whom, and how each ended."""

    async def spawn(
        self,
        child_agent: Agent | AgentId,
        *,
        parent: RunId,
        supervision: Supervision,
        boot: Message | None = None,
    ) -> RunHandle:
        """Create a child run and return at once; its id is derived, so a replay creates none.

        The child, ``child.spawned`` in the parent's log and the boot message are one commit.

        Raises:
            SpawnDenied: The tree's budget is used up.
        """

    async def join(self, handle: RunHandle) -> RunResult:
        """Return the run's result, also when it ended before the call.

        Cancelling the call does not touch the run.
        """

    async def cancel(self, handle: RunHandle, *, reason: str = "") -> None:
        """Ask the run and everything below it to stop. See `ArrivalStore.request_cancel`."""

    async def children_of(self, run_id: RunId) -> list[RunHandle]:
        """Return the runs spawned by this one, in the order they were."""

    async def record_completion(self, run_id: RunId, result: RunResult) -> None:
        """Keep a run's result and wake who waits for it; a second one is ignored."""
