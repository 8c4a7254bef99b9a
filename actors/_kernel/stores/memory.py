"""Long-term memory: texts that agents keep beyond a conversation, with versions and an origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from actors._kernel.runtime.scheduler import Lease
from actors.errors import ConflictError, Facts

MemorySource: TypeAlias = Literal["user", "model", "tool", "operator"]
"""The one whose words a memory is."""
RecallMode: TypeAlias = Literal["hybrid", "meaning", "words"]


class Memory(BaseModel):
    """A version of a kept text.

    Attributes:
        id: 32 hexadecimal digits; each version has its own.
        key: Name of the text within `about`, or None if the text is its own name.
        about: Scope: ``agent:<type>/<key>``, or a word of the author's such as ``user:7``.
        text: The text.
        source: Its origin.
        run_id: The run that kept it; empty: none did.
        turn: Position of the call in that run.
        metadata: JSON data that a search may filter by.
        version: 1 for the first text of a key.
        created_at: The instant at which the first version was kept.
        updated_at: The instant at which this version was kept.
        valid_until: The instant at which another text replaced it, or None if it is the present text.
        score: Of a hit, greater is better: the cosine for ``meaning``, the share of words for ``words``,
            the sum of reciprocal ranks for ``hybrid``.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    id: str
    key: str | None = None
    about: str
    text: str
    source: MemorySource = "user"
    run_id: str = ""
    turn: str = ""
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    version: int = 1
    created_at: datetime
    updated_at: datetime
    valid_until: datetime | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMemory:
    """A text to be kept. See `Memory` for what is not said here.

    Attributes:
        id: The same for each repetition of one request.
        expected: Version that is there now, 0 for none, or None for any version.
    """

    id: str
    about: str
    text: str
    key: str | None = None
    source: MemorySource = "user"
    run_id: str = ""
    turn: str = ""
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    expected: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryQuery:
    """A search in one scope.

    Attributes:
        text: Searched for by its words.
        embedding: Searched for by meaning, or None if only words count.
        about: The scope.
        limit: Maximum number of hits.
        mode: ``hybrid`` joins the rankings by meaning and by words.
        filter: Each key must be in a memory's metadata, with an equal value.
        sources: Only memories of these origins, or None for all.
        as_of: Only versions that were present at this instant, or None for the present ones.
    """

    text: str
    about: str
    embedding: tuple[float, ...] | None = None
    limit: int = 5
    mode: RecallMode = "hybrid"
    filter: Mapping[str, JsonValue] | None = None
    sources: tuple[MemorySource, ...] | None = None
    as_of: datetime | None = None


class MemoryConflictError(Facts, ConflictError):
    """A memory has another version than its writer expected. Nothing was changed."""

    text = (
        "{name!r} of {about!r} has version {version}, not {expected}: its text is now {present!r}; "
        "decide again with that, and expect version {version}"
    )
    name: str
    about: str
    expected: int
    version: int
    present: str | None


@runtime_checkable
class LongTermMemory(Protocol):
    """The memories of one tenant, in scopes that do not see each other.

    A key, or a text without one, has one present version in a scope. Earlier ones stay, with `valid_until`;
    of these the `KEPT_VERSIONS` newest. Calls with a `fence` write nothing once another host owns the shard.
    """

    async def put(
        self,
        new: NewMemory,
        *,
        embedding: tuple[float, ...] | None = None,
        fence: Lease | None = None,
    ) -> Memory:
        """Keep a text, and return the memory that holds it now. Safe to send again.

        An equal text changes nothing; another text of a known key is a new version of it. Of equal requests
        at the same time one is kept.

        Raises:
            MemoryConflictError: The present version is not the expected one, and has another text.
            LeaseLostError: The fence's shard has another owner or epoch.
            ContractError: A limit is exceeded, or a text cannot be kept.
        """

    async def search(self, query: MemoryQuery) -> list[Memory]:
        """Return the best hits, best first; equal ones newest first.

        Memories with an embedding of another length are found by their words only.

        Raises:
            ContractError: The query cannot be meant, or asks for meaning and has no embedding.
        """

    async def versions(self, key_or_id: str, *, about: str) -> list[Memory]:
        """Return all versions of a memory, the present one first; nothing of an unknown one."""

    async def forget(self, key_or_id: str, *, about: str, fence: Lease | None = None) -> int:
        """Remove all versions of a memory, with their embeddings, and return their number.

        Args:
            key_or_id: Its key, or the id of any of its versions.
            about: Its scope.
            fence: See the class.

        Raises:
            LeaseLostError: See `put`.
        """

    async def page(
        self,
        *,
        about: str | None = None,
        keys: Sequence[str] | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Memory]:
        """Return present memories, the newest first: at most `limit`, after the first `offset`.

        Args:
            about: Their scope, or None for those of all scopes, blocks included.
            keys: Only those that have one of these keys, or None for all.
            limit: At most 1,000.
            offset: Number of rows to leave out.
        """


@runtime_checkable
class LongTermMemories(Protocol):
    """The memories of all tenants of one deployment."""

    def of(self, tenant: str) -> LongTermMemory:
        """Return the memories of one tenant."""
