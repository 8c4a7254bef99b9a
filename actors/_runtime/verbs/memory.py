"""The memory of an agent: the verbs of `ctx.memory`, and the blocks that its models are shown.

Each verb is a recorded effect, so replay reads, embeds and writes nothing. `MemoryAccess` is bound to the
tenant and the lease of one run's agent, and records nothing. Blocks are labelled texts, as data, with which
a window begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

from actors._context.turns import data_message
from actors._kernel.agent.message import ChatMessage
from actors._kernel.json import JsonValue, sized
from actors._kernel.memory_rules import (
    BLOCKS,
    blocks_of,
    check_about,
    check_expected,
    check_key,
    checked_memory,
    checked_query,
    embedded_head,
    slot_of,
)
from actors._kernel.runtime.ids import AgentId, derive_id
from actors._kernel.runtime.scheduler import Lease
from actors._kernel.stores.data import QueryEmbeddingClient
from actors._kernel.stores.errors import InvalidDocumentError
from actors._kernel.stores.memory import (
    LongTermMemories,
    LongTermMemory,
    Memory,
    MemoryConflictError,
    MemoryQuery,
    MemorySource,
    NewMemory,
    RecallMode,
)
from actors._kernel.stores.runs import agent_scope
from actors._runtime.journal.run_log import reading
from actors._runtime.verbs.call import RunState, executing_effect
from actors._runtime.verbs.effects import Effects, effect
from actors.errors import ContractError, MessageTooLargeError

T = TypeVar("T")

OWN: Final = "agent"
"""The scope of the agent itself, as authors write it."""
EMBEDDING_TIMEOUT_S: Final = 60.0
_AGENTS: Final = "agent:"
BLOCKS_NOTE: Final = "Blocks of the agent's memory, each with its label."


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

    async def remember(self, new_memory: NewMemory) -> Memory:
        """Keep a text, and return the memory that holds it. See `AgentMemory.remember`.

        Args:
            new_memory: Its scope is as an author writes it. The effect that executes gives id, run and turn.
        """
        scope, fence = self.scope(new_memory.about)
        embedding = await self._embedding(new_memory.text, is_query=False)
        stamped_memory = _stamped(new_memory, scope)
        return await self._ask_store(
            partial(self._store.put, stamped_memory, embedding=embedding, fence=fence)
        )

    async def recall(self, query: MemoryQuery) -> list[Memory]:
        """Return the memories that match best. The query has the author's scope and no embedding."""
        needs_embedding = query.mode != "words" and bool(query.text.strip())
        embedding = await self._embedding(query.text, is_query=True) if needs_embedding else None
        store_query = replace(query, about=self.scope(query.about)[0], embedding=embedding)
        return await self._ask_store(partial(self._store.search, store_query))

    async def forget(self, key_or_id: str, *, about: str) -> int:
        """Remove a memory and return how many versions it had."""
        scope, fence = self.scope(about)
        return await self._ask_store(
            partial(self._store.forget, key_or_id, about=scope, fence=fence)
        )

    async def block(self, label: str) -> MemoryBlock:
        """Return the agent's block."""
        scope = blocks_of(self.scope(OWN)[0])
        versions = await self._ask_store(partial(self._store.versions, label, about=scope))
        return _block(versions[0]) if versions else MemoryBlock(label=label)

    async def set_block(self, label: str, text: str, *, expected: int) -> MemoryBlock:
        """Write the agent's block if it has the expected version, and return it."""
        scope, fence = self.scope(OWN)
        new_memory = NewMemory(
            id="", about=OWN, text=text, key=label, source="model", expected=expected
        )
        stamped_memory = _stamped(new_memory, blocks_of(scope))
        return _block(await self._ask_store(partial(self._store.put, stamped_memory, fence=fence)))

    def check(self, request: NewMemory | MemoryQuery) -> None:
        """Check that this agent may keep this, or ask this.

        Raises:
            ContractError: See `AgentMemory`.
        """
        scope, _ = self.scope(request.about)
        if isinstance(request, NewMemory):
            checked_memory(replace(request, about=scope), None)
            return
        if request.mode == "meaning" and not request.text.strip():
            raise ContractError("a search by meaning needs a query that is not empty")
        has_embedding = request.mode == "meaning" and self._run.embedder is not None
        checked_query(replace(request, about=scope, embedding=(1.0,) if has_embedding else None))

    def scope(self, about: str) -> tuple[str, Lease | None]:
        """Return the store's name of a scope, and the lease that fences it, or None if others write there, too.

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
        return self._run.store.data.memories.of(self._run.agent_id.tenant)

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

    async def _ask_store(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what the store returns, or raise an error that the author's code has to see."""

        # Returned, not raised: `reading` takes every error of the store for a reason to load the run again.
        async def answer() -> T | ContractError | MemoryConflictError:
            try:
                return await ask()
            except (ContractError, MemoryConflictError) as exc:
                return exc

        result = await reading(self._run.log, answer)
        if isinstance(result, ContractError | MemoryConflictError):
            raise result
        return result


def memory_access() -> MemoryAccess:
    """Return the memories of the agent whose step or tool executes now.

    For use inside a function given to `ctx.step` or a tool, which records what it returns.

    Raises:
        ContractError: No effect is executing here.
    """
    _, run = executing_effect("memory_access")
    return MemoryAccess(run)


def _stamped(memory: NewMemory, scope: str) -> NewMemory:
    """Return a text as the effect keeps it that executes now: the same on each repetition of it."""
    call, run = executing_effect("ctx.memory")
    slot = slot_of(memory.key, memory.text)
    id_ = derive_id("memory", call.key, scope, slot, memory.text)
    return replace(memory, id=id_, about=scope, run_id=run.run_id, turn=call.position)


def _block(memory: Memory) -> MemoryBlock:
    return MemoryBlock(label=memory.key or "", text=memory.text, version=memory.version)


MAX_RECALL_BYTES: Final = 256 * 1024
"""Largest sum of the hits of one `recall`, as JSON, because they are recorded in the log."""


class AgentMemory:
    """Memories of the run's agent: texts in scopes of its tenant, and labelled blocks of its own.

    The scope ``agent`` is the agent's own. Others, for example ``user:7``, are shared by the agents of the
    tenant. Nobody names another agent's scope, or another tenant's.
    """

    def __init__(self, run: RunState, effects: Effects) -> None:
        self._run, self._effects = run, effects
        self._access = MemoryAccess(run)

    async def remember(
        self,
        text: str,
        *,
        key: str | None = None,
        about: str = OWN,
        metadata: Mapping[str, JsonValue] | None = None,
        source: MemorySource = "user",
    ) -> str:
        """Keep a text and return the id of the memory that holds it. Durable when it returns, once.

        An equal text changes nothing. Another text of a known key replaces it, and the earlier version
        says until when it was valid. With the agent's `embedder` the text is found by meaning, too: by that of
        its first 16 KiB. A crash may embed again; it keeps nothing twice.

        Args:
            text: At most 64 KiB in UTF-8.
            key: Name of the text in its scope, for example ``units``; without it the text is its own name.
            about: The scope.
            metadata: JSON object for `recall(filter=)`, at most 64 KiB.
            source: The one whose words these are.

        Raises:
            ContractError: A limit is exceeded, a text cannot be kept, or the scope is another agent's.
            Exception: What the embedder raised; nothing was kept.
        """
        new_memory = NewMemory(
            id="", about=about, text=text, key=key, source=source, metadata=metadata or {}
        )
        self._access.check(new_memory)

        async def remember() -> str:
            return (await self._access.remember(new_memory)).id

        arguments: list[JsonValue] = [text, key, about, dict(new_memory.metadata), source]
        return str(await self._recorded("remember", arguments, remember))

    async def recall(
        self,
        query: str,
        *,
        about: str = OWN,
        limit: int = 5,
        mode: RecallMode = "hybrid",
        filter: Mapping[str, JsonValue] | None = None,  # noqa: A002 - as stores call it
        as_of: datetime | None = None,
        sources: Sequence[MemorySource] | None = None,
    ) -> list[Memory]:
        """Return the memories that match best, best first. The same on replay.

        Without an `embedder` the agent has words only, and ``hybrid`` means these. Give a model what was
        recalled as data: see `recalled_turn`.

        Args:
            query: Searched for.
            about: The scope.
            limit: Maximum number of hits, at most 100.
            mode: ``meaning``: by embeddings. ``words``: by words and their spelling. ``hybrid``: both.
            filter: Each key must be in a memory's metadata, with a value equal as JSON.
            as_of: An aware instant, whose versions are searched; by default the present ones are.
            sources: Only memories of these origins.

        Raises:
            ContractError: The query cannot be meant, or means ``meaning`` and the agent has no `embedder`.
            MessageTooLargeError: The hits have more than 256 KiB as JSON: use a smaller `limit`.
        """
        memory_query = MemoryQuery(
            text=query,
            about=about,
            limit=limit,
            mode=mode,
            filter=filter,
            sources=None if sources is None else tuple(sources),
            as_of=as_of,
        )
        self._access.check(memory_query)

        async def recall() -> list[Any]:
            memories = await self._access.recall(memory_query)
            value = [memory.model_dump(mode="json") for memory in memories]
            size_bytes = sized(value, where="ctx.memory.recall")[1]
            if size_bytes > MAX_RECALL_BYTES:
                what = "result of ctx.memory.recall, to be narrowed by limit=,"
                raise MessageTooLargeError(what, size_bytes, MAX_RECALL_BYTES)
            return value

        arguments: list[JsonValue] = [
            *(query, about, limit, mode, None if filter is None else dict(filter)),
            None if as_of is None else as_of.isoformat(),
            None if sources is None else [*sources],
        ]
        hits: Any = await self._recorded("recall", arguments, recall)
        return [Memory.model_validate(hit) for hit in hits]

    async def forget(self, key_or_id: str, *, about: str = OWN) -> bool:
        """Remove a memory with all its versions; return False if there is none.

        A crash may have it done again, which returns False then.

        Args:
            key_or_id: Its key, or the id of any of its versions.
            about: The scope.

        Raises:
            ContractError: This names no memory, or the scope is another agent's.
        """
        self._access.scope(about)
        check_key(key_or_id)

        async def forget() -> bool:
            return await self._access.forget(key_or_id, about=about) > 0

        return bool(await self._recorded("forget", [key_or_id, about], forget))

    async def block(self, label: str) -> MemoryBlock:
        """Return the agent's block of this label, with version 0 if there is none. The same on replay."""
        check_key(label)

        async def read() -> dict[str, Any]:
            return (await self._access.block(label)).model_dump(mode="json")

        return MemoryBlock.model_validate(await self._recorded("block", [label], read))

    async def set_block(self, label: str, text: str, *, expected: int) -> MemoryBlock:
        """Write the agent's block of this label, if it still has the expected version, and return it.

        Durable when it returns. No write of another run is lost: the slower writer gets the present text.

        Args:
            label: Name of the block, at most 1 KiB.
            text: At most 64 KiB in UTF-8.
            expected: `MemoryBlock.version` of the text that this one was made of; 0 for a new block.

        Raises:
            MemoryConflictError: It has another version; the error has its text.
            ContractError: A limit is exceeded, or a text cannot be kept.
        """
        check_key(label)
        check_expected(expected)
        self._access.check(NewMemory(id="", about=OWN, text=text, key=label, expected=expected))

        async def write() -> dict[str, Any]:
            block = await self._access.set_block(label, text, expected=expected)
            return block.model_dump(mode="json")

        arguments: list[JsonValue] = [label, text, expected]
        return MemoryBlock.model_validate(await self._recorded("set_block", arguments, write))

    async def _recorded(
        self, verb: str, arguments: list[JsonValue], work: Callable[[], Awaitable[Any]]
    ) -> JsonValue:
        name = f"memory.{verb}"
        return await self._effects.perform(effect("step", name, [name, *arguments], partial(work)))


async def block_turns(
    memories: LongTermMemories, agent: AgentId, labels: Sequence[str]
) -> list[ChatMessage]:
    """Return the turn that shows an agent's blocks to its model; none if there are no such blocks.

    Args:
        memories: Memories that are read once if there are labels, else not at all.
        agent: Owner of the blocks.
        labels: Those that are shown, in this order.
    """
    if not labels:
        return []
    about = blocks_of(agent_scope(agent))
    stored_blocks = await memories.of(agent.tenant).page(about=about, keys=labels)
    texts = {block.key: block.text for block in stored_blocks}
    block_data = [{"label": label, "text": texts[label]} for label in labels if label in texts]
    if not block_data:
        return []
    body = "\n".join(to_json(block).decode() for block in block_data)
    return [data_message("blocks", body, note=BLOCKS_NOTE, metadata={})]
