"""Installed bundles of flows: rows of a registry, whose files are artifacts of the tenant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

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

        None: the artifact is gone; nothing was written. Of several at once one is added.
        """

    async def get(self, tenant: str, bundle: str, version: str) -> FlowBundleRow | None:
        """Return the bundle of this name and version; None: it is not installed."""

    async def list(self, tenant: str, bundle: str | None = None) -> list[FlowBundleRow]:
        """Return all bundles, or all versions of one, in any order."""

    async def remove(
        self, tenant: str, bundle: str, version: str, *, run_keys: Sequence[str]
    ) -> int | None:
        """Remove a bundle that has no open run, with the pin of its artifact.

        Return the number of its open runs; nothing was removed if there is one. None: it is not installed.

        Args:
            tenant: The owner.
            bundle: Its name.
            version: Its version.
            run_keys: Beginnings of the addresses of its runs' agents, each ends with a colon.
        """
