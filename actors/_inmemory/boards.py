"""Task boards in one process, and the store of boards that the whole process uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar, TypeAlias, TypeVar

from typing_extensions import override

from actors._inmemory.sessions import current_agent_id
from actors._kernel import board_rules as boards
from actors._kernel.runtime.ids import DEFAULT_TENANT, AgentId
from actors._kernel.stores.administration import ERASE_BATCH, Erasable, EraseCount, EraseRequest
from actors._kernel.stores.data import Task, TaskList, TaskStatus, TaskStore, TaskStores
from actors.errors import OtherTenantError

T = TypeVar("T")
_BoardKey: TypeAlias = tuple[str, str, str]
"""Tenant, conversation and agent of a board."""


@dataclass(frozen=True, slots=True)
class _StoredBoard:
    board: TaskList
    keys: tuple[str, ...]
    """The keys of the board's last changes, the newest first."""


def _utc_now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - boards of a process have no host's clock


class InMemoryTaskBoards(TaskStores, Erasable):
    """The boards of all tenants of one process, which are lost with it.

    Args:
        now: The clock for the tasks' instants. Default: the machine's clock.
    """

    erased_as = "boards"

    def __init__(self, now: Callable[[], datetime] = _utc_now) -> None:
        self.now = now
        self.kept: dict[_BoardKey, _StoredBoard] = {}
        self.lock: asyncio.Lock = asyncio.Lock()

    @override
    def of(self, tenant: str) -> InMemoryTaskStore:
        return InMemoryTaskStore(tenant, boards=self)

    @override
    async def erase(
        self, what: EraseRequest, *, cursor: str | None = None, limit: int = ERASE_BATCH
    ) -> EraseCount:
        """Erase boards. The conversation of a board is the session of the request."""
        del cursor
        async with self.lock:
            board_keys = self._find_covered(what)[:limit]
            for board_key in board_keys:
                del self.kept[board_key]
        return EraseCount({"boards": len(board_keys)}, "+" if len(board_keys) == limit else None)

    @override
    async def count(self, what: EraseRequest) -> dict[str, int]:
        return {"boards": len(self._find_covered(what))}

    def _find_covered(self, what: EraseRequest) -> list[_BoardKey]:
        return [
            board_key
            for board_key in self.kept
            if board_key[0] == what.tenant
            and what.covers(AgentId.parse(board_key[2]))
            and what.session in (None, board_key[1])
        ]


class InMemoryTaskStore(TaskStore):
    """A `TaskStore` in one process. A lock makes each call atomic.

    Args:
        tenant: The owner of the boards.
        boards: The set that has the boards. Default: a new, empty set.
    """

    def __init__(
        self, tenant: str = DEFAULT_TENANT, *, boards: InMemoryTaskBoards | None = None
    ) -> None:
        self.tenant = tenant
        self._boards = boards or InMemoryTaskBoards()

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
        board_key = self._board_key(conversation_id, agent_id)
        now = self._boards.now()
        board = boards.created(conversation_id, agent_id, tasks, title=title, now=now)
        return _require(await self._apply(board_key, lambda _: board, key))

    @override
    async def get_task_list(self, conversation_id: str, agent_id: AgentId) -> TaskList | None:
        stored_board = self._boards.kept.get(self._board_key(conversation_id, agent_id))
        return None if stored_board is None else stored_board.board

    @override
    async def get_boards(self, conversation_id: str) -> list[TaskList]:
        boards.check_conversation(conversation_id)
        return [
            self._boards.kept[board_key].board for board_key in self._board_keys_of(conversation_id)
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
        boards.check_note(note)
        change = partial(boards.with_status, status=status, note=note)
        return _require(
            await self._change_task(conversation_id, agent_id, task_id, change, key=key)
        )

    @override
    async def add_tasks(
        self, conversation_id: str, agent_id: AgentId, tasks: Sequence[Task], *, key: str = ""
    ) -> TaskList:
        # Only for its errors: as in Postgres, invalid tasks are refused before the board is looked up.
        boards.numbered(tasks, first=0, now=None)
        board_key = self._board_key(conversation_id, agent_id)
        change = partial(boards.with_tasks, tasks=tasks, now=self._boards.now())
        return _require(await self._change(board_key, change, key))

    @override
    async def increment_retry(
        self, conversation_id: str, agent_id: AgentId, task_id: str, *, key: str = ""
    ) -> Task | None:
        change = boards.with_retry
        return await self._change_task(conversation_id, agent_id, task_id, change, key=key)

    @override
    async def force_retry(
        self, conversation_id: str, agent_id: AgentId, task_id: str, *, key: str = ""
    ) -> Task:
        change = boards.with_forced_retry
        return _require(
            await self._change_task(conversation_id, agent_id, task_id, change, key=key)
        )

    @override
    async def settle_conversation(self, conversation_id: str, *, key: str = "") -> list[TaskList]:
        boards.check_conversation(conversation_id)
        change = partial(boards.settled, now=self._boards.now())
        changed_boards = [
            await self._change(board_key, change, key)
            for board_key in self._board_keys_of(conversation_id)
        ]
        return [board for board in changed_boards if board is not None]

    async def _change_task(
        self,
        conversation_id: str,
        agent_id: AgentId,
        task_id: str,
        change: Callable[..., TaskList | None],
        *,
        key: str,
    ) -> Task | None:
        boards.check_task_id(task_id)
        board_key = self._board_key(conversation_id, agent_id)
        task_change = partial(change, task_id=task_id, now=self._boards.now())
        board = await self._change(board_key, task_change, key)
        return None if board is None else boards.task_of(board, task_id)

    async def _change(
        self, board_key: _BoardKey, change: Callable[[TaskList], TaskList | None], key: str
    ) -> TaskList | None:
        def change_existing(board: TaskList | None) -> TaskList | None:
            if board is None:
                _, conversation_id, agent = board_key
                raise boards.no_board(conversation_id, AgentId.parse(agent))
            return change(board)

        return await self._apply(board_key, change_existing, key)

    async def _apply(
        self, board_key: _BoardKey, change: Callable[[TaskList | None], TaskList | None], key: str
    ) -> TaskList | None:
        """Apply a change to a board; return the board after it, or None if the change has nothing to do."""
        boards.check_key(key)
        async with self._boards.lock:
            stored_board = self._boards.kept.get(board_key)
            keys = () if stored_board is None else stored_board.keys
            # A step that is executed again after a crash must not change the board a second time.
            if stored_board is not None and key and key in keys:
                return stored_board.board
            board = change(None if stored_board is None else stored_board.board)
            if board is not None:
                new_keys = (key, *keys)[: boards.MAX_KEYS] if key else keys
                self._boards.kept[board_key] = _StoredBoard(board, new_keys)
        return board

    def _board_key(self, conversation_id: str, agent_id: AgentId) -> _BoardKey:
        boards.check_place(self.tenant, conversation_id, agent_id)
        return self.tenant, conversation_id, str(agent_id)

    def _board_keys_of(self, conversation_id: str) -> list[_BoardKey]:
        conversation = self.tenant, conversation_id
        return sorted(board_key for board_key in self._boards.kept if board_key[:2] == conversation)


class GlobalTaskStore:
    """The store of boards of this process, for code that has no reference to a store.

    By default it is in memory. `set` replaces it. A runtime with ``RUNTIME_BACKEND=postgres`` replaces it from
    its opening to its closing.
    """

    _default: ClassVar[TaskStores] = InMemoryTaskBoards()
    _stores: ClassVar[list[tuple[object, TaskStores]]] = []
    """The stores in the order in which they were given, each with its giver. The last one is used."""

    @classmethod
    def get(cls) -> TaskStore:
        """Return the store of the tenant whose agent executes.

        Outside of agents it is the default tenant's store.

        Raises:
            OtherTenantError: The store that was set belongs to another tenant.
        """
        agent = current_agent_id.get("")
        tenant = AgentId.parse(agent).tenant if agent else DEFAULT_TENANT
        return (cls._stores[-1][1] if cls._stores else cls._default).of(tenant)

    @classmethod
    def erasable(cls) -> list[Erasable]:
        """Return the stores of this process that `Runtime.erase` can erase."""
        stores = [cls._default, *(store for _, store in cls._stores)]
        return [store for store in stores if isinstance(store, Erasable)]

    @classmethod
    def set(cls, store: TaskStore | TaskStores | None) -> None:
        """Use this store from now on; for None use the store in memory, or that of an open runtime.

        Args:
            store: A `TaskStore` serves only its own tenant. On a host of several tenants give a `TaskStores`.
        """
        cls._forget(cls)
        if store is not None:
            cls._stores.append((cls, _stores_of(store)))

    @classmethod
    @contextmanager
    def using(cls, store: TaskStore | TaskStores) -> Iterator[None]:
        """Use this store inside the block.

        Blocks may end in any order, since each removes only its own store.
        """
        giver = object()
        cls._stores.append((giver, _stores_of(store)))
        try:
            yield
        finally:
            cls._forget(giver)

    @classmethod
    def _forget(cls, giver: object) -> None:
        cls._stores[:] = [entry for entry in cls._stores if entry[0] is not giver]


class _OneStore(TaskStores):
    """A `TaskStores` that has the store of only one tenant."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store

    @override
    def of(self, tenant: str) -> TaskStore:
        own_tenant = getattr(self._store, "tenant", tenant)
        if own_tenant != tenant:
            raise OtherTenantError("the global task store", tenant)
        return self._store


def _stores_of(store: TaskStore | TaskStores) -> TaskStores:
    return store if isinstance(store, TaskStores) else _OneStore(store)


def _require(result: T | None) -> T:
    assert result is not None, "only a retry at its limit may change nothing"
    return result
