"""Task boards in one process, and the store of boards that the whole process uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar, TypeAlias

from typing_extensions import override

from actors.errors import OtherTenantError
from actors.kernel.runtime.ids import DEFAULT_TENANT, AgentId
from actors.kernel.storage import boards
from actors.kernel.storage.task import Task, TaskList, TaskStatus, TaskStore, TaskStores
from actors.storage.identity import current_agent_id

_Change: TypeAlias = "Callable[[TaskList], TaskList | None]"
_Key: TypeAlias = tuple[str, str, str]
"""Tenant, conversation, agent."""


def _utc_now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - boards of a process stand beside any host's clock


class InMemoryTaskBoards(TaskStores):
    """The boards of all tenants of one process, which are lost with it.

    Args:
        now: Stamps tasks; the machine's clock by default.
    """

    def __init__(self, now: Callable[[], datetime] = _utc_now) -> None:
        self.now = now
        self.kept: dict[_Key, TaskList] = {}
        self.lock = asyncio.Lock()

    @override
    def of(self, tenant: str) -> InMemoryTaskStore:
        return InMemoryTaskStore(tenant, boards=self)


class InMemoryTaskStore(TaskStore):
    """A `TaskStore` in one process. A lock makes each call atomic.

    Args:
        tenant: The owner of the boards.
        boards: Holds them; a new, empty set by default.
    """

    def __init__(
        self, tenant: str = DEFAULT_TENANT, *, boards: InMemoryTaskBoards | None = None
    ) -> None:
        self.tenant = tenant
        self._boards = boards or InMemoryTaskBoards()

    @override
    async def create_task_list(
        self, conversation_id: str, agent_id: AgentId, tasks: Sequence[Task], *, title: str = ""
    ) -> TaskList:
        key = self._key(conversation_id, agent_id)
        now = self._boards.now()
        board = boards.created(conversation_id, agent_id, tasks, title=title, now=now)
        async with self._boards.lock:
            self._boards.kept[key] = board
        return board

    @override
    async def get_task_list(self, conversation_id: str, agent_id: AgentId) -> TaskList | None:
        return self._boards.kept.get(self._key(conversation_id, agent_id))

    @override
    async def get_boards(self, conversation_id: str) -> list[TaskList]:
        boards.check_conversation(conversation_id)
        return [board for _, board in self._of_conversation(conversation_id)]

    @override
    async def update_status(
        self,
        conversation_id: str,
        agent_id: AgentId,
        task_id: str,
        *,
        status: TaskStatus,
        note: str = "",
    ) -> Task:
        boards.check_task_id(task_id)
        boards.check_note(note)
        change = partial(
            boards.with_status, task_id=task_id, status=status, note=note, now=self._boards.now()
        )
        return boards.task_of(await self._change(conversation_id, agent_id, change), task_id)

    @override
    async def add_tasks(
        self, conversation_id: str, agent_id: AgentId, tasks: Sequence[Task]
    ) -> TaskList:
        boards.numbered(tasks, first=0, now=None)
        change = partial(boards.with_tasks, tasks=tasks, now=self._boards.now())
        return await self._change(conversation_id, agent_id, change)

    @override
    async def increment_retry(
        self, conversation_id: str, agent_id: AgentId, task_id: str
    ) -> Task | None:
        boards.check_task_id(task_id)
        change = partial(boards.with_retry, task_id=task_id, now=self._boards.now())
        board = await self._changed(conversation_id, agent_id, change)
        return None if board is None else boards.task_of(board, task_id)

    @override
    async def force_retry(self, conversation_id: str, agent_id: AgentId, task_id: str) -> Task:
        boards.check_task_id(task_id)
        change = partial(boards.with_forced_retry, task_id=task_id, now=self._boards.now())
        return boards.task_of(await self._change(conversation_id, agent_id, change), task_id)

    @override
    async def settle_conversation(self, conversation_id: str) -> list[TaskList]:
        boards.check_conversation(conversation_id)
        changed: list[TaskList] = []
        async with self._boards.lock:
            for key, board in self._of_conversation(conversation_id):
                new = boards.settled(board, now=self._boards.now())
                if new is not None:
                    self._boards.kept[key] = new
                    changed.append(new)
        return changed

    async def _change(self, conversation_id: str, agent_id: AgentId, change: _Change) -> TaskList:
        board = await self._changed(conversation_id, agent_id, change)
        assert board is not None, "only a retry at its limit changes nothing"
        return board

    async def _changed(
        self, conversation_id: str, agent_id: AgentId, change: _Change
    ) -> TaskList | None:
        key = self._key(conversation_id, agent_id)
        async with self._boards.lock:
            board = self._boards.kept.get(key)
            if board is None:
                raise boards.no_board(conversation_id, agent_id)
            new = change(board)
            if new is not None:
                self._boards.kept[key] = new
        return new

    def _key(self, conversation_id: str, agent_id: AgentId) -> _Key:
        boards.check_place(self.tenant, conversation_id, agent_id)
        return self.tenant, conversation_id, str(agent_id)

    def _of_conversation(self, conversation_id: str) -> list[tuple[_Key, TaskList]]:
        found = self._boards.kept.items()
        return sorted(one for one in found if one[0][:2] == (self.tenant, conversation_id))


class GlobalTaskStore:
    """The store of boards that this process uses, for code that has no handle to one.

    By default it is in memory. `set` swaps it, and so does a runtime that opens with
    ``RUNTIME_BACKEND=postgres``, until it closes.
    """

    _default: ClassVar[TaskStores] = InMemoryTaskBoards()
    _given: ClassVar[list[tuple[object, TaskStores]]] = []
    """Stores in the order in which they were given, each with its giver. The last one is used."""

    @classmethod
    def get(cls) -> TaskStore:
        """Return the boards of the tenant whose agent executes here; outside of agents the default tenant's.

        Raises:
            OtherTenantError: The store that was set is bound to another tenant.
        """
        agent = current_agent_id.get("")
        tenant = AgentId.parse(agent).tenant if agent else DEFAULT_TENANT
        return (cls._given[-1][1] if cls._given else cls._default).of(tenant)

    @classmethod
    def set(cls, store: TaskStore | TaskStores | None) -> None:
        """Use this store from now on; None: the one in memory, or that of an open runtime.

        Args:
            store: One store serves its own tenant; on a host of several tenants give a `TaskStores`.
        """
        cls._forget(cls)
        if store is not None:
            cls._given.append((cls, _stores_of(store)))

    @classmethod
    @contextmanager
    def using(cls, store: TaskStore | TaskStores) -> Iterator[None]:
        """Use this store within the block. Blocks may end in any order: each takes its own store back."""
        giver = object()
        cls._given.append((giver, _stores_of(store)))
        try:
            yield
        finally:
            cls._forget(giver)

    @classmethod
    def _forget(cls, giver: object) -> None:
        cls._given[:] = [one for one in cls._given if one[0] is not giver]


class _OneStore(TaskStores):
    """A store of one tenant in the place of all."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store

    @override
    def of(self, tenant: str) -> TaskStore:
        own = getattr(self._store, "tenant", tenant)
        if own != tenant:
            raise OtherTenantError("the global task store", tenant)
        return self._store


def _stores_of(store: TaskStore | TaskStores) -> TaskStores:
    return store if isinstance(store, TaskStores) else _OneStore(store)
