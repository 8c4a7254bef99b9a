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
_Place: TypeAlias = tuple[str, str, str]
"""Tenant, conversation and agent of a board."""


@dataclass(frozen=True, slots=True)
class _KeptBoard:
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
        self.kept: dict[_Place, _KeptBoard] = {}
        self.lock: asyncio.Lock = asyncio.Lock()

    @override
    def of(self, tenant: str) -> InMemoryTaskStore:
        return InMemoryTaskStore(tenant, boards=self)

    @override
    async def erase(
        self, what: EraseRequest, *, cursor: str | None = None, limit: int = ERASE_BATCH
    ) -> EraseCount:
        """See `Erasable.erase`. The conversation of a board is the session of the request."""
        del cursor
        async with self.lock:
            found = self._meant(what)[:limit]
            for place in found:
                del self.kept[place]
        return EraseCount({"boards": len(found)}, "+" if len(found) == limit else None)

    @override
    async def count(self, what: EraseRequest) -> dict[str, int]:
        return {"boards": len(self._meant(what))}

    def _meant(self, what: EraseRequest) -> list[_Place]:
        return [
            place
            for place in self.kept
            if place[0] == what.tenant
            and what.covers(AgentId.parse(place[2]))
            and what.session in (None, place[1])
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
        place = self._place(conversation_id, agent_id)
        now = self._boards.now()
        board = boards.created(conversation_id, agent_id, tasks, title=title, now=now)
        return _sure(await self._changed(place, lambda _: board, key))

    @override
    async def get_task_list(self, conversation_id: str, agent_id: AgentId) -> TaskList | None:
        kept = self._boards.kept.get(self._place(conversation_id, agent_id))
        return None if kept is None else kept.board

    @override
    async def get_boards(self, conversation_id: str) -> list[TaskList]:
        boards.check_conversation(conversation_id)
        return [self._boards.kept[place].board for place in self._places_of(conversation_id)]

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
        return _sure(await self._change_task(conversation_id, agent_id, task_id, change, key=key))

    @override
    async def add_tasks(
        self, conversation_id: str, agent_id: AgentId, tasks: Sequence[Task], *, key: str = ""
    ) -> TaskList:
        boards.numbered(tasks, first=0, now=None)
        place = self._place(conversation_id, agent_id)
        change = partial(boards.with_tasks, tasks=tasks, now=self._boards.now())
        return _sure(await self._change(place, change, key))

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
        return _sure(await self._change_task(conversation_id, agent_id, task_id, change, key=key))

    @override
    async def settle_conversation(self, conversation_id: str, *, key: str = "") -> list[TaskList]:
        boards.check_conversation(conversation_id)
        change = partial(boards.settled, now=self._boards.now())
        found = [
            await self._change(place, change, key) for place in self._places_of(conversation_id)
        ]
        return [board for board in found if board is not None]

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
        place = self._place(conversation_id, agent_id)
        made = partial(change, task_id=task_id, now=self._boards.now())
        board = await self._change(place, made, key)
        return None if board is None else boards.task_of(board, task_id)

    async def _change(
        self, place: _Place, change: Callable[[TaskList], TaskList | None], key: str
    ) -> TaskList | None:
        def of_kept(board: TaskList | None) -> TaskList | None:
            if board is None:
                _, conversation_id, agent = place
                raise boards.no_board(conversation_id, AgentId.parse(agent))
            return change(board)

        return await self._changed(place, of_kept, key)

    async def _changed(
        self, place: _Place, change: Callable[[TaskList | None], TaskList | None], key: str
    ) -> TaskList | None:
        """Apply a change to a board; return the board after it. None: the change has nothing to do."""
        boards.check_key(key)
        async with self._boards.lock:
            kept = self._boards.kept.get(place)
            keys = () if kept is None else kept.keys
            if kept is not None and key and key in keys:
                return kept.board
            board = change(None if kept is None else kept.board)
            if board is not None:
                known = (key, *keys)[: boards.MAX_KEYS] if key else keys
                self._boards.kept[place] = _KeptBoard(board, known)
        return board

    def _place(self, conversation_id: str, agent_id: AgentId) -> _Place:
        boards.check_place(self.tenant, conversation_id, agent_id)
        return self.tenant, conversation_id, str(agent_id)

    def _places_of(self, conversation_id: str) -> list[_Place]:
        conversation = self.tenant, conversation_id
        return sorted(place for place in self._boards.kept if place[:2] == conversation)


class GlobalTaskStore:
    """The store of boards of this process, for code that has no reference to a store.

    By default it is in memory. `set` replaces it. A runtime with ``RUNTIME_BACKEND=postgres`` replaces it from
    its opening to its closing.
    """

    _default: ClassVar[TaskStores] = InMemoryTaskBoards()
    _given: ClassVar[list[tuple[object, TaskStores]]] = []
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
        return (cls._given[-1][1] if cls._given else cls._default).of(tenant)

    @classmethod
    def erasable(cls) -> list[Erasable]:
        """Return the stores of this process that `Runtime.erase` can erase."""
        stores = [cls._default, *(one for _, one in cls._given)]
        return [one for one in stores if isinstance(one, Erasable)]

    @classmethod
    def set(cls, store: TaskStore | TaskStores | None) -> None:
        """Use this store from now on. None: use the store in memory, or that of an open runtime.

        Args:
            store: A `TaskStore` serves only its own tenant. On a host of several tenants give a `TaskStores`.
        """
        cls._forget(cls)
        if store is not None:
            cls._given.append((cls, _stores_of(store)))

    @classmethod
    @contextmanager
    def using(cls, store: TaskStore | TaskStores) -> Iterator[None]:
        """Use this store inside the block.

        Blocks may end in any order, since each removes only its own store.
        """
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
    """A `TaskStores` that has the store of only one tenant."""

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


def _sure(changed: T | None) -> T:
    assert changed is not None, "only a retry at its limit may change nothing"
    return changed
