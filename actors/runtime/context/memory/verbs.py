"""The verbs of `ctx.memory`: each is a recorded effect, so replay reads, embeds and writes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from actors.errors import MessageTooLargeError
from actors.kernel.json import JsonValue, sized
from actors.kernel.memory_rules import check_expected, check_key
from actors.kernel.stores.memory import Memory, MemoryQuery, MemorySource, NewMemory, RecallMode
from actors.runtime.context.call import RunState
from actors.runtime.context.effects import Effects, effect
from actors.runtime.context.memory.access import OWN, MemoryAccess, MemoryBlock

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
            key: Name of the text in its scope, for example ``units``; None: the text is its own name.
            about: The scope.
            metadata: JSON object for `recall(filter=)`, at most 64 KiB.
            source: The one whose words these are.

        Raises:
            ContractError: A limit is exceeded, a text cannot be kept, or the scope is another agent's.
            Exception: What the embedder raised; nothing was kept.
        """
        given = NewMemory(
            id="", about=about, text=text, key=key, source=source, metadata=metadata or {}
        )
        self._access.check(given)

        async def remember() -> str:
            return (await self._access.remember(given)).id

        words: list[JsonValue] = [text, key, about, dict(given.metadata), source]
        return str(await self._recorded("remember", words, remember))

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
            as_of: An aware instant, whose versions are searched; None: the present ones.
            sources: Only memories of these origins.

        Raises:
            ContractError: The query cannot be meant, or means ``meaning`` and the agent has no `embedder`.
            MessageTooLargeError: The hits have more than 256 KiB as JSON: use a smaller `limit`.
        """
        asked = MemoryQuery(
            text=query,
            about=about,
            limit=limit,
            mode=mode,
            filter=filter,
            sources=None if sources is None else tuple(sources),
            as_of=as_of,
        )
        self._access.check(asked)

        async def recall() -> list[Any]:
            found = await self._access.recall(asked)
            value = [memory.model_dump(mode="json") for memory in found]
            size_bytes = sized(value, where="ctx.memory.recall")[1]
            if size_bytes > MAX_RECALL_BYTES:
                what = "result of ctx.memory.recall, to be narrowed by limit=,"
                raise MessageTooLargeError(what, size_bytes, MAX_RECALL_BYTES)
            return value

        words: list[JsonValue] = [
            *(query, about, limit, mode, None if filter is None else dict(filter)),
            None if as_of is None else as_of.isoformat(),
            None if sources is None else [*sources],
        ]
        found: Any = await self._recorded("recall", words, recall)
        return [Memory.model_validate(one) for one in found]

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
        """Return the agent's block of this label; version 0: there is none. The same on replay."""
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

        words: list[JsonValue] = [label, text, expected]
        return MemoryBlock.model_validate(await self._recorded("set_block", words, write))

    async def _recorded(
        self, verb: str, words: list[JsonValue], work: Callable[[], Awaitable[Any]]
    ) -> JsonValue:
        name = f"memory.{verb}"
        return await self._effects.perform(effect("step", name, [name, *words], partial(work)))
