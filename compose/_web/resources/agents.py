"""Messages to any agent, runs of any agent, not only those of sessions, and apps.

An app is an agent type that is served and can have sessions.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from datetime import datetime
from typing import Final

from pydantic import Field, JsonValue
from pydantic_core import to_json
from starlette.responses import Response

from actors._kernel.agent.message import Message, sender_of
from actors._kernel.basics import MAX_INT
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import RunLogEntry
from actors._kernel.runtime.rows import RunRow
from actors._kernel.stores.outside import Caller, Order
from actors._kernel.stores.runs import OnConflict
from actors._runtime.replay.verdict import row_of
from actors._sessions.errors import CursorError
from actors.errors import UnknownRunError
from compose._web.endpoint import Endpoints, ShownModel, StrictModel, WebCall, json_response
from compose._web.problems import HttpProblem, ProblemError
from compose._web.resources.pages import Limit
from compose._web.resources.readers import CURSOR_HEADER, stream_response
from compose._web.resources.runs import KEY, RunJson, run_json
from compose._web.streams import EventLine, wants_stream

endpoint: Final = Endpoints()

_MOST_DIGITS: Final = 10


class MessageJson(StrictModel):
    """A message to an agent.

    Attributes:
        payload: The payload that the agent receives.
        message_id: Id of the message. A second message with this id is the same message. The header
            Idempotency-Key overrides it.
        starts_run: Whether to queue a run for the message. If false, the message wakes `ctx.receive` of an open
            run; if no run receives it, it starts a run.
        on_conflict: What to do if the agent has an open run. Used by messages that start a run.
        priority: Lower values are executed first. Used by messages that start a run.
    """

    payload: JsonValue
    message_id: str | None = Field(default=None, min_length=1)
    starts_run: bool = True
    on_conflict: OnConflict = "queue"
    priority: int = Field(default=5, ge=-MAX_INT, le=MAX_INT)


class SentJson(ShownModel):
    """A sent message. `run_id` is null for a plain message; `is_new` is false if its id was known."""

    message_id: str
    run_id: str | None
    is_new: bool


class EntryJson(ShownModel):
    """An entry of a run's log. docs/replay.md describes kinds and payloads."""

    seq: int
    kind: str
    position: str
    payload: dict[str, JsonValue]
    at: datetime


class LogJson(ShownModel):
    """A part of a run's log. `next` is `from_seq` of the next part; null if there are no further entries."""

    run_id: str
    status: str
    entries: list[EntryJson]
    next: int | None


class LogQuery(StrictModel):
    """The query of a log."""

    from_seq: int = Field(default=0, ge=0, le=MAX_INT)
    limit: Limit = 100


@endpoint.post("/v1/agents/{type}/{key}/messages", scope="operate", action=None, status=202)
async def send(call: WebCall, body: MessageJson) -> SentJson | Response:
    """Send a message to any agent.

    The message is durable when the response is sent.
    """
    principal = call.principal
    agent = AgentId(call.names["type"], call.names["key"], principal.tenant)
    id_ = call.request.headers.get(KEY) or body.message_id or secrets.token_hex(16)
    if not body.starts_run:
        sender = sender_of("session", principal.name)
        is_new = await call.runtime.send(
            agent, Message.of(agent, body.payload, id=id_), sender=sender
        )
        return json_response(SentJson(message_id=id_, run_id=None, is_new=is_new), 202)
    order = Order(
        agent_id=agent,
        payload=body.payload,
        message_id=id_,
        on_conflict=body.on_conflict,
        priority=body.priority,
        metadata={},
    )
    run_id = await call.runtime.front.submit(_caller(call), order)
    return json_response(
        SentJson(message_id=id_, run_id=run_id, is_new=True),
        202,
        {"location": f"/v1/runs/{run_id}"},
    )


def _caller(call: WebCall) -> Caller:
    return Caller(call.principal.tenant, call.principal.name, sees="tenant", kind="session")


async def any_run(call: WebCall) -> RunRow:
    """Return the run that the path names. It may be a run of any agent of the tenant.

    Raises:
        UnknownRunError: There is no such run.
    """
    row = await row_of(call.runtime.store, RunId(call.names["run"]))
    if row.agent_id.tenant != call.principal.tenant:
        raise UnknownRunError(row.run_id)
    return row


@endpoint.get("/v1/runs/{run}", scope="operate")
async def show(call: WebCall) -> RunJson:
    """Show any run."""
    return run_json(await any_run(call), None)


async def _lines(call: WebCall, run_id: RunId, begin: int) -> AsyncGenerator[EventLine, None]:
    """Yield entries and live text deltas. The last line is the run's end."""
    front, caller = call.runtime.front, _caller(call)
    async with aclosing(front.events(caller, run_id, from_seq=begin)) as events:
        async for event in events:
            id_ = str(event.seq) if event.kind == "entry" else None
            yield EventLine(event.kind, to_json(asdict(event)), id_)


def entry_json(entry: RunLogEntry) -> EntryJson:
    """Return an entry in the form in which clients receive it."""
    return EntryJson(
        seq=entry.seq, kind=entry.kind, position=entry.position, payload=entry.payload, at=entry.ts
    )


@endpoint.get("/v1/runs/{run}/events", scope="operate", streams=True)
async def log(call: WebCall, query: LogQuery) -> LogJson | Response:
    """Read the log of any run.

    Respond with a part of the log, or with a stream of the log from an entry on.
    """
    row = await any_run(call)
    cursor = call.request.headers.get(CURSOR_HEADER) or None
    begin = query.from_seq
    if cursor is not None:  # the number of the last entry that the reader has seen
        if not (cursor.isascii() and cursor.isdigit() and len(cursor) < _MOST_DIGITS):
            problem = "it is not the number of an entry"
            raise CursorError(cursor[:60], f"run {row.run_id}", problem)
        begin = int(cursor) + 1
    if begin > row.last_seq + 1:
        problem = f"the log of run {row.run_id} ends at {row.last_seq}"
        raise ProblemError(HttpProblem(400, "bad_cursor", problem, "start there or earlier"))
    if wants_stream(call.request):
        # The reader has seen the end: after 204 a browser does not connect again.
        if row.status.is_terminal and begin > row.last_seq:
            return Response(status_code=204)
        return stream_response(call, _lines(call, row.run_id, begin))
    entries: list[EntryJson] = []
    next_seq = None
    async for entry in call.runtime.entries(row.run_id, from_seq=begin):
        if len(entries) == query.limit:
            next_seq = entry.seq
            break
        entries.append(entry_json(entry))
    return LogJson(run_id=row.run_id, status=str(row.status), entries=entries, next=next_seq)


class AppJson(ShownModel):
    """An app.

    Attributes:
        app: The type of its agents.
        is_default: True if requests that name no app use this one.
        is_served: True if a live host executes its runs.
        modes: Names of the modes of its sessions; null if this server does not know them.
    """

    app: str
    is_default: bool
    is_served: bool
    modes: list[str] | None


class AppsJson(ShownModel):
    """The apps, by name: the server's own; with the scope `operate` or without logins all served types."""

    apps: list[AppJson]


async def apps_of(call: WebCall) -> list[AppJson]:
    """Return the apps that the principal may use."""
    api, runtime = call.api, call.runtime
    served_types = {name for host in await runtime.store.insight.hosts() for name in host.serves}
    types = {name for name in (*served_types, *runtime.serves) if "/" not in name}
    return [
        AppJson(
            app=name,
            is_default=name == api.app,
            is_served=name in types,
            modes=list(api.modes) or None if name == api.app else None,
        )
        for name in sorted({*types, *api.apps, api.app})
        if api.may_use(call.principal, name)
    ]


@endpoint.get("/v1/apps", scope="sessions:own")
async def list_apps(call: WebCall) -> AppsJson:
    """List apps and modes."""
    return AppsJson(apps=await apps_of(call))
