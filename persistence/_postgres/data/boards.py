"""Task boards in one row each: see ``schema/stores/boards.sql``.

A change is one statement. Its decision is in the statement's conditions, which are made of the rules of
`actors._kernel.board_rules`. If a statement changes nothing, these rules say why.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, LiteralString, TypeAlias, TypeVar

from pydantic_core import from_json, to_json
from typing_extensions import override

from actors._kernel import board_rules
from actors._kernel.json import Unreadable, read_or
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.data import Task, TaskList, TaskStatus, TaskStore, TaskStores
from actors.errors import ConflictError
from persistence._postgres.connection.link import Links, Row
from persistence._postgres.data.first_use import StoreTables

TRIES: Final = 8
"""A statement that changed nothing is sent again if the board has changed meanwhile so that it can."""

SQL_PUT_BOARD: Final[LiteralString] = """
insert into task_boards as b (tenant, conversation, agent, title, tasks, calls)
  select $1, $2, $3, $5, coalesce(jsonb_object_agg(n.task ->> 'id',
      n.task || jsonb_build_object('order', n.i - 1, 'updated_at', clock_timestamp())), '{}'), array[$4]
    from jsonb_array_elements($6::jsonb) with ordinality n (task, i)
  on conflict (tenant, conversation, agent) do update
    set title = excluded.title, tasks = excluded.tasks, calls = (array_prepend($4, b.calls))[1:32]
    where not $4 = any(b.calls)
  returning b.conversation, b.agent, b.title, b.tasks::text
"""
SQL_SELECT_BOARD: Final[LiteralString] = """
select b.conversation, b.agent, b.title, b.tasks::text, $4::text = any(b.calls) as is_done from task_boards b
  where b.tenant = $1 and b.conversation = $2 and b.agent = $3
"""
SQL_SELECT_BOARDS: Final[LiteralString] = """
select b.conversation, b.agent, b.title, b.tasks::text from task_boards b
  where b.tenant = $1 and b.conversation = $2 order by b.agent
"""
SQL_CHANGE_TASK: Final[LiteralString] = """
update task_boards b
  set tasks = jsonb_set(b.tasks, array[$5], b.tasks -> $5 || $6::jsonb
      || jsonb_build_object('updated_at', clock_timestamp())),
    calls = (array_prepend($4, b.calls))[1:32]
  where b.tenant = $1 and b.conversation = $2 and b.agent = $3 and not $4 = any(b.calls)
    and b.tasks -> $5 ->> 'status' = any($7::text[])
  returning (b.tasks -> $5)::text as task
"""
SQL_COUNT_RETRY: Final[LiteralString] = """
update task_boards b
  set tasks = jsonb_set(b.tasks, array[$5], b.tasks -> $5 || $6::jsonb || jsonb_build_object(
      'retry_count', (b.tasks -> $5 ->> 'retry_count')::int + 1, 'updated_at', clock_timestamp())),
    calls = (array_prepend($4, b.calls))[1:32]
  where b.tenant = $1 and b.conversation = $2 and b.agent = $3 and not $4 = any(b.calls)
    and b.tasks -> $5 ->> 'status' = any($7::text[])
    and (b.tasks -> $5 ->> 'retry_count')::int < (b.tasks -> $5 ->> 'max_retries')::int
  returning (b.tasks -> $5)::text as task
"""
SQL_ADD_TASKS: Final[LiteralString] = """
update task_boards b
  set tasks = b.tasks || coalesce((
      select jsonb_object_agg(n.task ->> 'id', n.task || jsonb_build_object(
          'order', (select count(*) from jsonb_object_keys(b.tasks)) + n.i - 1,
          'updated_at', clock_timestamp()))
        from jsonb_array_elements($5::jsonb) with ordinality n (task, i)), '{}'),
    calls = (array_prepend($4, b.calls))[1:32]
  where b.tenant = $1 and b.conversation = $2 and b.agent = $3 and not $4 = any(b.calls)
    and not b.tasks ?| $6::text[]
    and (select count(*) from jsonb_object_keys(b.tasks)) + cardinality($6::text[]) <= $7
  returning b.conversation, b.agent, b.title, b.tasks::text
"""
# Rows are locked in one order, so that two of these do not wait for each other. The second part has what
# an earlier try has changed, whose answer was lost.
SQL_SETTLE: Final[LiteralString] = """
with held as (
  select b.agent from task_boards b where b.tenant = $1 and b.conversation = $2
    order by b.agent for update),
changed as (
  update task_boards b
    set tasks = (
        select jsonb_object_agg(t.key, case when t.value ->> 'status' = 'in_progress' then t.value
            || jsonb_build_object('status', 'succeeded', 'updated_at', clock_timestamp()) else t.value end)
          from jsonb_each(b.tasks) t),
      calls = (array_prepend($3, b.calls))[1:32]
    from held h
    where b.tenant = $1 and b.conversation = $2 and b.agent = h.agent and not $3 = any(b.calls)
      and jsonb_path_exists(b.tasks, '$.* ? (@.status == "in_progress")')
    returning b.conversation, b.agent, b.title, b.tasks::text)
select c.* from changed c
union all
select b.conversation, b.agent, b.title, b.tasks::text from task_boards b
  where b.tenant = $1 and b.conversation = $2 and $3 = any(b.calls)
"""

_T = TypeVar("_T")
_CallKey: TypeAlias = tuple[str, str, str, str]
"""Tenant, conversation, agent, and the mark of the call."""
_Explain: TypeAlias = "Callable[[TaskList], TaskList | None]"
"""Raises why a change of this board is refused; returns None if the change has nothing to do."""


class PgTaskBoards(TaskStores):
    """The boards of all tenants of one schema. Their table is made on first use.

    Args:
        links: Connections, each for one statement at a time.
    """

    def __init__(self, links: Links) -> None:
        self._tables = StoreTables(links, "boards")

    @override
    def of(self, tenant: str) -> PgTaskStore:
        return PgTaskStore(self._tables, tenant)


class PgTaskStore(TaskStore):
    """A `TaskStore` of one tenant on PostgreSQL. Made by `PgTaskBoards.of`.

    A change is durable when its call returns. If its answer is lost, it is sent again and counts once, unless
    32 others have changed the board meanwhile.
    """

    def __init__(self, tables: StoreTables, tenant: str) -> None:
        self._tables, self.tenant = tables, tenant

    @override
    async def create_task_list(
        self,
        conversation_id: str,
        agent_id: AgentId,
        tasks: Sequence[Task],
        *,
        title: str = "",
        key: str = "",
    ) -> TaskList:
        call_key = self._call_key(conversation_id, agent_id, key)
        board_rules.created(conversation_id, agent_id, tasks, title=title, now=None)
        args = *call_key, title, _rows(tasks)
        rows = await self._tables.fetch("creating a board", SQL_PUT_BOARD, *args)
        if not rows:  # it was made already
            rows = await self._tables.fetch("reading a board", SQL_SELECT_BOARD, *call_key)
        return _board(rows[0])

    @override
    async def get_task_list(self, conversation_id: str, agent_id: AgentId) -> TaskList | None:
        call_key = self._call_key(conversation_id, agent_id, "")
        rows = await self._tables.fetch("reading a board", SQL_SELECT_BOARD, *call_key)
        return _board(rows[0]) if rows else None

    @override
    async def get_boards(self, conversation_id: str) -> list[TaskList]:
        board_rules.check_conversation(conversation_id)
        args = self.tenant, conversation_id
        return [
            _board_for_list(row)
            for row in await self._tables.fetch("reading boards", SQL_SELECT_BOARDS, *args)
        ]

    @override
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
        board_rules.check_note(note)
        patch = _patch(status, note=note) if note else _patch(status)
        explain = partial(
            board_rules.with_status, task_id=task_id, status=status, note=note, now=None
        )
        args = patch, [*board_rules.allowed_from(status)]
        call_key = self._call_key(conversation_id, agent_id, key)
        return _assert_changed(
            await self._change_task(SQL_CHANGE_TASK, call_key, task_id, explain, *args)
        )

    @override
    async def add_tasks(
        self, conversation_id: str, agent_id: AgentId, tasks: Sequence[Task], *, key: str = ""
    ) -> TaskList:
        call_key = self._call_key(conversation_id, agent_id, key)
        board_rules.numbered(tasks, first=0, now=None)
        explain = partial(board_rules.with_tasks, tasks=tasks, now=None)
        args = _rows(tasks), [task.id for task in tasks], board_rules.MAX_TASKS
        return _assert_changed(await self._change(SQL_ADD_TASKS, call_key, explain, _board, *args))

    @override
    async def increment_retry(
        self, conversation_id: str, agent_id: AgentId, task_id: str, *, key: str = ""
    ) -> Task | None:
        explain = partial(board_rules.with_retry, task_id=task_id, now=None)
        args = _patch(TaskStatus.IN_PROGRESS), [*board_rules.RETRIED_FROM]
        call_key = self._call_key(conversation_id, agent_id, key)
        return await self._change_task(SQL_COUNT_RETRY, call_key, task_id, explain, *args)

    @override
    async def force_retry(
        self, conversation_id: str, agent_id: AgentId, task_id: str, *, key: str = ""
    ) -> Task:
        explain = partial(board_rules.with_forced_retry, task_id=task_id, now=None)
        args = _patch(TaskStatus.IN_PROGRESS, retry_count=0), [*board_rules.FORCED_FROM]
        call_key = self._call_key(conversation_id, agent_id, key)
        return _assert_changed(
            await self._change_task(SQL_CHANGE_TASK, call_key, task_id, explain, *args)
        )

    @override
    async def settle_conversation(self, conversation_id: str, *, key: str = "") -> list[TaskList]:
        board_rules.check_conversation(conversation_id)
        args = self.tenant, conversation_id, _call_mark(key)
        rows = await self._tables.fetch("settling boards", SQL_SETTLE, *args)
        return sorted(map(_board, rows), key=lambda board: board.agent_id)

    async def _change_task(
        self, sql: LiteralString, call_key: _CallKey, task_id: str, explain: _Explain, *args: object
    ) -> Task | None:
        board_rules.check_task_id(task_id)

        def task(row: Row) -> Task:
            if "task" in row:
                return Task.model_validate_json(row["task"])
            return board_rules.task_of(_board(row), task_id)

        return await self._change(sql, call_key, explain, task, task_id, *args)

    async def _change(
        self,
        sql: LiteralString,
        call_key: _CallKey,
        explain: _Explain,
        read: Callable[[Row], _T],
        *args: object,
    ) -> _T | None:
        """Return what a statement has changed, or None as `explain` does."""
        for _ in range(TRIES):
            if rows := await self._tables.fetch("changing a board", sql, *call_key, *args):
                return read(rows[0])
            rows = await self._tables.fetch("reading a board", SQL_SELECT_BOARD, *call_key)
            if not rows:
                _, conversation, agent, _ = call_key
                raise board_rules.no_board(conversation, AgentId.parse(agent))
            if rows[0]["is_done"]:  # it was made already
                return read(rows[0])
            if explain(_board(rows[0])) is None:
                return None
        msg = f"the board of {call_key[2]} changes so fast that {TRIES} tries failed: call again"
        raise ConflictError(msg)

    def _call_key(self, conversation_id: str, agent_id: AgentId, key: str) -> _CallKey:
        board_rules.check_place(self.tenant, conversation_id, agent_id)
        return self.tenant, conversation_id, str(agent_id), _call_mark(key)


def _call_mark(key: str) -> str:
    """Return the call's mark: its idempotency key, else a random one."""
    board_rules.check_key(key)
    return key or secrets.token_hex(16)


def _rows(tasks: Sequence[Task]) -> str:
    stamped_fields = {"order", "updated_at"}
    return to_json([task.model_dump(exclude=stamped_fields) for task in tasks]).decode()


def _patch(status: TaskStatus, **fields: object) -> str:
    return to_json({"status": status, **fields}).decode()


def _board(row: Row) -> TaskList:
    tasks: dict[str, Any] = from_json(row["tasks"])
    return TaskList(
        conversation_id=row["conversation"],
        agent_id=row["agent"],
        title=row["title"],
        tasks=tuple(sorted(map(Task.model_validate, tasks.values()), key=lambda task: task.order)),
    )


def _board_for_list(row: Row) -> TaskList:
    """Return a board for a list; of one whose tasks cannot be read the title says so."""

    def unreadable(problem: Unreadable) -> TaskList:
        title = f"{row['title']} ({problem})"
        return TaskList(conversation_id=row["conversation"], agent_id=row["agent"], title=title)

    return read_or(row, _board, unreadable)


def _assert_changed(value: _T | None) -> _T:
    assert value is not None, "only a retry at its limit changes nothing"
    return value
