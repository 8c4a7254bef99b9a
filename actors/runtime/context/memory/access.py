"""Access to the memories of one run's agent, bound to its tenant and lease. Nothing is recorded here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict

from actors.errors import ContractError
from actors.kernel.memory_rules import (
    BLOCKS,
    blocks_of,
    check_about,
    checked_memory,
    checked_query,
    embedded_head,
    slot_of,
)
from actors.kernel.runtime.ids import derive_id
from actors.kernel.runtime.scheduler import Lease
from actors.kernel.stores.data import QueryEmbeddingClient
from actors.kernel.stores.errors import InvalidDocumentError
from actors.kernel.stores.memory import (
    LongTermMemory,
    Memory,
    MemoryConflictError,
    MemoryQuery,
    NewMemory,
)
from actors.kernel.stores.runs import agent_scope
from actors.runtime.context.call import RunState, executing_effect
from actors.runtime.journal.reading import reading

T = TypeVar("T")

OWN: Final = "agent"
"""The scope of the agent itself, as authors write it."""
EMBEDDING_TIMEOUT_S: Final = 60.0
_AGENTS: Final = "agent:"


class MemoryBlock(BaseModel):
    """A labelled text of an agent.

    Attributes:
        label: Its name.
        text: Empty if there is no such block.
        version: To be expected by its next writer; 0: there is no such block.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    text: str = ""
    version: int = 0


class MemoryAccess:
    """Calls of the store for one run. To be used within an effect, whose id makes writes idempotent.

    The agent's own scope is fenced: once another host owns the agent's shard, a write is refused and the run
    is evicted. A store that cannot be reached is asked again; other trouble of it breaks the execution off.
    """

    def __init__(self, run: RunState) -> None:
        self._run = run

    async def remember(self, given: NewMemory) -> Memory:
        """Keep a text, and return the memory that holds it. See `AgentMemory.remember`.

        Args:
            given: Its scope is as an author writes it; id, run and turn are those of the effect that executes.
        """
        scope, fence = self.scope(given.about)
        embedding = await self._embedding(given.text, is_query=False)
        new = _stamped(given, scope)
        return await self._asked(partial(self._store.put, new, embedding=embedding, fence=fence))

    async def recall(self, query: MemoryQuery) -> list[Memory]:
        """Search. See `AgentMemory.recall`; the query has the author's scope and no embedding."""
        is_meant = query.mode != "words" and bool(query.text.strip())
        embedding = await self._embedding(query.text, is_query=True) if is_meant else None
        asked = replace(query, about=self.scope(query.about)[0], embedding=embedding)
        return await self._asked(partial(self._store.search, asked))

    async def forget(self, key_or_id: str, *, about: str) -> int:
        """Remove a memory and return how many versions it had."""
        scope, fence = self.scope(about)
        return await self._asked(partial(self._store.forget, key_or_id, about=scope, fence=fence))

    async def block(self, label: str) -> MemoryBlock:
        """Return the agent's block."""
        scope = blocks_of(self.scope(OWN)[0])
        found = await self._asked(partial(self._store.versions, label, about=scope))
        return _block(found[0]) if found else MemoryBlock(label=label)

    async def set_block(self, label: str, text: str, *, expected: int) -> MemoryBlock:
        """Write the agent's block. See `AgentMemory.set_block`."""
        scope, fence = self.scope(OWN)
        given = NewMemory(id="", about=OWN, text=text, key=label, source="model", expected=expected)
        new = _stamped(given, blocks_of(scope))
        return _block(await self._asked(partial(self._store.put, new, fence=fence)))

    def check(self, given: NewMemory | MemoryQuery) -> None:
        """Check that this agent may keep this, or ask this.

        Raises:
            ContractError: See `AgentMemory`.
        """
        scope, _ = self.scope(given.about)
        if isinstance(given, NewMemory):
            checked_memory(replace(given, about=scope), None)
            return
        if given.mode == "meaning" and not given.text.strip():
            raise ContractError("a search by meaning needs a query that is not empty")
        is_meant = given.mode == "meaning" and self._run.embedder is not None
        checked_query(replace(given, about=scope, embedding=(1.0,) if is_meant else None))

    def scope(self, about: str) -> tuple[str, Lease | None]:
        """Return the store's name of a scope, and the lease that fences it; None: others write there, too.

        Raises:
            ContractError: It is another agent's, or no name.
        """
        own = agent_scope(self._run.agent_id)
        if about in (OWN, own):
            return own, self._run.log.lease
        check_about(about)
        if about.startswith((_AGENTS, BLOCKS)):
            remedy = "agents share what is about something else, for example about='user:7'"
            raise ContractError(f"about={about!r} is not this agent's memory: {remedy}")
        return about, None

    @property
    def _store(self) -> LongTermMemory:
        return self._run.store.memories.of(self._run.agent_id.tenant)

    async def _embedding(self, text: str, *, is_query: bool) -> tuple[float, ...] | None:
        embedder = self._run.embedder
        if embedder is None:
            return None
        ask = embedder.embed
        if is_query and isinstance(embedder, QueryEmbeddingClient):
            ask = embedder.embed_queries
        spans, name = self._run.spans, str(getattr(embedder, "model", ""))
        with nullcontext() if spans is None else spans.embedding(name):
            async with asyncio.timeout(EMBEDDING_TIMEOUT_S):
                vectors = await ask([embedded_head(text)])
        if len(vectors) != 1:
            problem = f"it returned {len(vectors)} vectors for one text: one is needed"
            raise InvalidDocumentError("embedder", problem)
        return tuple(vectors[0])

    async def _asked(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what the store returns, or raise what is the caller's to know."""

        async def answer() -> T | ContractError | MemoryConflictError:
            try:
                return await ask()
            except (ContractError, MemoryConflictError) as exc:
                return exc

        found = await reading(self._run.log, answer)
        if isinstance(found, ContractError | MemoryConflictError):
            raise found
        return found


def memory_access() -> MemoryAccess:
    """Return the memories of the agent whose step or tool executes now.

    For use inside a function given to `ctx.step` or a tool, which records what it returns.

    Raises:
        ContractError: No effect is executing here.
    """
    _, run = executing_effect("memory_access")
    return MemoryAccess(run)


def _stamped(given: NewMemory, scope: str) -> NewMemory:
    """Return a text as the effect keeps it that executes now: the same on each repetition of it."""
    call, run = executing_effect("ctx.memory")
    slot = slot_of(given.key, given.text)
    id_ = derive_id("memory", call.key, scope, slot, given.text)
    return replace(given, id=id_, about=scope, run_id=run.run_id, turn=call.position)


def _block(memory: Memory) -> MemoryBlock:
    return MemoryBlock(label=memory.key or "", text=memory.text, version=memory.version)
