"""Sessions as people name and find them: title, metadata, lists in pages, and ids of deleted ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from actors.kernel.json import JsonValue
from actors.kernel.metadata import metadata_text
from actors.kernel.runtime.ids import AgentId
from actors.kernel.storage.session import SessionRow
from actors.kernel.text import check_text_of

MAX_TITLE_BYTES: Final = 1_024
MOST_READ: Final = 10_000
"""Sessions that a page of a list reads, however few of them are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLabel:
    """The words of people about a session.

    Attributes:
        title: At most 1,024 bytes.
        metadata: A JSON object of at most 64 KiB.

    Raises:
        InvalidTextError: The title is too long, or no text.
        NotSerializableError: The metadata is no JSON object, or too large.
    """

    title: str = ""
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_text_of("title of a session", self.title, limit_bytes=MAX_TITLE_BYTES)
        metadata_text(self.metadata, what="metadata of a session")


@dataclass(frozen=True, slots=True)
class SessionPlace:
    """The position of a session in a list, the one that changed last first; those of one instant by id."""

    last_at: datetime
    agent_id: AgentId


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilter:
    """A filter of the sessions of one app. A field that is None does not filter.

    Attributes:
        tenant: The owner.
        app: The type of the sessions' agents.
        is_active: Whether a run of it is open.
        title: A part of the title, in upper or lower case.
        owner: Only this principal's.
        after: Position of the last row of the previous page.
    """

    tenant: str
    app: str
    is_active: bool | None = None
    title: str | None = None
    owner: str | None = None
    after: SessionPlace | None = None


@dataclass(frozen=True, slots=True)
class FoundSessions:
    """A page of a list of sessions.

    Attributes:
        rows: The session that changed last first.
        read_until: The last session that was read, if the page has fewer than its limit because it may read
            no more. Those behind it are not looked at yet. None: the page is full, or there are no more.
    """

    rows: list[SessionRow]
    read_until: SessionPlace | None = None


class SessionDirectory(Protocol):
    """The sessions as people name and find them. What their runs change is in `SessionStore`."""

    async def create(
        self, agent: AgentId, label: SessionLabel, *, project: str = "", owner: str | None = None
    ) -> bool:
        """Make a session without a run; False: there is one, which stays as it is, or was one of another owner.

        An id stays its first owner's, also when the session was deleted: readers of its events who were
        there before see nothing of anybody else.

        Args:
            agent: The session.
            label: What people call it.
            project: A label of another kind.
            owner: The principal that it belongs to. None: it belongs to none, or to its earlier owner if it
                is made anew.

        Raises:
            SessionDeletingError: It is being deleted.
        """

    async def relabel(
        self,
        agent: AgentId,
        *,
        title: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> bool:
        """Replace the title, the metadata, or both; None leaves one as it is. False: there is no such session.

        Raises:
            InvalidTextError: See `SessionLabel`, as for the next one.
            NotSerializableError: See `SessionLabel`.
        """

    async def find(
        self, wanted: SessionFilter, *, limit: int = 100, most_read: int = MOST_READ
    ) -> FoundSessions:
        """Return at most `limit` sessions of the first `most_read` of the app (of the owner, if one is given).

        There are indexes of position and owner, but none of title and state. So the number of sessions that are
        read is bounded, and a page may have few hits, or none, though there are more behind.
        """

    async def is_deleted(self, agent: AgentId, *, owner: str | None = None) -> bool:
        """Return True if such a session, of this owner if one is given, was deleted, or its deletion began."""
