"""Task boards: an agent's plan in a conversation, and the state of each task."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from actors.kernel.runtime.ids import AgentId


class TaskStatus(StrEnum):
    """PENDING → IN_PROGRESS → SUCCEEDED, FAILED or ABANDONED. A retry goes back to IN_PROGRESS."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABANDONED = "abandoned"


TASK_TRANSITIONS: Final[dict[TaskStatus, frozenset[TaskStatus]]] = {
    TaskStatus.PENDING: frozenset({TaskStatus.IN_PROGRESS, TaskStatus.ABANDONED}),
    TaskStatus.IN_PROGRESS: frozenset(
        {TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.ABANDONED, TaskStatus.PENDING}
    ),
    TaskStatus.SUCCEEDED: frozenset(),
    TaskStatus.FAILED: frozenset({TaskStatus.IN_PROGRESS, TaskStatus.ABANDONED}),
    TaskStatus.ABANDONED: frozenset({TaskStatus.IN_PROGRESS}),
}
"""Legal changes of status. Writing the present status again is allowed."""


class Task(BaseModel):
    """A card of a board.

    Attributes:
        id: Unique within its board; at most 128 bytes.
        title: At most 512 bytes.
        description: At most 4,096 bytes.
        status: See `TASK_TRANSITIONS`.
        note: The reason of the present status; at most 2,048 bytes.
        order: Its position on the board, from 0. The store numbers tasks.
        retry_count: Retries since the task was made, or since a person forced one.
        max_retries: The limit of `TaskStore.increment_retry`.
        updated_at: The instant of the last change, by the store's clock.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    title: str
    description: str = ""
    status: TaskStatus = TaskStatus.PENDING
    note: str = ""
    order: int = Field(default=0, ge=0)
    retry_count: int = Field(default=0, ge=0)
    max_retries: int = Field(default=3, ge=0)
    updated_at: AwareDatetime | None = None


class TaskList(BaseModel):
    """The board of one agent in one conversation, tasks by order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    conversation_id: str
    agent_id: str
    title: str = ""
    tasks: tuple[Task, ...] = ()


@runtime_checkable
class TaskStore(Protocol):
    """The boards of one tenant, by conversation and agent.

    Each call is atomic: concurrent ones lose nothing. Every call refuses bad input before it changes anything.
    A call with the `key` of one of the last 32 changes of its board changes nothing: it was made already. It
    returns what is there. Without a key each call counts.

    Raises:
        ContractError: A text cannot be kept or is too long, two tasks have one id, or a board would have
            more than 1,000 tasks.
        OtherTenantError: The agent is another tenant's.
    """

    async def create_task_list(
        self,
        conversation_id: str,
        agent_id: AgentId,
        tasks: Sequence[Task],
        *,
        title: str = "",
        key: str = "",
    ) -> TaskList:
        """Make the board. It replaces an earlier one. Tasks are numbered in their order."""

    async def get_task_list(self, conversation_id: str, agent_id: AgentId) -> TaskList | None:
        """Return the board, or None."""

    async def get_boards(self, conversation_id: str) -> list[TaskList]:
        """Return all boards of a conversation, by agent."""

    async def update_status(
        self,
        conversation_id: str,
        agent_id: AgentId,
        task_id: str,
        *,
        status: TaskStatus,
        note: str = "",
        key: str = "",
    ) -> Task:
        """Change the status of one task and return the task. An empty note leaves the earlier one.

        Raises:
            KeyError: There is no such board or task.
            ContractError: `TASK_TRANSITIONS` does not have the change.
        """

    async def add_tasks(
        self, conversation_id: str, agent_id: AgentId, tasks: Sequence[Task], *, key: str = ""
    ) -> TaskList:
        """Put tasks at the end of the board, with the next numbers.

        Raises:
            KeyError: There is no such board.
            ContractError: The board has a task with one of these ids.
        """

    async def increment_retry(
        self, conversation_id: str, agent_id: AgentId, task_id: str, *, key: str = ""
    ) -> Task | None:
        """Count one more retry and put the task in progress. At its limit return None and change nothing.

        Raises:
            KeyError: There is no such board or task.
            ContractError: The task has succeeded.
        """

    async def force_retry(
        self, conversation_id: str, agent_id: AgentId, task_id: str, *, key: str = ""
    ) -> Task:
        """Put a failed or abandoned task in progress with a counter of 0, for a person.

        Raises:
            KeyError: There is no such board or task.
            ContractError: The task is neither failed nor abandoned.
        """

    async def settle_conversation(self, conversation_id: str, *, key: str = "") -> list[TaskList]:
        """Turn tasks in progress to succeeded after a success, and return the boards that changed, by agent."""


@runtime_checkable
class TaskStores(Protocol):
    """The boards of all tenants of one deployment."""

    def of(self, tenant: str) -> TaskStore:
        """Return the boards of one tenant."""
