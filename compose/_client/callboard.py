"""A deployment, as a client sees it: its flows, their runs and stored snapshots."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import httpx2
from typing_extensions import override

from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import DEFAULT_TENANT
from actors._workflow.bundles import (
    BundleRecord,
    BundleRegistry,
    WorkflowBundle,
    open_workflow_bundle,
)
from actors._workflow.bundles.packing import unpacked
from actors._workflow.documents.findings import FlowFinding
from compose._client.http import (
    OVER,
    ApiNotFoundError,
    ApiRefusedError,
    ApiUnreachableError,
    ApplicationTransport,
    Http,
    quote_name,
)
from compose._web.flows.flows import FlowsJson, GraphRunNameJson, InputSchemaJson, InstalledFlowJson
from compose._web.flows.runs import (
    EmittedJson,
    GraphRunJson,
    GraphRunsJson,
    LedgerJson,
    ListedGraphRunJson,
    SnapshotJson,
)
from compose._web.flows.snapshots import KeptSnapshotJson, SnapshotsJson, WholeSnapshotJson

if TYPE_CHECKING:
    from actors._runtime import Runtime

Record: TypeAlias = dict[str, Any]
"""A record of a ledger, or the end of a run: then it has no `step_id`."""
MOST_LOST: Final = 10
"""Number of attempts to continue a lost stream, without a record in between, before its reader gives up."""
PAUSE_S: Final = 2.0
"""Seconds before a lost stream is continued."""
MAX_PAGE: Final = 500
"""Maximum number of items of a page."""


class Callboard:
    """A client of a deployment. Close it, or use it as an asynchronous context manager.

    Args:
        url: The address of a server, `callboard serve`.
        token: The bearer token of all requests, or None if the server has no login.
        transport: Sends the requests otherwise than over the network.

    Attributes:
        url: The address.
        flows: Installed flows.
        graph_runs: Runs of flows.
        snapshots: Stored snapshots of runs of flows.

    Raises:
        ContractError: The address is not allowed, or the token could be read on its way.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        http = Http(url, token=token, transport=transport)
        self._http, self.url = http, http.url
        self.flows, self.graph_runs, self.snapshots = (
            FlowsApi(http),
            GraphRunsApi(http),
            SnapshotsApi(http),
        )

    @classmethod
    def over(
        cls, runtime: Runtime, *, tenant: str = DEFAULT_TENANT, principal: str = "local"
    ) -> Self:
        """Return a client of the deployment to which a runtime is connected, without a server.

        The requests are answered in this process, by the same code as at a server.

        Args:
            runtime: A started runtime, which the caller stops.
            tenant: The tenant of all requests.
            principal: The name in audit rows. It has all scopes.
        """
        # Imported here: clients of a server need no application.
        from compose._web.application import client_app  # noqa: PLC0415
        from compose._web.requests import Principal  # noqa: PLC0415

        application = client_app(runtime, Principal(tenant, principal))
        return cls("http://localhost", transport=ApplicationTransport(application))

    async def emit(
        self,
        name: str,
        payload: JsonValue = None,
        *,
        scope: Literal["session", "workflow", "run", "global"] = "global",
        key: str | None = None,
        id: str | None = None,  # noqa: A002 - the name of the field
    ) -> EmittedJson:
        """Answer all waits of the tenant's runs for an event.

        Args:
            name: The event's name in the waits.
            payload: The event's data.
            scope: The scope of the waits.
            key: The session, flow or run of the scope. A global event has none.
            id: The event's id. An event of one id answers at most one wait of each run. Default: a new id.
        """
        event = {"name": name, "payload": payload, "scope": scope, "key": key}
        return await self._http.fetch(
            EmittedJson, "POST", "/v1/events", {**event, "id": id or new_key()}
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class FlowsApi:
    """Flows that a deployment serves or has installed."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def list(self) -> FlowsJson:
        """Return the flows that the server serves, and the installed flows."""
        return await self._http.fetch(FlowsJson, "GET", "/v1/flows")

    async def get(self, flow: str) -> InstalledFlowJson:
        """Return an installed flow: ``id@version``, or the newest version of ``id``."""
        return await self._http.fetch(InstalledFlowJson, "GET", _flow(flow))

    async def install(
        self, data: bytes, *, version: str | None = None, dry_run: bool = False
    ) -> tuple[InstalledFlowJson, bool]:
        """Install a flow document, a VisualFlow or a bundle; return the flow, and True if it is new.

        Args:
            data: The content of the file, at most 64 MiB.
            version: The version of a document that has none.
            dry_run: Check the flow, and install nothing.
        """
        query = {"version": version, "dry_run": "true" if dry_run else None}
        answer = await self._http.send("POST", "/v1/flows", data, query=query)
        flow = self._http.parse(InstalledFlowJson, answer.content)
        return flow, answer.status == HTTPStatus.CREATED

    async def bundle(self, flow: str) -> bytes:
        """Return the bundle of an installed flow."""
        return (await self._http.send("GET", f"{_flow(flow)}/bundle")).content

    async def schema(self, flow: str) -> InputSchemaJson:
        """Return the JSON Schema of the initial vars of a flow's runs."""
        return await self._http.fetch(InputSchemaJson, "GET", f"{_flow(flow)}/schema")

    async def svg(self, flow: str) -> str:
        """Return the drawing of a flow."""
        return (await self._http.send("GET", f"{_flow(flow)}/svg")).content.decode()

    async def remove(self, flow: str) -> None:
        """Remove a version of a flow, or all versions of ``id``."""
        await self._http.send("DELETE", _flow(flow))


class GraphRunsApi:
    """Runs of flows."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def list(
        self,
        *,
        app: str | None = None,
        flow: str | None = None,
        status: Sequence[str] = (),
        after: str | None = None,
        limit: int = 100,
    ) -> GraphRunsJson:
        """Return a page of runs, newest first.

        Args:
            app: Only runs of this app.
            flow: Only runs of this flow.
            status: Only runs of these statuses: running (any open run), pending, suspended, completed, failed,
                cancelled.
            after: `next` of the page before.
            limit: Maximum number of runs. More than 500 are several requests.
        """
        filters = {"app": app, "flow": flow, "status": ",".join(status) or None}
        runs: list[ListedGraphRunJson] = []
        while True:
            size = min(limit - len(runs), MAX_PAGE)
            query = {**filters, "after": after, "limit": size}
            page = await self._http.fetch(GraphRunsJson, "GET", _RUNS, query=query)
            runs += page.runs
            after = page.next
            # A page of one flow that is not full has read as many runs as a request may.
            if after is None or len(page.runs) < size or len(runs) == limit:
                return GraphRunsJson(runs=runs, next=after)

    async def start(
        self,
        flow: str,
        vars: Mapping[str, JsonValue] | None = None,  # noqa: A002 - the name of the field
        *,
        app: str | None = None,
        key: str | None = None,
        actor_id: str | None = None,
        session_id: str | None = None,
    ) -> tuple[GraphRunNameJson, bool]:
        """Start a run; return it, and True if it is new. It is durable on return.

        Args:
            flow: The flow.
            vars: The run's first vars.
            app: The flow's app; required if several apps have a flow of this name.
            key: Names the run: the same key again returns the same run. Default: a new key.
            actor_id: The person or program for which the run acts.
            session_id: The run's session, for events of this scope.
        """
        body = {"vars": vars or {}, "actor_id": actor_id, "session_id": session_id}
        headers = {"idempotency-key": key or new_key()}
        answer = await self._http.send(
            "POST", f"{_flow(flow)}/runs", body, query={"app": app}, headers=headers
        )
        run = self._http.parse(GraphRunNameJson, answer.content)
        return run, answer.status == HTTPStatus.CREATED

    async def get(self, run: str) -> GraphRunJson:
        """Return a run with its state and its waits."""
        return await self._http.fetch(GraphRunJson, "GET", _run(run))

    async def answer(self, run: str, wait: str, payload: JsonValue) -> GraphRunNameJson:
        """Answer a wait, once. The run continues."""
        return await self._change(run, f"waits/{quote_name(wait)}", {"payload": payload})

    async def cancel(self, run: str, reason: str) -> GraphRunNameJson:
        """Request a run and its sub-graphs to stop. A run that has ended is not changed."""
        return await self._change(run, "cancel", {"reason": reason})

    async def pause(self, run: str, reason: str | None = None) -> GraphRunNameJson:
        """Pause a run between two of its steps."""
        return await self._change(run, "pause", {"reason": reason})

    async def resume(self, run: str) -> GraphRunNameJson:
        """Continue a paused run."""
        return await self._change(run, "resume")

    async def steer(self, run: str, message: str | dict[str, JsonValue]) -> GraphRunNameJson:
        """Add a message to the inbox of a run. A request that is sent twice adds two."""
        return await self._change(run, "steer", {"message": message})

    async def set_limits(self, run: str, updates: Mapping[str, JsonValue]) -> GraphRunNameJson:
        """Change limits of a run, by name."""
        return await self._change(run, "limits", {"updates": updates})

    async def snapshot(self, run: str, name: str = "") -> SnapshotJson:
        """Return a snapshot of a run's current state. It is not stored."""
        query = {"name": name}
        return await self._http.fetch(SnapshotJson, "GET", f"{_run(run)}/snapshot", query=query)

    async def ledger(self, run: str) -> AsyncGenerator[Record, None]:
        """Yield the records that a run has so far."""
        path, after = f"{_run(run)}/ledger", None
        while True:
            query = {"after": after, "limit": MAX_PAGE}
            page = await self._http.fetch(LedgerJson, "GET", path, query=query)
            for record in page.records:
                yield record
            after = page.next
            if after is None:
                return

    async def follow(self, run: str) -> AsyncGenerator[Record, None]:
        """Yield the records of a run as they are written, and at last its end, `run` and `status`.

        A lost stream is continued after its last record.

        Raises:
            ApiUnreachableError: The stream cannot be continued. The run is not concerned.
        """
        path, last_id, losses = f"{_run(run)}/ledger?live=false", None, 0
        while True:
            problem = "the stream ended"
            try:
                async with aclosing(self._http.events(path, last_id)) as events:
                    async for event in events:
                        if event.name in {"end", OVER}:
                            end = event.data or {"run": run, "status": (await self.get(run)).status}
                            yield end
                            return
                        if event.name == "step":
                            # Only losses in a row end it: a long run may lose any number of streams.
                            last_id, losses = event.id, 0
                            yield event.data
                        elif event.name == "problem":
                            problem = str(event.data.get("detail"))
            except ApiUnreachableError as exc:
                problem = exc.problem
            losses += 1
            if losses > MOST_LOST:
                remedy = f"The run continues: `callboard graphs show {run}` shows it"
                raise ApiUnreachableError(self._http.url, problem, remedy)
            await asyncio.sleep(PAUSE_S)

    async def _change(
        self, run: str, verb: str, body: Mapping[str, Any] | None = None
    ) -> GraphRunNameJson:
        return await self._http.fetch(GraphRunNameJson, "POST", f"{_run(run)}/{verb}", body)


class SnapshotsApi:
    """Stored snapshots of runs of flows."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def create(
        self, run: str, name: str, *, description: str = "", tags: Sequence[str] = ()
    ) -> KeptSnapshotJson:
        """Store a snapshot of a run's current state. A request that is sent twice stores two."""
        body = {"name": name, "description": description, "tags": [*tags]}
        return await self._http.fetch(KeptSnapshotJson, "POST", f"{_run(run)}/snapshots", body)

    async def list(
        self,
        *,
        app: str | None = None,
        run: str | None = None,
        tag: str | None = None,
        query: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> SnapshotsJson:
        """Return a page of snapshots, newest first.

        Args:
            app: Only snapshots of runs of this app.
            run: Only snapshots of this run.
            tag: Only snapshots with this tag.
            query: A part of the name or the description.
            after: `next` of the page before.
            limit: Maximum number of snapshots. More than 500 are several requests.
        """
        filters = {"app": app, "run": run, "tag": tag, "query": query}
        snapshots: list[KeptSnapshotJson] = []
        while True:
            size = min(limit - len(snapshots), MAX_PAGE)
            fields = {**filters, "after": after, "limit": size}
            page = await self._http.fetch(SnapshotsJson, "GET", _SNAPSHOTS, query=fields)
            snapshots += page.snapshots
            after = page.next
            if after is None or len(snapshots) == limit:
                return SnapshotsJson(snapshots=snapshots, next=after)

    async def get(self, snapshot: str) -> WholeSnapshotJson:
        """Return a snapshot with its state."""
        return await self._http.fetch(WholeSnapshotJson, "GET", _snapshot(snapshot))

    async def restore(
        self, snapshot: str, *, key: str | None = None, force: bool = False
    ) -> GraphRunNameJson:
        """Start a run with the state of a snapshot.

        Args:
            snapshot: The snapshot.
            key: Names the run: the same key again returns the same run. Default: a new key.
            force: Start the run even if the graph has changed since.
        """
        path, headers = f"{_snapshot(snapshot)}/restore", {"idempotency-key": key or new_key()}
        return await self._http.fetch(
            GraphRunNameJson, "POST", path, {"force": force}, headers=headers
        )

    async def delete(self, snapshot: str) -> None:
        """Remove a snapshot. Runs that were started with it stay."""
        await self._http.send("DELETE", _snapshot(snapshot))


class InstalledBundles(BundleRegistry):
    """The installed bundles of a client's tenant.

    Args:
        callboard: The client.
        url: The address of the server; None over a database.
    """

    def __init__(self, callboard: Callboard, url: str | None = None) -> None:
        self._flows, self._url = callboard.flows, url

    @override
    async def install(self, data: bytes, *, by: str = "") -> tuple[BundleRecord, bool]:
        del by  # the principal of the requests
        flow, is_new = await self._flows.install(data)
        return self._record(flow), is_new

    @override
    async def list(self) -> list[BundleRecord]:
        return [self._record(flow) for flow in (await self._flows.list()).installed]

    @override
    async def find(self, ref: str) -> BundleRecord | None:
        with suppress(ApiNotFoundError):
            return self._record(await self._flows.get(ref))
        return None

    @override
    async def open(self, ref: str) -> WorkflowBundle:
        return await unpacked(open_workflow_bundle, await self._flows.bundle(ref))

    @override
    async def remove(self, ref: str) -> int:
        bundle, at_sign, exact_version = ref.partition("@")
        versions = [exact_version] if at_sign else []
        if not at_sign:
            manifests = [record.manifest for record in await self.list()]
            versions = [
                manifest.bundle_version for manifest in manifests if manifest.bundle_id == bundle
            ]
        count = 0
        for version in versions:
            # Another client removed the version meanwhile, so it does not count.
            with suppress(ApiNotFoundError):
                await self._flows.remove(f"{bundle}@{version}")
                count += 1
        return count

    async def mistakes(self, file: str, data: bytes, version: str | None) -> Sequence[FlowFinding]:
        """Return why the deployment would not install a flow; empty if it would. Nothing is installed."""
        try:
            await self._flows.install(data, version=version, dry_run=True)
        except ApiRefusedError as exc:
            if not exc.code.startswith(("flow_", "bundle_")):
                raise
            if not exc.errors:
                return [FlowFinding(file, "", exc.detail, exc.remedy)]
            return [_finding(file, error) for error in exc.errors]
        return []

    def _record(self, flow: InstalledFlowJson) -> BundleRecord:
        path = f"/v1/flows/{quote_name(flow.flow)}/bundle"
        location = "the database" if self._url is None else f"{self._url.rstrip('/')}{path}"
        return BundleRecord(
            manifest=flow.manifest,
            hash=flow.hash,
            size_bytes=flow.size_bytes,
            place=location,
            installed_by=flow.installed_by,
            installed_at=flow.installed_at,
        )


def _finding(file: str, error: Mapping[str, str]) -> FlowFinding:
    path, _, pointer = error.get("where", "").partition("#")
    inner_file = path.partition("/")[2]  # of a bundle: the flow's file in it
    name = f"{file}/{inner_file}" if inner_file else file
    return FlowFinding(name, pointer, error.get("problem", ""), error.get("remedy", ""))


def new_key() -> str:
    """Return a new key of a request, so that a repeated request is the same one."""
    return secrets.token_hex(16)


_RUNS: Final = "/v1/graph-runs"
_SNAPSHOTS: Final = "/v1/graph-snapshots"


def _flow(flow: str) -> str:
    return f"/v1/flows/{quote_name(flow)}"


def _run(run: str) -> str:
    return f"{_RUNS}/{quote_name(run)}"


def _snapshot(snapshot: str) -> str:
    return f"{_SNAPSHOTS}/{quote_name(snapshot)}"
