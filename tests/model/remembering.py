"""Verbs of `ctx.memory` in the model: remember, recall, forget, block, set_block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from actors._kernel.json import canonical_json
from actors._kernel.memory_rules import slot_of
from actors._kernel.runtime.effects import Effect, args_hash
from actors._kernel.runtime.ids import derive_id
from actors._kernel.stores.memory import MemoryConflictError
from tests.model.conversation import Conversations
from tests.model.memories import LIMIT, Kept, name_of
from tests.model.scripted import embedding_name
from tests.model.verbs import came_of, error_record

if TYPE_CHECKING:
    from tests.model.branches import Branch, Wait

EMBEDS: Final = ("memory.remember", "memory.recall")
"""Verbs that ask the embedder, with their first argument."""
OWN: Final = "agent"


class Remembering(Conversations):
    """See the module's docstring."""

    @property
    def tag(self) -> str:
        """Mark by which the run differs from others of its program."""
        raise NotImplementedError

    def _remember(self, branch: Branch, text: str, key: str | None, about: str) -> None:
        self._memory_verb(branch, "remember", [text, key, about, {}, "user"])

    def _recall(self, branch: Branch, query: str, about: str) -> None:
        rest = [LIMIT, "hybrid", None, None, None]
        self._memory_verb(branch, "recall", [query, about, *rest])

    def _forget(self, branch: Branch, key_or_id: str, about: str) -> None:
        self._memory_verb(branch, "forget", [key_or_id, about])

    def _block(self, branch: Branch, name: str) -> None:
        self._memory_verb(branch, "block", [name])

    def _set_block(self, branch: Branch, name: str, text: str, expected: int) -> None:
        self._memory_verb(branch, "set_block", [name, text, expected])

    def _memory_verb(self, branch: Branch, verb: str, words: list[Any]) -> None:
        name = f"memory.{verb}"
        digest = args_hash([name, *words])
        self._effect(branch, ("step", "idempotent", digest, name, words))

    @override
    def execute(self, branch: Branch, wait: Wait) -> None:
        name = wait.plan[3]
        if wait.plan[0] != "step" or not name.startswith("memory."):
            super().execute(branch, wait)
            return
        outcome, called = {"d": 0.0}, ""
        if name in EMBEDS:
            called = embedding_name(wait.plan[4][0], self.tag)
            self.world.touch(called, wait.position, writes=True)
            outcome, n = self._executed(called)
            called = f"{called}#{n}"
        else:
            self.lookups.append(branch)
        wait.plan = (*wait.plan, outcome, called)
        self.at(self.world.now + outcome["d"], branch, wait)

    @override
    def happen(self, branch: Branch, wait: Wait) -> None:
        if wait.plan[0] != "step" or not wait.plan[3].startswith("memory."):
            super().happen(branch, wait)
            return
        rest = came_of("step", wait.plan[5], wait.plan[6])
        if rest["status"] == "ok":
            try:
                rest["value"] = self._done(wait.plan[3], wait.position, wait.plan[4])
            except MemoryConflictError as exc:
                rest = {"status": "error", "error": error_record(exc)}
        self.conclude(branch, wait, rest)

    def _done(self, name: str, position: str, words: list[Any]) -> Any:
        """Return what the store answers."""
        shelf, own = self.world.shelf, f"agent:{self.box.agent}"
        blocks = f"blocks:{own}"
        match name, words:
            case "memory.remember", [text, key, about, *_]:
                new = self._new(name, position, words, (self._scope_of(about), key, text))
                return shelf.put(self._touched(about, writes=True), key, new).id
            case "memory.recall", [_, about, *_]:
                return shelf.present(self._touched(about, writes=False))
            case "memory.forget", [key_or_id, about]:
                return shelf.forget(self._touched(about, writes=True), key_or_id)
            case "memory.set_block", [label, text, expected]:
                new = self._new(name, position, words, (blocks, label, text))
                memory = shelf.put(blocks, label, new, expected=expected)
                return [memory.text, memory.version]
            case _:
                versions = shelf.entries.get((blocks, name_of(words[0], "")), [])
                return [versions[-1].text, versions[-1].version] if versions else ["", 0]

    def _scope_of(self, about: str) -> str:
        return f"agent:{self.box.agent}" if about == OWN else about

    def _touched(self, about: str, *, writes: bool) -> str:
        """Return a scope, which other runs must not use in this instant if one of them writes."""
        scope = self._scope_of(about)
        self.world.touch(scope, str(self.run_id), writes=writes)
        return scope

    def _new(
        self, name: str, position: str, words: list[Any], slot: tuple[str, str | None, str]
    ) -> Kept:
        scope, key, text = slot
        effect = Effect.id_of_text(self.run_id, position, "step", canonical_json([name, *words]))
        id_ = derive_id("memory", effect, scope, slot_of(key, text), text)
        return Kept(0, text, id_, str(self.run_id), position)
