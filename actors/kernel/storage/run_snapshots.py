"""Snapshots of runs of graphs: rows with a name and tags, from which new runs begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from actors.errors import ContractError
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.text import check_name_of, check_text_of

MAX_TAGS: Final = 32
MAX_DESCRIPTION_BYTES: Final = 4 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRunSnapshot:
    """A snapshot to be kept.

    Attributes:
        id: Its id, in its tenant.
        run_id: The run.
        agent_id: The agent of the run.
        seq: The number of the last entry of the run's log that is in the state.
        name: For people, at most 1,024 bytes.
        description: For people, at most 4 KiB.
        tags: To look for it: at most 32.
        spec_hash: `WorkflowSpec.hash` of the graph; None: not known.
        created_by: The principal; empty: not known.

    Raises:
        InvalidTextError: A text is too long, or no text that a database takes.
        ContractError: There are too many tags.
    """

    id: str
    run_id: RunId
    agent_id: AgentId
    seq: int
    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    spec_hash: str | None = None
    created_by: str = ""

    def __post_init__(self) -> None:
        check_name_of("name of a snapshot", self.name)
        check_text_of(
            "description of a snapshot", self.description, limit_bytes=MAX_DESCRIPTION_BYTES
        )
        if len(self.tags) > MAX_TAGS:
            raise ContractError(f"tags of a snapshot: {len(self.tags)}; give {MAX_TAGS} at most")
        for tag in self.tags:
            check_name_of("tag of a snapshot", tag)
        check_name_of("principal that makes a snapshot", self.created_by)

    @property
    def folded(self) -> str:
        """Name and description in one case, for searches."""
        return f"{self.name}\n{self.description}".casefold()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot(NewRunSnapshot):
    """A snapshot that is kept, without the state: what was given, and the instant."""

    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFilter:
    """A filter of the snapshots of a tenant. A field that is None does not filter.

    Attributes:
        apps: Types of the runs' agents.
        run: The run.
        tag: One of the tags.
        query: A part of name or description, in upper or lower case.
        after: Id of the last snapshot of the previous page.

    Raises:
        InvalidTextError: A text is too long, or no text that a database takes.
    """

    apps: Sequence[str] | None = None
    run: RunId | None = None
    tag: str | None = None
    query: str | None = None
    after: RunSnapshot | None = None

    def __post_init__(self) -> None:
        for what, text in (("run", self.run), ("tag", self.tag), ("part of a name", self.query)):
            check_name_of(what, text or "")


class RunSnapshotStore(Protocol):
    """The snapshots of all tenants. One is kept until it is removed, or its agent or tenant is erased."""

    async def put(self, new: NewRunSnapshot, state: str) -> RunSnapshot | None:
        """Keep a snapshot, durably. None: its run is gone, and nothing was written.

        Args:
            new: The snapshot; its tenant is that of its agent.
            state: The run, as JSON text.
        """

    async def get(self, tenant: str, id: str) -> tuple[RunSnapshot, str] | None:  # noqa: A002
        """Return the snapshot of this id and its state; None: there is none."""

    async def list(
        self, tenant: str, among: SnapshotFilter, *, limit: int = 100
    ) -> list[RunSnapshot]:
        """Return those that fit, the newest first; those of one instant by id, backwards."""

    async def remove(self, tenant: str, id: str) -> bool:  # noqa: A002
        """Remove a snapshot; whether there was one."""
