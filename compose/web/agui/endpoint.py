"""`POST /agui/{app}`: responds to an input of the AG-UI protocol with a stream of events.

Start of a run for a user's message, in an existing session or a new one.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Final

from ag_ui.core import BaseEvent, RunAgentInput, RunFinishedEvent, RunFinishedSuccessOutcome

from actors.kernel.agent.agent import DEFAULT_MODE
from actors.kernel.agent.message import sender_of
from actors.kernel.agent.transcript import Turn
from actors.kernel.runtime.ids import RunId, run_id_of_submit
from actors.kernel.stores.errors import UnknownSessionError
from actors.kernel.stores.runs import OnConflict
from actors.sessions.artifacts import UserMessage
from actors.sessions.events import EventCursor
from compose.web.agui.answers import AnswerError, give_answers, refuse_open
from compose.web.agui.events import ShownMessages
from compose.web.agui.intake import AguiInput, read_input
from compose.web.agui.snapshot import open_runs_of, snapshot_of, tree_of
from compose.web.agui.stream import (
    AguiReader,
    AguiStream,
    Gate,
    begun_line,
    error_line,
    line_of,
    open_interrupts,
)
from compose.web.endpoint import Done, FoundSession, StrictModel, WebCall, WebEndpoint
from compose.web.resources.readers import CURSOR_HEADER, OnDisconnect, streamed
from compose.web.resources.runs import check_mode, on_gone
from compose.web.resources.sessions import make_session
from compose.web.streams import MEDIA_TYPE, EventLine

_RUN_OF_MESSAGE: Final = re.compile(r"([0-9a-f]{32}):", re.ASCII)
"""Prefix of message ids that streams send: the run's id. Other ids are ids of nodes."""


async def session_of(call: WebCall, given: AguiInput) -> FoundSession | None:
    """Return the session of a thread. Create it for a message; return None for a read of a missing session.

    Raises:
        ProblemError: The session was deleted.
        UnknownSessionError: Another principal owns it, or the input has answers and there is no session.
    """
    app = call.names["app"]
    try:
        return await call.session(app, given.thread_id)
    except UnknownSessionError:
        if given.resume or given.answers:
            raise
        if given.said is None:
            return None
        agents = await call.sessions(app)
        await make_session(call, agents.agent_id(given.thread_id))
        return await call.session(app, given.thread_id)


async def start_run(
    call: WebCall, found: FoundSession, given: AguiInput, said: UserMessage, *, mode: str
) -> RunId:
    """Start a run for a message. The message is durable on return.

    Raises:
        AnswerError: The thread waits for answers to interrupts.
        UnknownModeError: There is no such mode.
    """
    check_mode(call, found.agents, mode)
    run = await found.agents.start(
        said,
        session_id=found.agent.key,
        mode=mode,
        parent_node=await _parent_of(call, found, given),
        on_conflict=await _conflict_of(call, found),
    )
    return run.run_id


async def _conflict_of(call: WebCall, found: FoundSession) -> OnConflict:
    """Return ``interrupt`` if an open run waits for the client's tools, else ``queue``."""
    for row in await open_runs_of(call, found):
        tree = await tree_of(call, found, row.run_id)
        refuse_open(await open_interrupts(call.runtime, tree.run_ids))
        if tree.pending().calls:
            return "interrupt"
    return "queue"


async def _parent_of(call: WebCall, found: FoundSession, given: AguiInput) -> str | None:
    """Return the node of the last message before the new one; None if it is the active node, or is unknown.

    A client can leave out the end of the conversation, to edit a message or to get another answer. The new
    message then starts a branch. Only the ids of the client's messages are used.
    """
    store, agent, head = call.runtime.store, found.agent, found.row.head
    ids = given.before
    if head is None or not ids:
        return None
    [*active] = await store.sessions.nodes(agent, [head])
    last = active[0].run_id if active else None
    turns: list[Turn] | None = None
    for id_ in ids:
        told = _RUN_OF_MESSAGE.match(id_)
        if (told is not None and told[1] == last) or id_ == head:
            return None
        if turns is None:
            turns = await store.transcripts.page(agent, agent.key, branches=True)
        wanted = [one for one in turns if (told is not None and one.run_id == told[1])]
        wanted = wanted or [one for one in turns if one.id == id_.partition(":")[0]]
        if wanted:
            return None if wanted[-1].id == head else wanted[-1].id
    return None


MAX_INPUT_BYTES: Final = 4 * 1024 * 1024
"""Largest input: clients send the whole conversation. The message that a run receives has a message's limit."""


class AguiQuery(StrictModel):
    """The query of an input.

    Attributes:
        mode: The agent that executes a new run.
        on_disconnect: Whether to cancel the run if the client disconnects before the stream ends.
    """

    mode: str = DEFAULT_MODE
    on_disconnect: OnDisconnect = "continue"


async def run(call: WebCall, query: AguiQuery, body: RunAgentInput) -> Done:
    """Respond to an input: start a run, deliver answers to a run, or show the conversation."""
    given = read_input(body)
    await call.sessions(call.names["app"])
    call.api.streams.check(call.principal)  # before anything is started
    try:
        reader, run_id = await _reader(call, query, given)
    except AnswerError as exc:
        return streamed(call, _only(begun_line(given), error_line(exc)), stream=AguiStream())
    gone = None if run_id is None else on_gone(call, run_id, query.on_disconnect)
    return streamed(call, reader, on_gone=gone, stream=AguiStream())


async def _reader(
    call: WebCall, query: AguiQuery, given: AguiInput
) -> tuple[AsyncGenerator[EventLine, None], RunId | None]:
    """Return the stream of an input, and the id of its run; None for the id if there is no run to cancel."""
    found = await session_of(call, given)
    if found is None:
        return _still(given, snapshot_of((), open_run=None)), None
    if given.resume or given.answers:
        answered = await give_answers(call, found, given)
        if answered is not None:
            run_id, gate = answered
            return AguiReader(call, found, run_id, given, gate).lines(), run_id
    known = await _known_run(call, found, given)
    if known is not None:
        return _again(call, found, given, known), known
    if given.said is not None:
        run_id = await start_run(call, found, given, given.said, mode=query.mode)
        return AguiReader(call, found, run_id, given).lines(), run_id
    return await _shown(call, found, given)


async def _known_run(call: WebCall, found: FoundSession, given: AguiInput) -> RunId | None:
    """Return the run that was started for a message with the input's run id; None if there is none."""
    sender = sender_of("session", call.principal.name)
    run_id = run_id_of_submit(found.agent, sender, given.run_id)
    row = await call.runtime.store.reads.run(run_id)
    return None if row is None else run_id


def _again(
    call: WebCall, found: FoundSession, given: AguiInput, run_id: RunId
) -> AsyncGenerator[EventLine, None]:
    """Return the stream of a known run, from its start, or from behind the event that the client names."""
    cursor = call.request.headers.get(CURSOR_HEADER) or None
    gate, first = Gate(cursor=cursor), []
    if cursor is not None:
        EventCursor.parse(cursor, given.thread_id)  # raises before the stream starts
    else:
        prefix = f"{run_id}:"
        snapshot = ShownMessages(given.messages).without(lambda id_: id_.startswith(prefix))
        first = [] if snapshot is None else [snapshot]
    return AguiReader(call, found, run_id, given, gate, first).lines()


async def _shown(
    call: WebCall, found: FoundSession, given: AguiInput
) -> tuple[AsyncGenerator[EventLine, None], RunId | None]:
    """Return the conversation, then the events of the run that is open, if there is one."""
    active = next(iter(await open_runs_of(call, found)), None)
    turns = await call.runtime.store.sessions.path(found.agent)
    snapshot = snapshot_of(turns, open_run=None if active is None else active.run_id)
    if active is None:
        return _still(given, snapshot), None
    return AguiReader(call, found, active.run_id, given, first=[snapshot]).lines(), None


def _still(given: AguiInput, snapshot: BaseEvent) -> AsyncGenerator[EventLine, None]:
    """Return a stream of the conversation only, for a session without an open run."""
    finished = RunFinishedEvent(
        thread_id=given.thread_id, run_id=given.run_id, outcome=RunFinishedSuccessOutcome()
    )
    return _only(begun_line(given), line_of(snapshot), line_of(finished))


async def _only(*lines: EventLine) -> AsyncGenerator[EventLine, None]:
    for line in lines:
        yield line


ENDPOINTS: Final = (
    WebEndpoint(
        method="POST",
        path="/agui/{app}",
        call=run,
        says="Run an agent for a client of the AG-UI protocol, and stream its events.",
        query=AguiQuery,
        body=RunAgentInput,
        media_type=MEDIA_TYPE,
        max_bytes=MAX_INPUT_BYTES,
    ),
)
