"""Runs of sessions, their child runs, and nodes: the turns of the conversation with its branches.

A run is started, listed, waited for and cancelled. One node of a session is active.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from pydantic import Field, JsonValue, model_validator
from starlette.responses import Response

from actors._kernel.agent.agent import DEFAULT_MODE, ExpectedSession
from actors._kernel.agent.message import ContentBlock
from actors._kernel.agent.transcript import NO_CUT, Turn
from actors._kernel.basics import MAX_INT
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import TERMINAL, RunStatus
from actors._kernel.stores.errors import UnknownNodeError
from actors._kernel.stores.runs import OnConflict, RunFilter
from actors._kernel.text import is_name
from actors._runtime.replay.verdict import error_of_row, row_of
from actors._sessions.artifacts import UserMessage, check_blocks_of_user
from actors._sessions.errors import UnknownChildError, UnknownModeError
from actors._sessions.run import RunPhase, SessionRun, state_of
from actors._sessions.runtime import AgentRuntime
from actors.errors import ActorsError, UnknownRunError
from compose._web.endpoint import (
    Endpoints,
    FoundSession,
    ShownModel,
    StrictModel,
    WebCall,
    json_response,
    thing_of_session,
)
from compose._web.problems import HttpProblem, ProblemError, is_away
from compose._web.requests import wait_of
from compose._web.resources.pages import OfApp, PagedOfApp
from compose._web.resources.readers import OnDisconnect, lines_of, stream_response
from compose._web.streams import wants_stream

endpoint: Final = Endpoints()

_SESSION: Final = "/v1/sessions/{session}"
State: TypeAlias = Literal["open", "completed", "failed", "cancelled"]
KEY: Final = "idempotency-key"
MIN_PRIORITY: Final = 5
"""Lowest priority value without the scope `operate`: lower values would delay other runs of the tenant."""
_GONE: Final = "the client that read the run has disconnected"
"""The reason of a cancel by `on_disconnect`."""
_RUNS: Final = "/v1/sessions/{session}/runs"
RUN: Final = f"{_RUNS}/{{run}}"
OPEN: Final = tuple(status for status in RunStatus if status not in TERMINAL)
_STATUSES: Final[dict[State, tuple[RunStatus, ...]]] = {
    "open": OPEN,
    "completed": (RunStatus.COMPLETED,),
    "failed": (RunStatus.FAILED,),
    "cancelled": (RunStatus.CANCELLED,),
}


class NewRunJson(StrictModel):
    """A user's message, which starts a run. It has either `text`, or `content` of blocks, and is not blank.

    Attributes:
        text: The user's text.
        content: The message as blocks. Blocks that only models and tools make are refused, see `NOT_OF_USERS`.
        message_id: Id of the message; a known id returns the known run. The header Idempotency-Key overrides
            it.
        mode: The agent that executes the run.
        parent_node: The node from which the run continues. ``root`` restarts the conversation.
        on_conflict: If the session has an open run: wait behind it, join it, be refused, or cancel it first.
        priority: Lower values are executed first, among runs of different sessions. Values below 5 need the
            scope `operate`.
    """

    text: str | None = None
    content: list[ContentBlock] | None = Field(default=None, min_length=1)
    message_id: str | None = Field(default=None, min_length=1)
    mode: str = DEFAULT_MODE
    parent_node: str | None = None
    on_conflict: OnConflict = "queue"
    priority: int = Field(default=MIN_PRIORITY, ge=-MAX_INT, le=MAX_INT)

    @model_validator(mode="after")
    def _says_something(self) -> NewRunJson:
        if (self.text is None) == (self.content is None):
            raise ValueError("give either `text` or `content`")
        blocks = self.content or [ContentBlock(type="text", text=self.text)]
        if all(block.type == "text" and not (block.text or "").strip() for block in blocks):
            raise ValueError("the message is blank: give it a text, or a block of another type")
        check_blocks_of_user(blocks)
        return self

    def message(self, key: str | None) -> UserMessage:
        """Return the message, with the request's idempotency key as its id.

        Raises:
            ProblemError: The key and `message_id` differ.
        """
        if key is not None and self.message_id not in (None, key):
            problem = "Idempotency-Key and message_id differ"
            raise ProblemError(HttpProblem(422, "invalid", problem, "give one of them"))
        id_ = key or self.message_id
        content = (
            tuple(self.content)
            if self.content is not None
            else (ContentBlock(type="text", text=self.text),)
        )
        return UserMessage(content=content) if id_ is None else UserMessage(content=content, id=id_)


class StartQuery(OfApp):
    """The query of a new run. `on_disconnect`: whether to cancel the run if its stream's reader disconnects."""

    on_disconnect: OnDisconnect = "continue"


class RunJson(ShownModel):
    """A run.

    Attributes:
        run_id: The run's id.
        agent: The run's agent. For a run of a session, the agent's key is the session's id.
        session_id: The session; null for a child run, and for a run of no session.
        status: The run's current status.
        parked: The reason why the run is parked for an operator; null if it is not.
        parent: The run that spawned it.
        output: The result of a completed run.
        error: The error of a failed or cancelled run.
        created_at: When the run was started.
        updated_at: When the last entry was written.
    """

    run_id: str
    agent: str
    session_id: str | None
    status: RunPhase
    parked: str | None = None
    parent: str | None = None
    output: JsonValue = None
    error: Any = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class RunsJson(ShownModel):
    """A page of runs, newest first. `next` is null on the last page."""

    runs: list[RunJson]
    next: str | None


class RunsQuery(PagedOfApp):
    """The query of a list of runs."""

    status: State | None = None


class CancelJson(StrictModel):
    """A cancel request. The reason is stored in the run's log."""

    reason: str = ""


class ChildJson(ShownModel):
    """A child run, the turns that it has written, and the names of artifacts that it has stored."""

    run: RunJson
    nodes: list[NodeJson]
    artifacts: list[str]


class NodeJson(ShownModel):
    """A turn of a conversation. `parent` is the previous node."""

    node_id: str
    parent: str | None
    run_id: str | None
    role: str
    text: str
    content: list[dict[str, Any]]
    at: datetime


class NodesJson(ShownModel):
    """A page of nodes, oldest first. `next` is null on the last page."""

    active_node: str | None
    nodes: list[NodeJson]
    next: str | None


class NodesQuery(PagedOfApp):
    """The query of a list of nodes: those on the path to the active node, or those of all branches."""

    path: Literal["active", "all"] = "active"


class ActiveNodeJson(StrictModel):
    """The node from which the next run continues. ``root`` restarts the conversation."""

    node_id: str


def run_json(row: RunRow, session: str | None) -> RunJson:
    """Return a run in the form in which clients receive it."""
    return RunJson(
        run_id=row.run_id,
        agent=str(row.agent_id),
        session_id=session,
        status=state_of(row),
        parked=row.parked,
        parent=row.parent,
        output=row.result,
        error=error_of_row(row),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def node_of(turn: Turn) -> NodeJson:
    """Return a turn in the form in which clients receive it."""
    message = turn.message
    return NodeJson(
        node_id=turn.id,
        parent=turn.parent,
        run_id=turn.run_id or None,
        role=message.role,
        text=message.text,
        content=[block.model_dump(mode="json", exclude_none=True) for block in message.content],
        at=turn.at,
    )


@endpoint.get(f"{_SESSION}/nodes", scope="sessions:own")
async def list_nodes(call: WebCall, query: NodesQuery) -> NodesJson:
    """List nodes, oldest first."""
    session = await call.session(query.app)
    store, agent = call.runtime.store, session.agent
    after = None
    if query.after is not None:
        after = next(iter(await store.data.sessions.nodes(agent, [query.after])), None)
        if after is None:
            raise UnknownNodeError(str(agent), query.after[:100])
    ordinal = NO_CUT if after is None else after.ordinal
    turns = await store.data.sessions.path(
        agent, after=ordinal, limit=query.limit + 1, branches=query.path == "all"
    )
    nodes = [node_of(turn) for turn in turns[: query.limit]]
    next_cursor = nodes[-1].node_id if len(turns) > query.limit else None
    return NodesJson(active_node=session.row.head, nodes=nodes, next=next_cursor)


@endpoint.put(f"{_SESSION}/active-node", scope="sessions:own", action="session.switch", status=204)
async def switch(call: WebCall, query: OfApp, body: ActiveNodeJson) -> Response:
    """Make a node the active one, from which the next run continues.

    Refused while a run is open.
    """
    session = await call.session(query.app)
    before, after = {"active_node": session.row.head}, {"active_node": body.node_id}
    call.audit(thing_of_session(session.agent), agent=session.agent, before=before, after=after)
    await session.agents.switch_context(session.agent.key, body.node_id)
    return Response(status_code=204)


async def run_of(call: WebCall, session: FoundSession) -> RunRow:
    """Return the run that the path names, of the session that the path names.

    Raises:
        UnknownRunError: The session has no such run.
    """
    row = await row_of(call.runtime.store, RunId(call.names["run"]))
    if row.agent_id != session.agent:
        raise UnknownRunError(row.run_id)
    return row


def check_mode(call: WebCall, agents: AgentRuntime, mode: str) -> None:
    """Check that an app has this mode. Any mode passes if the app's modes are not known here.

    Raises:
        UnknownModeError: The app has no such mode.
    """
    modes = call.api.modes
    if agents.app == call.api.app and modes and mode not in modes:
        raise UnknownModeError(mode, ", ".join(modes))


async def start_run(call: WebCall, app: str | None, body: NewRunJson) -> SessionRun:
    """Start the run of a request. It is durable on return.

    The statement that submits the run checks the session, so that no read comes before it.
    """
    if body.priority < MIN_PRIORITY:
        call.principal.check("operate")
    try:
        return await _submit(call, await call.sessions(app), body)
    except (ActorsError, ProblemError) as exc:
        if not is_away(exc):
            # Raises if the principal does not see the session: it must not learn of anything else.
            await call.session(app)
        raise


async def _submit(call: WebCall, agents: AgentRuntime, body: NewRunJson) -> SessionRun:
    check_mode(call, agents, body.mode)
    return await agents.start(
        body.message(call.request.headers.get(KEY)),
        session_id=agents.agent_id(call.names["session"]).key,
        mode=body.mode,
        parent_node=body.parent_node,
        on_conflict=body.on_conflict,
        priority=body.priority,
        expected=ExpectedSession(call.principal.only_owner),
    )


@endpoint.post(_RUNS, scope="sessions:own", action=None, status=202, streams=True)
async def start(call: WebCall, query: StartQuery, body: NewRunJson) -> RunJson | Response:
    """Start a run for a message.

    Respond 202, with the ended run for `Prefer: wait=N`, or with its events if a stream is accepted.
    """
    streams = wants_stream(call.request, default=False)
    if streams:
        call.api.streams.check(call.principal)  # raises before a run is started
    run = await start_run(call, query.app, body)
    location = {"location": f"{call.request.scope['path']}/{run.run_id}"}
    if streams:
        cancel_run = on_gone(call, run.run_id, query.on_disconnect)
        return stream_response(call, lines_of(run.tail()), on_gone=cancel_run, headers=location)
    return await _respond_when_ended(call, run.run_id, run.session_id, location)


def on_gone(
    call: WebCall, run_id: RunId, fate: OnDisconnect
) -> Callable[[], Awaitable[Any]] | None:
    """Return the callback for a client that disconnects before the run's end; None to let the run continue."""
    return partial(call.runtime.cancel, run_id, reason=_GONE) if fate == "cancel" else None


async def _respond_when_ended(
    call: WebCall, run_id: RunId, session: str | None, headers: dict[str, str]
) -> Response:
    """Return the run: with 200 if it ends within the time that the client waits, else with 202."""
    wait_s = wait_of(call.request)
    if wait_s:
        headers["preference-applied"] = f"wait={wait_s:g}"
        try:
            async with asyncio.timeout(wait_s):
                await call.runtime.wait(run_id)
        except TimeoutError:
            pass
    row = await row_of(call.runtime.store, run_id)
    status = 200 if wait_s and row.status.is_terminal else 202
    return json_response(run_json(row, session), status, headers)


@endpoint.get(_RUNS, scope="sessions:own")
async def list_runs(call: WebCall, query: RunsQuery) -> RunsJson:
    """List runs, the newest first."""
    session = await call.session(query.app)
    if query.after is not None and not is_name(query.after):
        raise UnknownRunError(query.after[:100])
    rows = await call.runtime.store.lists.runs(
        agent=session.agent,
        status=() if query.status is None else _STATUSES[query.status],
        among=RunFilter(after=None if query.after is None else RunId(query.after)),
        limit=query.limit + 1,
    )
    page = [run_json(row, session.agent.key) for row in rows[: query.limit]]
    return RunsJson(runs=page, next=page[-1].run_id if len(rows) > query.limit else None)


@endpoint.get(RUN, scope="sessions:own")
async def show(call: WebCall, query: OfApp) -> RunJson:
    """Show a run."""
    session = await call.session(query.app)
    return run_json(await run_of(call, session), session.agent.key)


@endpoint.post(f"{RUN}/cancel", scope="sessions:own", action="run.cancel", status=202)
async def cancel(call: WebCall, query: OfApp, body: CancelJson) -> RunJson | Response:
    """Request a run and its descendants to stop.

    A run that has ended is not changed.
    """
    session = await call.session(query.app)
    row = await run_of(call, session)
    if not row.status.is_terminal:
        before = {"run": row.run_id, "status": str(row.status)}
        after = {"run": row.run_id, "reason": body.reason}
        call.audit(thing_of_session(session.agent), agent=session.agent, before=before, after=after)
        await call.runtime.cancel(row.run_id, reason=body.reason)
    return await _respond_when_ended(call, row.run_id, session.agent.key, {})


@endpoint.get(f"{RUN}/children", scope="sessions:own")
async def children(call: WebCall, query: OfApp) -> RunsJson:
    """List the runs that a run has spawned."""
    session = await call.session(query.app)
    row = await run_of(call, session)
    rows = await call.runtime.store.lists.children(row.run_id)
    return RunsJson(runs=[run_json(child, None) for child in rows], next=None)


async def child_of(call: WebCall, app: str | None) -> tuple[SessionRun, RunId]:
    """Return the run that the path names, and the id of the child run that the path names.

    Raises:
        UnknownChildError: The id cannot be the id of a run.
    """
    session = await call.session(app)
    row = await run_of(call, session)
    child = call.names["child"]
    if not is_name(child):
        raise UnknownChildError(row.run_id, child[:100])
    return await session.agents.run(row.run_id), RunId(child)


@endpoint.get(f"{RUN}/children/{{child}}", scope="sessions:own")
async def show_child(call: WebCall, query: OfApp) -> ChildJson:
    """Show turns and artifacts of a child run."""
    run, child = await child_of(call, query.app)
    inspection = await run.inspect_child(child)
    row = await row_of(call.runtime.store, child)
    return ChildJson(
        run=run_json(row, None),
        nodes=[node_of(turn) for turn in inspection.nodes],
        artifacts=inspection.artifacts,
    )
