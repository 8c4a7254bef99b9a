"""Runs of flows of a running server, and their stored snapshots, over its HTTP API."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any, Final, NotRequired, TypeVar

from typing_extensions import TypedDict

from actors._kernel.workflow.errors import NoSuchSnapshotError
from actors.errors import ContractError
from compose._commands.api import OVER, Api, ApiTarget, ApiUnreachableError, quote_name, repeat_hint
from compose._commands.options import Target
from compose._commands.output import ago, short
from compose._commands.terminal import print_facts, say

MOST_LOST: Final = 10
"""Number of attempts to continue a lost stream, without a record in between, before the command gives up."""
PAUSE_S: Final = 2.0
"""Seconds before a lost stream is continued."""
MOST_RECORDS: Final = 500
"""Number of records of a ledger that one request reads."""
_WITHIN: Final = ("until", "subworkflow")
"""Reasons of waits that no client can answer."""

T = TypeVar("T")


class WaitData(TypedDict):
    """A wait of a run in an answer: fields of the server's `GraphWaitJson`."""

    reason: str
    key: str | None
    prompt: str | None
    choices: list[str] | None
    until: str | None


class ListedRunData(TypedDict):
    """A run of a list in an answer: fields of the server's `ListedGraphRunJson`."""

    run: str
    flow: str
    status: str
    parked: str | None
    created_at: str | None
    updated_at: str | None


class RunData(ListedRunData):
    """A run with its state: fields of the server's `GraphRunJson`, which has no session."""

    node: str
    session: NotRequired[str | None]
    waits: list[WaitData]
    vars: dict[str, Any]
    output: Any
    error: str | None


class NamedRunData(TypedDict):
    """A run that was changed: fields of the server's `GraphRunNameJson`."""

    run: str
    status: str


class RunPageData(TypedDict):
    """A page of runs."""

    runs: list[ListedRunData]
    next: str | None


class LedgerPageData(TypedDict):
    """A page of a ledger."""

    records: list[dict[str, Any]]
    next: str | None


class ServedRun:
    """A run of a flow at a server.

    Args:
        api: The server.
        run_id: The run's id.

    Attributes:
        url: The server's address.
    """

    def __init__(self, api: Api, run_id: str) -> None:
        self._api, self._run_id, self.url = api, run_id, api.url
        self._path = f"/v1/graph-runs/{quote_name(run_id)}"

    async def fetch(self) -> RunData:
        """Return the run as the server shows it: `GET /v1/graph-runs/{run}`."""
        return await self._api.fetch(RunData, "GET", self._path)

    async def send(
        self, verb: str, body: Mapping[str, Any] | None, kind: type[T], *, check_command: str = ""
    ) -> T:
        """Send a change of the run, and return the answer.

        Args:
            verb: The end of the path.
            body: JSON data.
            kind: The fields of the answer.
            check_command: The command that shows whether the change was made, for a change that is made twice
                if it is sent twice. An error about a lost answer names the command.
        """
        try:
            return await self._api.fetch(kind, "POST", f"{self._path}/{verb}", body)
        except ApiUnreachableError as exc:
            if not check_command:
                raise
            command = check_command.format(run=self._run_id, url=self._api.url)
            remedy = (
                f"The request may have been executed. Before you repeat it, look with {command}"
            )
            raise ApiUnreachableError(exc.url, exc.problem, remedy) from exc

    async def snapshot(self, name: str) -> dict[str, Any]:
        """Return a snapshot of the run, which the server does not store."""
        path = f"{self._path}/snapshot"
        return await self._api.fetch(dict[str, Any], "GET", path, query={"name": name})

    async def ledger(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the records that the run has so far."""
        path, after = f"{self._path}/ledger", None
        while True:
            query = {"after": after, "limit": str(MOST_RECORDS)}
            page = await self._api.fetch(LedgerPageData, "GET", path, query=query)
            for record in page["records"]:
                yield record
            after = page["next"]
            if after is None:
                return

    async def follow_ledger(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the records as they are written, and the run's end, which has no `step_id`.

        A lost stream is continued.

        Raises:
            ApiUnreachableError: The stream cannot be continued. The run is not concerned.
        """
        last_id, losses = None, 0
        while True:
            problem = "the stream ended"
            try:
                async with aclosing(
                    self._api.events(f"{self._path}/ledger?live=false", last_id)
                ) as events:
                    async for event in events:
                        if event.name in {"end", OVER}:
                            yield event.data or {
                                "run": self._run_id,
                                "status": (await self.fetch())["status"],
                            }
                            return
                        if event.name == "step":
                            # Only losses in a row end the command: a long run may lose any number of streams.
                            last_id, losses = event.id, 0
                            yield event.data
                        elif event.name == "problem":
                            problem = str(event.data.get("detail"))
            except ApiUnreachableError as exc:
                problem = exc.problem
            losses += 1
            if losses > MOST_LOST:
                command = f"`callboard graphs show {self._run_id} --server {self._api.url}`"
                remedy = f"The run continues. {command} shows it"
                raise ApiUnreachableError(self._api.url, problem, remedy)
            await asyncio.sleep(PAUSE_S)


def run_at_server(api: ApiTarget, target: Target, run_id: str) -> ServedRun | None:
    """Return the run at the server that `--server` names; None if there is no such option.

    Raises:
        ContractError: Options contradict each other.
    """
    api.check_unused()
    return None if api.server is None else ServedRun(api.open(target), run_id)


async def list_served(
    api: Api, target: Target, filters: Mapping[str, str | None], status: list[str] | None
) -> None:
    """Print a page of runs of a server.

    Raises:
        ContractError: `status` has several values.
    """
    if status and len(status) > 1:
        raise ContractError("--status: give it once with --server")
    query = {**filters, "status": status[0].lower() if status else None}
    page = await api.fetch(RunPageData, "GET", "/v1/graph-runs", query=query)
    target.table(
        page["runs"],
        dict,
        ("run", "flow", "status", "created ago", "changed ago"),
        lambda run: (
            run["run"],
            run["flow"],
            _status(run),
            _ago(run["created_at"]),
            _ago(run["updated_at"]),
        ),
        empty=f"there is no such run of a flow of {filters['app']}",
    )
    if page["next"] is not None and not target.json:
        say(f"there may be more: --after {page['next']}")


def _status(run: ListedRunData) -> str:
    return f"PARKED ({run['parked']})" if run["parked"] else run["status"]


def _ago(at: str | None) -> str:
    return ago(None if at is None else datetime.fromisoformat(at))


def print_run(run: RunData, *, url: str = "") -> None:
    """Print a run for people. `url` is the address of its server."""
    public = ((name, short(value)) for name, value in run["vars"].items() if name[:1] != "_")
    print_facts(
        (
            ("run", run["run"]),
            ("flow", run["flow"]),
            ("status", _status(run)),
            ("node", run["node"]),
            ("session", run.get("session")),
            ("created", f"{_ago(run['created_at'])} ago"),
            ("changed", f"{_ago(run['updated_at'])} ago"),
            ("output", short(run["output"])),
            ("error", run["error"]),
            *public,
        )
    )
    server_option = f" --server {url}" if url else ""
    for wait in run["waits"]:
        until = "" if wait["until"] is None else f", until {wait['until']}"
        choices = f" ({' / '.join(wait['choices'])})" if wait["choices"] else ""
        say(f"waits for {wait['reason']} {wait['key']}{until}: {wait['prompt'] or ''}{choices}")
        if wait["reason"] not in _WITHIN:
            say(f"  callboard graphs resume {run['run']} {wait['key']} JSON{server_option}")


_SNAPSHOTS: Final = "/v1/graph-snapshots"


class SnapshotData(TypedDict):
    """A snapshot in an answer: fields of the server's `KeptSnapshotJson`."""

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

    async def print_page(self, target: Target, filters: Mapping[str, str | None]) -> None:
        """Print a page, newest first."""
        query = {"app": self._app, **filters}
        page = await self._api.fetch(SnapshotPageData, "GET", _SNAPSHOTS, query=query)
        target.table(
            page["snapshots"],
            dict,
            ("snapshot", "run", "name", "tags", "kept ago"),
            lambda snapshot: (
                snapshot["snapshot"],
                snapshot["run"],
                snapshot["name"],
                ", ".join(snapshot["tags"]),
                _ago(snapshot["created_at"]),
            ),
            empty=f"there is no such snapshot of a run of {self._app}",
        )
        if page["next"] is not None and not target.json:
            say(f"there are more: --after {page['next']}")

    async def restore(self, id_: str, *, key: str | None, force: bool) -> str:
        """Start a run from a snapshot; return the run's id.

        Args:
            id_: The snapshot.
            key: Key that names the run, or None for a new key, which an error about a lost answer names.
            force: Start the run even if the graph has changed.

        Raises:
            NoSuchSnapshotError: The app has no such snapshot.
        """
        path, key = await self._path(id_), key or secrets.token_hex(16)
        headers = {"idempotency-key": key}
        with repeat_hint(f"with --id {key} it starts one run"):
            answer = await self._api.fetch(
                RestoredData, "POST", f"{path}/restore", {"force": force}, headers=headers
            )
        return answer["run"]

    async def delete(self, id_: str) -> None:
        """Remove a snapshot.

        Raises:
            NoSuchSnapshotError: The app has no such snapshot.
        """
        await self._api.ask("DELETE", await self._path(id_))

    async def _path(self, id_: str) -> str:
        path = f"{_SNAPSHOTS}/{quote_name(id_)}"
        if (await self._api.fetch(SnapshotData, "GET", path))["app"] != self._app:
            raise NoSuchSnapshotError(id_)
        return path


async def store_snapshot(
    served_run: ServedRun, name: str, *, description: str, tags: Sequence[str]
) -> str:
    """Store a snapshot of a run; return the snapshot's id."""
    body = {"name": name, "description": description, "tags": list(tags)}
    check = "`callboard graphs snapshots APP --run {run} --server {url}`"
    return (await served_run.send("snapshots", body, MadeSnapshotData, check_command=check))[
        "snapshot"
    ]
