"""Changes of task boards, as functions from a board to a board.

Stores in memory apply them. Stores in a database check arguments with them, and explain with them why a
statement changed nothing. `now` stamps the tasks that change, or None if the store does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from actors._kernel.basics import check_number
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.data import TASK_TRANSITIONS, Task, TaskList, TaskStatus
from actors._kernel.text import check_name_of, check_text_of
from actors.errors import ContractError, OtherTenantError

MAX_TASKS: Final = 1_000
"""Tasks of one board."""
MAX_ID_BYTES: Final = 128
MAX_TITLE_BYTES: Final = 512
MAX_DESCRIPTION_BYTES: Final = 4_096
MAX_NOTE_BYTES: Final = 2_048
"""Texts of one task, in UTF-8. A whole board is below 7 MB then."""
MAX_KEYS: Final = 32
"""Keys of its last changes that a board remembers."""

RETRIED_FROM: Final = frozenset(
    status for status, to in TASK_TRANSITIONS.items() if TaskStatus.IN_PROGRESS in to
) | {TaskStatus.IN_PROGRESS}
"""Statuses from which an agent may retry a task."""
FORCED_FROM: Final = frozenset((TaskStatus.FAILED, TaskStatus.ABANDONED))
"""Statuses from which a person may force a retry."""


def allowed_from(status: TaskStatus) -> frozenset[TaskStatus]:
    """Return the statuses from which a task may change to this one, the status itself among them."""
    return frozenset(
        origin for origin, targets in TASK_TRANSITIONS.items() if status in targets
    ) | {status}


def check_place(tenant: str, conversation_id: str, agent_id: AgentId) -> None:
    """Check that these can name a board of this tenant.

    Raises:
        OtherTenantError: The agent is another tenant's.
        InvalidTextError: The conversation's id cannot be kept.
    """
    check_conversation(conversation_id)
    if agent_id.tenant != tenant:
        raise OtherTenantError(f"agent {agent_id}", tenant)


def check_conversation(conversation_id: str) -> None:
    """Check that this can be the id of a conversation.

    Raises:
        InvalidTextError: It cannot be kept, or is empty.
    """
    check_name_of("id of a conversation", conversation_id)
    if not conversation_id:
        raise ContractError(
            "the id of a conversation is empty: give its name, for example a session"
        )


def check_key(key: str) -> None:
    """Check that this can be the key of a call.

    Raises:
        InvalidTextError: It cannot be kept, or is too long.
    """
    check_text_of("key of a call", key, limit_bytes=MAX_ID_BYTES)


def check_task_id(task_id: str) -> None:
    """Check that this can be the id of a task.

    Raises:
        InvalidTextError: It cannot be kept, or is too long.
        ContractError: It is empty.
    """
    check_text_of("id of a task", task_id, limit_bytes=MAX_ID_BYTES)
    if not task_id:
        raise ContractError("the id of a task is empty: give one, unique within its board")


def check_note(note: str) -> None:
    """Check that this can be a task's note.

    Raises:
        InvalidTextError: It cannot be kept, or is too long.
    """
    check_text_of("note of a task", note, limit_bytes=MAX_NOTE_BYTES)


def numbered(tasks: Sequence[Task], *, first: int, now: datetime | None) -> tuple[Task, ...]:
    """Return tasks with numbers from `first` on, checked.

    Raises:
        ContractError: A text cannot be kept or is too long, two have one id, or there are too many.
    """
    if first + len(tasks) > MAX_TASKS:
        msg = f"a board has {MAX_TASKS:,} tasks at most, not {first + len(tasks):,}: use another agent's board"
        raise ContractError(msg)
    ids: set[str] = set()
    for task in tasks:
        _check_task(task)
        if task.id in ids:
            raise ContractError(f"two tasks have the id {task.id!r}: ids are unique within a board")
        ids.add(task.id)
    return tuple(
        task.model_copy(update={"order": order, "updated_at": now})
        for order, task in enumerate(tasks, first)
    )


def created(
    conversation_id: str,
    agent_id: AgentId,
    tasks: Sequence[Task],
    *,
    title: str,
    now: datetime | None,
) -> TaskList:
    """Return a new board.

    Raises:
        ContractError: See `numbered`.
    """
    check_text_of("title of a board", title, limit_bytes=MAX_TITLE_BYTES)
    return TaskList(
        conversation_id=conversation_id,
        agent_id=str(agent_id),
        title=title,
        tasks=numbered(tasks, first=0, now=now),
    )


def with_tasks(board: TaskList, tasks: Sequence[Task], *, now: datetime | None) -> TaskList:
    """Return the board with more tasks at its end.

    Raises:
        ContractError: See `numbered`; or the board has a task with one of these ids.
    """
    new_tasks = numbered(tasks, first=len(board.tasks), now=now)
    existing_ids = {task.id for task in board.tasks}
    for task in new_tasks:
        if task.id in existing_ids:
            msg = f"the board of {board.agent_id} has a task {task.id!r} already: use another id"
            raise ContractError(msg)
    return board.model_copy(update={"tasks": (*board.tasks, *new_tasks)})


def with_status(
    board: TaskList, task_id: str, *, status: TaskStatus, note: str, now: datetime | None
) -> TaskList:
    """Return the board with a task in another status.

    Raises:
        KeyError: There is no such task.
        ContractError: `TASK_TRANSITIONS` does not have the change.
    """
    task = task_of(board, task_id)
    if task.status not in allowed_from(status):
        raise _illegal(task, status)
    return _with(board, task, now, status=status, note=note or task.note)


def with_retry(board: TaskList, task_id: str, *, now: datetime | None) -> TaskList | None:
    """Return the board with one more retry of a task; None at the task's limit.

    Raises:
        KeyError: There is no such task.
        ContractError: The task has succeeded.
    """
    task = task_of(board, task_id)
    if task.status not in RETRIED_FROM:
        raise _illegal(task, TaskStatus.IN_PROGRESS)
    if task.retry_count >= task.max_retries:
        return None
    retries = task.retry_count + 1
    return _with(board, task, now, status=TaskStatus.IN_PROGRESS, retry_count=retries)


def with_forced_retry(board: TaskList, task_id: str, *, now: datetime | None) -> TaskList:
    """Return the board with a failed or abandoned task in progress, its counter at 0.

    Raises:
        KeyError: There is no such task.
        ContractError: The task is neither failed nor abandoned.
    """
    task = task_of(board, task_id)
    if task.status not in FORCED_FROM:
        msg = (
            f"task {task_id!r} is {task.status}: only a failed or abandoned task is forced to retry"
        )
        raise ContractError(msg)
    return _with(board, task, now, status=TaskStatus.IN_PROGRESS, retry_count=0)


def settled(board: TaskList, *, now: datetime | None) -> TaskList | None:
    """Return the board with its tasks in progress succeeded; None if there are none."""
    update = {"status": TaskStatus.SUCCEEDED, "updated_at": now}
    tasks = tuple(
        task.model_copy(update=update) if task.status is TaskStatus.IN_PROGRESS else task
        for task in board.tasks
    )
    return None if tasks == board.tasks else board.model_copy(update={"tasks": tasks})


def task_of(board: TaskList, task_id: str) -> Task:
    """Return a task of the board.

    Raises:
        KeyError: There is no such task.
    """
    for task in board.tasks:
        if task.id == task_id:
            return task
    raise KeyError(f"no task {task_id!r} on the board of {board.agent_id}: list its tasks")


def no_board(conversation_id: str, agent_id: AgentId) -> KeyError:
    """Return the error of a call for a board that was not created."""
    return KeyError(f"{agent_id} has no board in conversation {conversation_id!r}: create a list")


def _with(board: TaskList, task: Task, now: datetime | None, **update: object) -> TaskList:
    new_task = task.model_copy(update={**update, "updated_at": now})
    tasks = tuple(new_task if t.id == task.id else t for t in board.tasks)
    return board.model_copy(update={"tasks": tasks})


def _illegal(task: Task, status: TaskStatus) -> ContractError:
    possible = ", ".join(sorted(TASK_TRANSITIONS[task.status])) or "nothing else"
    msg = f"task {task.id!r} is {task.status} and cannot become {status}; it can become {possible}"
    return ContractError(msg)


def _check_task(task: Task) -> None:
    check_task_id(task.id)
    check_text_of("title of a task", task.title, limit_bytes=MAX_TITLE_BYTES)
    check_text_of("description of a task", task.description, limit_bytes=MAX_DESCRIPTION_BYTES)
    check_note(task.note)
    check_number("max_retries of a task", task.max_retries)
    check_number("retry_count of a task", task.retry_count)
