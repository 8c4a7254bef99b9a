"""Memories of the model: versions by scope and name, and the memories of a store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.stores.memory import MemoryConflictError

if TYPE_CHECKING:
    from actors._kernel.stores.memory import Memory
    from actors._kernel.stores.run_store import RunStore

TEXTS: Final = ("fact one", "fact two", "fact three")
"""Texts that programs keep."""
QUERY: Final = "fact"
"""The query of programs, which finds all of these."""
LIMIT: Final = 100


@dataclass(frozen=True, slots=True)
class Kept:
    """A version of a text."""

    version: int
    text: str
    id: str
    run: str
    turn: str


@dataclass(slots=True)
class Shelf:
    """The memories of one tenant.

    Attributes:
        entries: Versions, the present one last, by scope and name; a text without a key is its own name.
    """

    entries: dict[tuple[str, str], list[Kept]] = field(default_factory=dict)

    def put(self, scope: str, key: str | None, new: Kept, *, expected: int | None = None) -> Kept:
        """Store a text unless it exists, and return its memory; the version of `new` is assigned here.

        Raises: MemoryConflictError: The present version is not the expected one.
        """
        versions = self.entries.setdefault((scope, name_of(key, new.text)), [])
        for version in versions:
            if version.id == new.id:
                return version
        if versions and versions[-1].text == new.text:
            return versions[-1]
        present = versions[-1].version if versions else 0
        if expected is not None and expected != present:
            text = versions[-1].text if versions else None
            raise MemoryConflictError(key or new.id, scope, expected, present, text)
        versions.append(Kept(present + 1, new.text, new.id, new.run, new.turn))
        return versions[-1]

    def forget(self, scope: str, key_or_id: str) -> bool:
        """Remove a memory by its key, else by an id of it; return whether there was one."""
        slots = [(scope, name_of(key_or_id, "")), *self.entries]
        for slot in slots:
            versions = self.entries.get(slot, [])
            is_meant = slot == slots[0] or any(version.id == key_or_id for version in versions)
            if slot[0] == scope and versions and is_meant:
                del self.entries[slot]
                return True
        return False

    def present(self, scope: str) -> list[list[Any]]:
        """Return key, version and text of all present texts of a scope, in the order of `sorted`."""
        rows = [
            [name[2:] if name.startswith("k") else "", versions[-1].version, versions[-1].text]
            for (about, name), versions in self.entries.items()
            if about == scope and versions
        ]
        return sorted(rows)

    @property
    def texts(self) -> dict[str, list[str]]:
        """Return each memory with its versions as text."""
        return {
            f"{scope} {name}": [*map(str, versions)]
            for (scope, name), versions in sorted(self.entries.items())
            if versions
        }


def name_of(key: str | None, text: str) -> str:
    """Return the name of a memory in its scope."""
    return f"t {text}" if key is None else f"k {key}"


def hits_of(dumped: list[dict[str, Any]]) -> list[list[Any]]:
    """Return recalled memories in the form of `Shelf.present`."""
    return sorted([hit["key"] or "", hit["version"], hit["text"]] for hit in dumped)


async def shelf_of(store: RunStore, tenant: str) -> Shelf:
    """Return all memories of a tenant.

    Raises:
        AssertionError: Of some memory no version, or more than one, is present, or it is not the last one.
    """
    memories, shelf = store.data.memories.of(tenant), Shelf()
    for memory in await memories.page(limit=1000):
        versions = await memories.versions(memory.id, about=memory.about)
        assert [version.valid_until is None for version in versions] == [
            n == 0 for n in range(len(versions))
        ], versions
        slot = (memory.about, name_of(memory.key, memory.text))
        shelf.entries[slot] = [*map(_version_of, reversed(versions))]
    return shelf


def _version_of(memory: Memory) -> Kept:
    return Kept(memory.version, memory.text, memory.id, memory.run_id, memory.turn)
