"""The suite itself: a fault planted in memories is found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._inmemory import memories as _memories
from actors._inmemory.memories import InMemoryLongTermMemory
from actors._runtime.verbs import memory as _access
from actors._runtime.verbs.memory import AgentMemory, MemoryAccess
from tests.model.strategies import memory_cases
from tests.properties.remembering import REMEMBERING
from tests.properties.test_planted_faults import assert_found, everywhere_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors._kernel.stores.memory import Memory, NewMemory

ENOUGH: Final = 20
"""So many random programs, beside the corpus, have to be enough to find any of the faults."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("collected"),
]


def a_replay_embeds_again(patch: pytest.MonkeyPatch) -> None:
    """A recorded text is embedded once more by a replay."""
    remember = AgentMemory.remember

    async def again(self: AgentMemory, text: str, **options: Any) -> str:
        id_ = await remember(self, text, **options)
        await self._access._embedding(text, is_query=False)
        return id_

    patch.setattr(AgentMemory, "remember", again)


def equal_texts_are_versions(patch: pytest.MonkeyPatch) -> None:
    """A text that is there is kept once more."""
    next_version = vars(_memories)["next_version"]

    def always(new: NewMemory, present: Memory | None) -> int | None:
        if present is not None and present.text == new.text:
            return present.version + 1
        version: int | None = next_version(new, present)
        return version

    patch.setattr(_memories, "next_version", always)


def blocks_are_written_blindly(patch: pytest.MonkeyPatch) -> None:
    """A block is written whatever its writer expects."""
    put = InMemoryLongTermMemory.put

    async def blind(self: InMemoryLongTermMemory, new: NewMemory, **options: Any) -> Memory:
        return await put(self, replace(new, expected=None), **options)

    patch.setattr(InMemoryLongTermMemory, "put", blind)


def blocks_are_memories(patch: pytest.MonkeyPatch) -> None:
    """A block is found by `recall`, as it is in the agent's own scope."""
    patch.setattr(_access, "blocks_of", lambda about: about)


def earlier_versions_are_lost(patch: pytest.MonkeyPatch) -> None:
    """Only the present text stays."""
    patch.setattr(_memories, "KEPT_VERSIONS", 0)


def a_repeated_call_is_another_one(patch: pytest.MonkeyPatch) -> None:
    """A call that a crash repeats is kept as another one."""
    stamped, calls = vars(_access)["_stamped"], [0]

    def anew(memory: NewMemory, scope: str) -> NewMemory:
        calls[0] += 1
        stamped_memory: NewMemory = stamped(memory, scope)
        return replace(stamped_memory, id=f"{calls[0]}", text=f"{stamped_memory.text}{calls[0]}")

    patch.setattr(_access, "_stamped", anew)


def what_is_forgotten_stays(patch: pytest.MonkeyPatch) -> None:
    """`forget` says that it is done."""

    async def forget(self: MemoryAccess, key_or_id: str, *, about: str) -> int:
        del self, key_or_id, about
        return 1

    patch.setattr(MemoryAccess, "forget", forget)


PLANTED = [
    a_replay_embeds_again,
    equal_texts_are_versions,
    blocks_are_written_blindly,
    blocks_are_memories,
    earlier_versions_are_lost,
    a_repeated_call_is_another_one,
    what_is_forgotten_stays,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fault in place the comparison with the model fails."""
    found_by = everywhere_in(REMEMBERING.values(), memory_cases(), ENOUGH)
    assert_found(plant, found_by, monkeypatch)
