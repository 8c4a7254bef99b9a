"""The position of a run in its tree, and the budgets of the tree."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from actors.kernel.seconds import MAX_WAIT_S


class HistoryRetention(StrEnum):
    """The fate of open children, and of a run's chat messages, when the run ends.

    RUN: children are cancelled. PERMANENT: they become the root's. NONE: they are cancelled, and the
    next sweep takes the run's log.
    """

    RUN = "run"
    PERMANENT = "permanent"
    NONE = "none"


class SpawnBudget(BaseModel):
    """Limits on the number of runs in a tree. Counted at the root, tree-wide.

    Attributes:
        max_runs: Runs spawned while the tree exists; the root itself does not count.
        max_concurrent: Spawned runs that have not ended.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_runs: int = Field(default=50, ge=1)
    max_concurrent: int | None = Field(default=None, ge=1)


class ExecutionBudget(BaseModel):
    """Limits on what a tree may spend. Counted at the root, tree-wide. None means no limit.

    Attributes:
        max_tokens: Limit of tokens of model calls, input and output. At the limit, calls under way are ended.
        max_cost_usd: As their usage reports it.
        max_turns: Model calls; exact.
        deadline_s: Seconds from the root's creation, for every run of the tree; ten years at most.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: int | None = Field(default=None, ge=0)
    max_cost_usd: float | None = Field(default=None, ge=0)
    max_turns: int | None = Field(default=None, ge=0)
    deadline_s: float | None = Field(default=None, gt=0)

    @field_validator("deadline_s", mode="after")
    @classmethod
    def _bounded(cls, value: float | None) -> float | None:
        return None if value is None else min(value, MAX_WAIT_S)


class Supervision(BaseModel):
    """The position of a run in its tree, and the budgets of that tree.

    `task` is the card of a task board that the run was spawned for, if it was.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    root_id: str
    session_id: str | None = None
    parent_id: str | None = None
    depth: int = Field(default=0, ge=0)
    spawn_budget: SpawnBudget = SpawnBudget()
    execution_budget: ExecutionBudget = ExecutionBudget()
    retention: HistoryRetention = HistoryRetention.RUN
    priority: int = 5
    task: str | None = Field(default=None, exclude_if=lambda task: task is None)

    def as_root(self, run_id: str) -> Self:
        """Return the terms as those of a root."""
        place = {"run_id": run_id, "root_id": run_id, "parent_id": None, "depth": 0, "task": None}
        return self.model_copy(update=place)
