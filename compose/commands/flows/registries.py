"""The place of installed flows: a folder, a database, or a running server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cyclopts import Parameter

from actors.errors import ContractError
from actors.kernel.runtime.ids import DEFAULT_TENANT
from actors.workflow.bundles import (
    BundleRegistry,
    FolderBundles,
    StoredBundles,
    WorkflowBundleRegistry,
)
from compose.commands.api import ApiTarget
from compose.commands.flows.served import ServedBundles
from compose.commands.options import Flag, Target


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryTarget(ApiTarget):
    """Options of commands that use installed flows. Without one of them the flows are in a folder.

    Attributes:
        directory: The folder. Default: ABSTRACTFRAMEWORK_WORKFLOWS_DIR, ./flows/bundles or ~/.callboard/flows.
        shared: Use the database that the environment names. --postgres-url and --data mean a database too.
        tenant: Owner of the flows in a database.
    """

    directory: Path | None = None
    shared: Flag = False
    tenant: str = DEFAULT_TENANT

    def is_folder(self, target: Target) -> bool:
        """Return True if the options mean a folder."""
        is_database = self.shared or target.postgres_url is not None or target.data is not None
        return not is_database and self.server is None

    @asynccontextmanager
    async def registry(self, target: Target) -> AsyncIterator[tuple[BundleRegistry, str]]:
        """Yield the registry and its name for people.

        Raises:
            ContractError: The options name two registries.
        """
        if self.server is not None:
            api = self.opened(
                target, tenant=self.tenant, directory=self.directory, shared=self.shared
            )
            yield ServedBundles(api), api.url
            return
        self.check_unused()
        if self.is_folder(target):
            folder = WorkflowBundleRegistry(self.directory)
            yield FolderBundles(folder), str(folder.folder)
            return
        if self.directory is not None:
            raise ContractError("--directory and a database name two registries: give one of them")
        async with target.client() as runtime:
            store = runtime.store
            bundles = StoredBundles(store.flow_bundles, store.artifacts, self.tenant)
            yield bundles, f"tenant {self.tenant}"


FOLDER: Final = RegistryTarget()
"""The default of `at` in each command that uses installed flows."""
