"""Long-term memory in one process, separate for each tenant and scope."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TypeAlias

from pydantic import JsonValue
from pydantic_core import from_json
from typing_extensions import override

from actors._kernel.hidden import matches
from actors._kernel.memory_rules import (
    KEPT_VERSIONS,
    CheckedMemory,
    CheckedQuery,
    FoundMemory,
    check_about,
    check_page,
    checked_keys,
    checked_memory,
    checked_query,
    named,
    next_version,
    ranked,
    word_score,
    words_of,
)
from actors._kernel.runtime.ids import check_name
from actors._kernel.runtime.scheduler import Lease
from actors._kernel.search_rules import cosine
from actors._kernel.stores.memory import (
    LongTermMemories,
    LongTermMemory,
    Memory,
    MemoryQuery,
    NewMemory,
)
from actors.errors import LeaseLostError

_LATER: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class _StoredVersion:
    """A version of a memory.

    Its metadata is also kept as text, since callers may change the returned metadata.
    """

    memory: Memory
    metadata: str
    unit: array[float]

    def to_memory(self) -> Memory:
        return self.memory.model_copy(update={"metadata": from_json(self.metadata)})


_Slots: TypeAlias = dict[str, list[_StoredVersion]]
"""The versions of memories by slot, the current one last."""


class InMemoryLongTermMemories(LongTermMemories):
    """The memories of all tenants of one process, which are lost with it.

    Args:
        now: The clock for the memories' instants.
        is_held: Function that returns True if a lease is still held.
    """

    def __init__(self, now: Callable[[], datetime], is_held: Callable[[Lease], bool]) -> None:
        self._now, self._is_held = now, is_held
        self._by_tenant: dict[str, dict[str, _Slots]] = {}

    @override
    def of(self, tenant: str) -> InMemoryLongTermMemory:
        scopes = self._by_tenant.setdefault(check_name("tenant", tenant), {})
        return InMemoryLongTermMemory(scopes, self._now, self._is_held)

    def removals(self, tenant: str, abouts: Sequence[str] | None) -> Iterator[Callable[[], object]]:
        """Yield for each version of a tenant's memories a function that removes it.

        Args:
            tenant: Owner of the memories.
            abouts: The scopes, or None for all scopes.
        """
        for about, slots in self._by_tenant.get(tenant, {}).items():
            if abouts is None or about in abouts:
                for slot, versions in slots.items():
                    for version in versions:
                        yield partial(_remove, slots, slot, version)


class InMemoryLongTermMemory(LongTermMemory):
    """A `LongTermMemory` of one tenant. `InMemoryLongTermMemories.of` makes it.

    A search compares the query with each memory of the scope, on the event loop.
    """

    def __init__(
        self, kept: dict[str, _Slots], now: Callable[[], datetime], is_held: Callable[[Lease], bool]
    ) -> None:
        self._scopes, self._now, self._is_held = kept, now, is_held

    @override
    async def put(
        self,
        new: NewMemory,
        *,
        embedding: tuple[float, ...] | None = None,
        fence: Lease | None = None,
    ) -> Memory:
        valid_memory = checked_memory(new, embedding)
        self._check(fence)
        versions = self._scopes.setdefault(new.about, {}).get(valid_memory.slot, [])
        existing = next(
            (version for version in self._versions_in(None) if version.memory.id == new.id), None
        )
        # The request was sent again: its first call has written the memory.
        if existing is not None:
            return existing.to_memory()
        current = versions[-1] if versions else None
        version = next_version(new, None if current is None else current.memory)
        if version is None:
            assert current is not None
            return current.to_memory()
        new_version = self._version(valid_memory, version, versions)
        if current is not None:
            until = {"valid_until": new_version.memory.updated_at}
            memory = current.memory.model_copy(update=until)
            versions[-1] = _StoredVersion(memory, current.metadata, current.unit)
        versions.append(new_version)
        del versions[: -KEPT_VERSIONS - 1]
        self._scopes[new.about][valid_memory.slot] = versions
        return new_version.to_memory()

    @override
    async def search(self, query: MemoryQuery) -> list[Memory]:
        valid_query = checked_query(query)
        hits = []
        for version in self._versions_in(query.about):
            if not _is_match(version, valid_query):
                continue
            is_comparable = bool(valid_query.unit) and len(valid_query.unit) == len(version.unit)
            meaning = cosine(valid_query.unit, version.unit) if is_comparable else None
            words = (
                word_score(valid_query.words, words_of(version.memory.text))
                if valid_query.words
                else 0.0
            )
            hits.append(
                FoundMemory(memory=version.to_memory(), meaning=meaning, words=words or None)
            )
        return ranked(hits, query, valid_query.candidates)

    @override
    async def versions(self, key_or_id: str, *, about: str) -> list[Memory]:
        slot = self._slot(key_or_id, about)
        versions = [] if slot is None else self._scopes[about][slot]
        return [version.to_memory() for version in reversed(versions)]

    @override
    async def forget(self, key_or_id: str, *, about: str, fence: Lease | None = None) -> int:
        self._check(fence)
        slot = self._slot(key_or_id, about)
        return 0 if slot is None else len(self._scopes[about].pop(slot))

    @override
    async def page(
        self,
        *,
        about: str | None = None,
        keys: Sequence[str] | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Memory]:
        check_page(limit, offset)
        valid_keys = None if keys is None else checked_keys(keys)
        current_versions = [
            version
            for version in self._versions_in(about)
            if version.memory.valid_until is None
            and (valid_keys is None or version.memory.key in valid_keys)
        ]
        current_versions.sort(key=lambda version: version.memory.id)
        current_versions.sort(key=lambda version: version.memory.updated_at, reverse=True)
        return [version.to_memory() for version in current_versions[offset : offset + limit]]

    def _version(
        self, valid_memory: CheckedMemory, version: int, versions: list[_StoredVersion]
    ) -> _StoredVersion:
        new, now = valid_memory.new, self._now()
        if versions:  # the clock may not advance, or go back
            now = max(now, versions[-1].memory.updated_at + _LATER)
        memory = Memory(
            id=new.id,
            key=new.key,
            about=new.about,
            text=new.text,
            source=new.source,
            run_id=new.run_id,
            turn=new.turn,
            version=version,
            created_at=versions[-1].memory.created_at if versions else now,
            updated_at=now,
        )
        return _StoredVersion(memory, valid_memory.metadata, valid_memory.unit)

    def _check(self, fence: Lease | None) -> None:
        if fence is not None and not self._is_held(fence):
            raise LeaseLostError(fence.shard, fence.owner, fence.epoch)

    def _slot(self, key_or_id: str, about: str) -> str | None:
        _, slot_of_key, _ = named(key_or_id, about)
        slots = self._scopes.get(about, {})
        if slot_of_key in slots:
            return slot_of_key
        slots_of_id = (
            slot
            for slot, versions in slots.items()
            if any(version.memory.id == key_or_id for version in versions)
        )
        return next(slots_of_id, None)

    def _versions_in(self, about: str | None) -> Iterator[_StoredVersion]:
        if about is not None:
            check_about(about)
        for name, slots in self._scopes.items():
            if about in (None, name):
                for versions in slots.values():
                    yield from versions


def _is_match(version: _StoredVersion, valid_query: CheckedQuery) -> bool:
    query, memory = valid_query.query, version.memory
    if query.as_of is None:
        is_valid = memory.valid_until is None
    else:
        is_later = memory.valid_until is None or memory.valid_until > query.as_of
        is_valid = memory.updated_at <= query.as_of and is_later
    is_of_source = query.sources is None or memory.source in query.sources
    conditions: dict[str, JsonValue] = valid_query.filter or {}
    return is_valid and is_of_source and matches(from_json(version.metadata), conditions)


def _remove(slots: _Slots, slot: str, version: _StoredVersion) -> None:
    """Remove a version. If it is the slot's last version, remove the slot, too."""
    slots[slot].remove(version)
    if not slots[slot]:
        del slots[slot]
