"""Flows in a store: installed bundles, whose files are artifacts of the tenant, and snapshots of runs.

A bundle is a row of a registry. A snapshot has a name and tags, and new runs begin from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.text import check_name_of, check_text_of
from actors.errors import ContractError

FLOWS_SCOPE: Final = "flows"
"""The scope of the artifacts that are files of installed bundles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFlowBundle:
    """A bundle to be installed.

    Attributes:
        bundle: Its name.
        version: Its version.
        hash: SHA-256 of its content, in hex: see `WorkflowBundle.hash`.
        artifact: The id of the artifact that is its file, in the scope `FLOWS_SCOPE`.
        size_bytes: Size of the file.
        manifest: Its manifest, as JSON text.
        installed_by: The principal.
    """

    bundle: str
    version: str
    hash: str
    artifact: str
    size_bytes: int
    manifest: str
    installed_by: str

    @property
    def ref(self) -> str:
        """``id@version``: also the owner of the pin on the artifact."""
        return f"{self.bundle}@{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowBundleRow(NewFlowBundle):
    """An installed bundle: what was given, and the instant of the install."""

    installed_at: datetime


class FlowBundleStore(Protocol):
    """The installed bundles of all tenants. A row and the pin of its artifact come and go in one step."""

    async def put(self, tenant: str, new: NewFlowBundle) -> FlowBundleRow | None:
        """Add a bundle, and pin its artifact; return the row of this name and version, new or of before.

        None if the artifact is gone; nothing was written. Of several at once one is added.
        """

    async def get(self, tenant: str, bundle: str, version: str) -> FlowBundleRow | None:
        """Return the bundle of this name and version, or None if it is not installed."""

    async def list(self, tenant: str, bundle: str | None = None) -> list[FlowBundleRow]:
        """Return all bundles, or all versions of one, in any order."""

    async def remove(
        self, tenant: str, bundle: str, version: str, *, run_keys: Sequence[str]
    ) -> int | None:
        """Remove a bundle that has no open run, with the pin of its artifact.

        Return the number of its open runs; nothing was removed if there is one. None if it is not installed.

        Args:
            tenant: The owner.
            bundle: Its name.
            version: Its version.
            run_keys: Beginnings of the addresses of its runs' agents, each ends with a colon.
        """


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
        spec_hash: `WorkflowSpec.hash` of the graph, or None if it is not known.
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
        """Keep a snapshot, durably; return None if its run is gone, and nothing was written.

        Args:
            new: The snapshot; its tenant is that of its agent.
            state: The run, as JSON text.
        """

    async def get(self, tenant: str, id: str) -> tuple[RunSnapshot, str] | None:  # noqa: A002
        """Return the snapshot of this id and its state, or None if there is none."""

    async def list(
        self, tenant: str, among: SnapshotFilter, *, limit: int = 100
    ) -> list[RunSnapshot]:
        """Return those that fit, the newest first; those of one instant by id, backwards."""

    async def remove(self, tenant: str, id: str) -> bool:  # noqa: A002
        """Remove a snapshot; whether there was one."""
