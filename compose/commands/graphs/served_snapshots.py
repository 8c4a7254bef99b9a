"""Stored snapshots of runs of flows of a running server, over its HTTP API."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from typing_extensions import TypedDict

from actors.kernel.workflow.errors import NoSuchSnapshotError
from compose.commands.api import Api, quoted, repeated
from compose.commands.graphs.served import ServedRun
from compose.commands.options import Target
from compose.commands.output import ago
from compose.commands.terminal import say

_SNAPSHOTS: Final = "/v1/graph-snapshots"


class SnapshotData(TypedDict):
    """A snapshot in an answer. See `KeptSnapshotJson` of the server."""

    snapshot: str
    run: str
    app: str
    name: str
    tags: list[str]
    created_at: str


class MadeSnapshotData(TypedDict):
    """A snapshot that was stored."""

    snapshot: str


class RestoredData(TypedDict):
    """The run that was started from a snapshot."""

    run: str


class SnapshotPageData(TypedDict):
    """A page of snapshots."""

    snapshots: list[SnapshotData]
    next: str | None


class ServedSnapshots:
    """The snapshots of runs of an app at a server.

    Args:
        api: The server.
        app: The app. Snapshots of other apps do not exist here.
    """

    def __init__(self, api: Api, app: str) -> None:
        self._api, self._app = api, app

    async def tell_page(self, target: Target, among: Mapping[str, str | None]) -> None:
        """Print a page, newest first."""
        query = {"app": self._app, **among}
        page = await self._api.told(SnapshotPageData, "GET", _SNAPSHOTS, query=query)
        target.table(
            page["snapshots"],
            dict,
            ("snapshot", "run", "name", "tags", "kept ago"),
            _row,
            empty=f"there is no such snapshot of a run of {self._app}",
        )
        if page["next"] is not None and not target.json:
            say(f"there are more: --after {page['next']}")

    async def restored(self, id_: str, *, key: str | None, force: bool) -> str:
        """Start a run from a snapshot; return the run's id.

        Args:
            id_: The snapshot.
            key: Names the run. None: a new key, which an error about a lost answer names.
            force: Whether it starts even if the graph has changed.

        Raises:
            NoSuchSnapshotError: The app has no such snapshot.
        """
        path, key = await self._path(id_), key or secrets.token_hex(16)
        headers = {"idempotency-key": key}
        with repeated(f"with --id {key} it starts one run"):
            told = await self._api.told(
                RestoredData, "POST", f"{path}/restore", {"force": force}, headers=headers
            )
        return told["run"]

    async def delete(self, id_: str) -> None:
        """Remove a snapshot.

        Raises:
            NoSuchSnapshotError: The app has no such snapshot.
        """
        await self._api.ask("DELETE", await self._path(id_))

    async def _path(self, id_: str) -> str:
        path = f"{_SNAPSHOTS}/{quoted(id_)}"
        if (await self._api.told(SnapshotData, "GET", path))["app"] != self._app:
            raise NoSuchSnapshotError(id_)
        return path


async def kept_snapshot(
    there: ServedRun, name: str, *, description: str, tags: Sequence[str]
) -> str:
    """Store a snapshot of a run; return the snapshot's id."""
    body = {"name": name, "description": description, "tags": list(tags)}
    look = "`callboard graphs snapshots APP --run {run} --server {url}`"
    return (await there.send("snapshots", body, MadeSnapshotData, look=look))["snapshot"]


def _row(one: SnapshotData) -> tuple[object, ...]:
    kept = ago(datetime.fromisoformat(one["created_at"]))
    return one["snapshot"], one["run"], one["name"], ", ".join(one["tags"]), kept
