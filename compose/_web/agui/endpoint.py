"""`POST /agui/{app}`: responds to an input of the AG-UI protocol with a stream of events.

An input starts a run for a user's message, in an existing session or a new one; or it answers interrupts and
calls of the client's tools. Each answer is delivered once, by any process. An input with neither is answered
with the messages of the session, and the events of the run that is open.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, Final

from ag_ui.core import (
    AssistantMessage,
    BaseEvent,
    FunctionCall,
    Message,
    MessagesSnapshotEvent,
    ResumeEntry,
    RunAgentInput,
    RunFinishedEvent,
    RunFinishedSuccessOutcome,
    ToolCall,
    ToolMessage,
)
from ag_ui.core import UserMessage as UserInput
from pydantic import TypeAdapter
from starlette.responses import Response

from actors._kernel.agent.agent import DEFAULT_MODE
from actors._kernel.agent.message import ContentBlock, sender_of
from actors._kernel.agent.transcript import Turn
from actors._kernel.json import canonical_json
from actors._kernel.runtime.ids import AgentId, RunId, run_id_of_submit
from actors._kernel.runtime.rows import RunRow
from actors._kernel.stores.errors import UnknownSessionError
from actors._kernel.stores.runs import OnConflict
from actors._sessions.artifacts import UserMessage
from actors._sessions.events import EventCursor, SessionEvent
from actors._sessions.translation import RunTranslator
from actors.errors import UnknownApprovalError
from compose._web.agui.events import RunTree, ShownMessages
from compose._web.agui.intake import AguiInput, read_input
from compose._web.agui.stream import (
    AguiReader,
    AguiStream,
    Gate,
    error_line,
    line_of,
    open_interrupts,
    start_line,
)
from compose._web.endpoint import Endpoints, FoundSession, StrictModel, WebCall
from compose._web.problems import HttpProblem, ProblemError
from compose._web.resources.approvals import audit_decision
from compose._web.resources.readers import CURSOR_HEADER, OnDisconnect, feed_of_run, stream_response
from compose._web.resources.runs import OPEN, check_mode, on_gone
from compose._web.resources.sessions import make_session
from compose._web.streams import MEDIA_TYPE, EventLine

endpoint: Final = Endpoints()

_RUN_OF_MESSAGE: Final = re.compile(r"([0-9a-f]{32}):", re.ASCII)
"""Prefix of message ids that streams send: the run's id. Other ids are ids of nodes."""
MAX_INPUT_BYTES: Final = 4 * 1024 * 1024
"""Largest input: clients send the whole conversation. The message that a run receives has a message's limit."""
MOST_MESSAGES: Final = 1_000
"""Maximum number of messages of a snapshot: the last ones."""
_USER: Final = TypeAdapter(UserInput)
_MEDIA: Final = {"image": "image", "audio": "audio", "video": "video", "file": "document"}
MAX_OPEN: Final = 100
"""Maximum number of open runs of a session that are read."""
MAX_ENDED: Final = 10
"""Maximum number of ended runs, newest first, that are searched for an answer that was delivered before."""
_WITHOUT: Final = "run it again without the answer"


class AnswerError(ProblemError):
    """An input does not fit the state of the thread. The protocol requires an error event, not a status."""


class AguiQuery(StrictModel):
    """The query of an input.

    Attributes:
        mode: The agent that executes a new run.
        on_disconnect: Whether to cancel the run if the client disconnects before the stream ends.
    """

    mode: str = DEFAULT_MODE
    on_disconnect: OnDisconnect = "continue"


@endpoint.post(
    "/agui/{app}",
    scope="sessions:own",
    action="approval.decide",
    media_type=MEDIA_TYPE,
    max_bytes=MAX_INPUT_BYTES,
)
async def run(call: WebCall, query: AguiQuery, body: RunAgentInput) -> Response:
    """Run an agent for a client of the AG-UI protocol, and stream its events.

    An input starts a run, delivers answers to a run, or shows the conversation.
    """
    agui_input = read_input(body)
    call.api.streams.check(call.principal)  # before anything is started
    try:
        lines, run_id = await _stream_of(call, query, agui_input)
    except AnswerError as exc:
        return stream_response(
            call, _stream_lines(start_line(agui_input), error_line(exc)), stream=AguiStream()
        )
    cancel_run = None if run_id is None else on_gone(call, run_id, query.on_disconnect)
    return stream_response(call, lines, on_gone=cancel_run, stream=AguiStream())


async def _stream_of(
    call: WebCall, query: AguiQuery, agui_input: AguiInput
) -> tuple[AsyncGenerator[EventLine, None], RunId | None]:
    """Return the stream of an input, and the id of its run; None for the id if there is no run to cancel."""
    session = await session_of(call, agui_input)
    if session is None:
        return _stream_snapshot(agui_input, snapshot_of((), open_run_id=None)), None
    if agui_input.resume or agui_input.answers:
        answered_run = await give_answers(call, session, agui_input)
        if answered_run is not None:
            run_id, gate = answered_run
            return AguiReader(call, session, run_id, agui_input, gate).lines(), run_id
    # A repeated input finds the run that was started for a message with its run id.
    sender = sender_of("session", call.principal.name)
    run_id = run_id_of_submit(session.agent, sender, agui_input.run_id)
    if await call.runtime.store.reads.run(run_id) is not None:
        return _stream_started_run(call, session, agui_input, run_id), run_id
    if agui_input.user_message is not None:
        run_id = await start_run(
            call, session, agui_input, agui_input.user_message, mode=query.mode
        )
        return AguiReader(call, session, run_id, agui_input).lines(), run_id
    return await _stream_conversation(call, session, agui_input)


def _stream_started_run(
    call: WebCall, session: FoundSession, agui_input: AguiInput, run_id: RunId
) -> AsyncGenerator[EventLine, None]:
    """Return the stream of a known run, from its start, or from behind the event that the client names."""
    cursor = call.request.headers.get(CURSOR_HEADER) or None
    gate, first_events = Gate(cursor=cursor), []
    if cursor is not None:
        EventCursor.parse(cursor, agui_input.thread_id)  # raises before the stream starts
    else:
        prefix = f"{run_id}:"
        snapshot = ShownMessages(agui_input.messages).without(lambda id_: id_.startswith(prefix))
        first_events = [] if snapshot is None else [snapshot]
    return AguiReader(call, session, run_id, agui_input, gate, first_events).lines()


async def _stream_conversation(
    call: WebCall, session: FoundSession, agui_input: AguiInput
) -> tuple[AsyncGenerator[EventLine, None], RunId | None]:
    """Return the conversation, then the events of the run that is open, if there is one."""
    open_run = next(iter(await open_runs_of(call, session)), None)
    turns = await call.runtime.store.data.sessions.path(session.agent)
    snapshot = snapshot_of(turns, open_run_id=None if open_run is None else open_run.run_id)
    if open_run is None:
        return _stream_snapshot(agui_input, snapshot), None
    return AguiReader(call, session, open_run.run_id, agui_input, first=[snapshot]).lines(), None


def _stream_snapshot(agui_input: AguiInput, snapshot: BaseEvent) -> AsyncGenerator[EventLine, None]:
    """Return a stream of the conversation only, for a session without an open run."""
    finish_event = RunFinishedEvent(
        thread_id=agui_input.thread_id,
        run_id=agui_input.run_id,
        outcome=RunFinishedSuccessOutcome(),
    )
    return _stream_lines(start_line(agui_input), line_of(snapshot), line_of(finish_event))


async def _stream_lines(*lines: EventLine) -> AsyncGenerator[EventLine, None]:
    for line in lines:
        yield line


async def session_of(call: WebCall, agui_input: AguiInput) -> FoundSession | None:
    """Return the session of a thread. Create it for a message; return None for a read of a missing session.

    Raises:
        ProblemError: The session was deleted.
        UnknownSessionError: Another principal owns it, or the input has answers and there is no session.
    """
    app = call.names["app"]
    try:
        return await call.session(app, agui_input.thread_id)
    except UnknownSessionError:
        if agui_input.resume or agui_input.answers:
            raise
        if agui_input.user_message is None:
            return None
        agents = await call.sessions(app)
        await make_session(call, agents.agent_id(agui_input.thread_id))
        return await call.session(app, agui_input.thread_id)


async def start_run(
    call: WebCall, session: FoundSession, agui_input: AguiInput, message: UserMessage, *, mode: str
) -> RunId:
    """Start a run for a message. The message is durable on return.

    Raises:
        AnswerError: The thread waits for answers to interrupts.
        UnknownModeError: There is no such mode.
    """
    check_mode(call, session.agents, mode)
    run = await session.agents.start(
        message,
        session_id=session.agent.key,
        mode=mode,
        parent_node=await _parent_of(call, session, agui_input),
        on_conflict=await _conflict_of(call, session),
    )
    return run.run_id


async def _conflict_of(call: WebCall, session: FoundSession) -> OnConflict:
    """Return ``interrupt`` if an open run waits for the client's tools, else ``queue``."""
    for row in await open_runs_of(call, session):
        tree = await tree_of(call, session, row.run_id)
        refuse_open(await open_interrupts(call.runtime, tree.run_ids))
        if tree.pending().calls:
            return "interrupt"
    return "queue"


async def _parent_of(call: WebCall, session: FoundSession, agui_input: AguiInput) -> str | None:
    """Return the node of the last message before the new one; None if it is the active node, or is unknown.

    A client can leave out the end of the conversation, to edit a message or to get another answer. The new
    message then starts a branch. Only the ids of the client's messages are used.
    """
    store, agent, head = call.runtime.store, session.agent, session.row.head
    ids = agui_input.earlier_ids
    if head is None or not ids:
        return None
    [*head_nodes] = await store.data.sessions.nodes(agent, [head])
    head_run = head_nodes[0].run_id if head_nodes else None
    turns: list[Turn] | None = None
    for id_ in ids:
        run_match = _RUN_OF_MESSAGE.match(id_)
        if (run_match is not None and run_match[1] == head_run) or id_ == head:
            return None
        if turns is None:
            turns = await store.data.transcripts.page(agent, agent.key, branches=True)
        matches = [
            turn for turn in turns if (run_match is not None and turn.run_id == run_match[1])
        ]
        matches = matches or [turn for turn in turns if turn.id == id_.partition(":")[0]]
        if matches:
            return None if matches[-1].id == head else matches[-1].id
    return None


async def give_answers(
    call: WebCall, session: FoundSession, agui_input: AguiInput
) -> tuple[RunId, Gate] | None:
    """Deliver answers to the run that waits for them; return the run, and a filter of its events.

    Return None if the input has only results of tools that are known. A repeated answer changes nothing.

    Raises:
        AnswerError: An answer does not fit.
    """
    answers_by_call_id = {answer.call_id: answer for answer in agui_input.answers}
    interrupt_ids = {entry.interrupt_id for entry in agui_input.resume}
    answer_ids = interrupt_ids | answers_by_call_id.keys()
    for row in await last_runs_of(call, session):
        tree = await tree_of(call, session, row.run_id)
        if answer_ids & tree.answerable_ids:
            break
    else:
        raise _unknown_answers(sorted(answer_ids))
    # A client may send the decision of an interrupt as the result of its tool call, too.
    for call_id in tree.calls_of(interrupt_ids) - interrupt_ids:
        answers_by_call_id.pop(call_id, None)
    call_ids = tree.calls.keys()
    if unknown_ids := sorted(
        (answers_by_call_id.keys() - call_ids) | (interrupt_ids - (tree.answerable_ids - call_ids))
    ):
        raise _unknown_answers(unknown_ids)
    # The protocol requires the answers to all open interrupts in one input.
    refuse_open(await open_interrupts(call.runtime, tree.run_ids) - interrupt_ids)
    # All decisions are validated before the first answer is delivered.
    decisions = [(entry, _is_approval(entry)) for entry in agui_input.resume]
    client_call_ids = {id_ for id_ in answers_by_call_id if tree.calls[id_].is_asked}
    for id_ in answers_by_call_id.keys() - client_call_ids:
        if not tree.calls[id_].is_done:
            raise _answer_error(
                "not_a_client_tool", id_, "this tool is executed by the server", _WITHOUT
            )
    for entry, approve in decisions:
        await _decide(call, entry, approve, tree)
    for id_ in client_call_ids:
        await call.runtime.approvals.give(row.run_id, id_, answers_by_call_id[id_].result())
    delivered_ids = frozenset(interrupt_ids | client_call_ids)
    gate = Gate(delivered_ids, None, agui_input.known_messages, agui_input.known_results)
    return (row.run_id, gate) if delivered_ids else None


def refuse_open(interrupts: set[str]) -> None:
    """Refuse an input if interrupts are open.

    Raises:
        AnswerError: There are open interrupts.
    """
    if interrupts:
        names = ", ".join(sorted(interrupts))
        remedy = "give an entry of `resume` for each; `cancelled` denies it"
        raise _answer_error(
            "interrupts_open", names, f"the thread waits for answers to {names}", remedy
        )


def _is_approval(entry: ResumeEntry) -> bool:
    """Return the decision of an entry.

    Raises:
        AnswerError: The entry has no decision.
    """
    if entry.status == "cancelled":
        return False
    payload = entry.payload
    decision = payload.get("approved") if isinstance(payload, dict) else payload
    if not isinstance(decision, bool):
        problem = "the payload has no decision"
        remedy = 'give {"approved": true} or {"approved": false}, and perhaps a "comment"'
        raise _answer_error("invalid_answer", entry.interrupt_id, problem, remedy)
    return decision


async def _decide(call: WebCall, entry: ResumeEntry, approve: bool, tree: RunTree) -> None:
    id_, payload = entry.interrupt_id, entry.payload
    comment = payload.get("comment") if isinstance(payload, dict) else None
    if entry.status == "cancelled":
        comment = "cancelled"
    status = tree.outcomes.get(id_)
    if status is None:
        change = await audit_decision(call, RunId(tree.run_ids[0]), id_, approve=approve)
        try:
            await call.runtime.approvals.decide(
                id_, approve=approve, by=call.principal.name, comment=str(comment or "")
            )
        except UnknownApprovalError:
            # Another client has decided it meanwhile: this principal changed nothing.
            call.changes.remove(change)
    elif status == "expired" and entry.status == "resolved":
        remedy = "cancel it to go on"
        raise _answer_error("interrupt_expired", id_, f"interrupt {id_} has expired", remedy)
    elif status != "expired" and (status == "approved") is not approve:
        raise _answer_error("interrupt_answered", id_, f"interrupt {id_} was {status}", _WITHOUT)


def _unknown_answers(ids: list[str]) -> AnswerError:
    names = ", ".join(id_[:100] for id_ in ids[:5])
    problem = f"the thread has not asked for {names}"
    return _answer_error("unknown_answer", names, problem, _WITHOUT)


def _answer_error(code: str, name: str, problem: str, remedy: str) -> AnswerError:
    return AnswerError(HttpProblem(409, code, problem, remedy, name=name))


def snapshot_of(turns: Sequence[Turn], *, open_run_id: str | None) -> MessagesSnapshotEvent:
    """Return turns as messages. Of an open run it has only the user's message: events carry the others."""
    visible_turns = [
        turn
        for turn in turns[-MOST_MESSAGES:]
        if turn.run_id != open_run_id or turn.message.role == "user"
    ]
    return MessagesSnapshotEvent(
        messages=[message for turn in visible_turns for message in _messages_of(turn)]
    )


def _messages_of(turn: Turn) -> Iterator[Message]:
    message = turn.message
    if message.role == "assistant":
        calls = [_tool_call(block) for block in message.content if block.type == "tool_call"]
        yield AssistantMessage(
            id=turn.id, content=message.text or None, tool_calls=calls or None, name=message.name
        )
    elif message.role == "user":
        yield _user(turn)
    elif message.role == "tool":
        for n, block in enumerate(
            block for block in message.content if block.type == "tool_result"
        ):
            call = str((block.model_extra or {}).get("id"))
            yield ToolMessage(id=f"{turn.id}:{n}", tool_call_id=call, content=block.text or "")


def _tool_call(block: ContentBlock) -> ToolCall:
    data: dict[str, Any] = block.model_extra or {}
    arguments = data.get("invalid_arguments", data.get("arguments"))
    text = arguments if isinstance(arguments, str) else canonical_json(arguments or {})
    function = FunctionCall(name=str(data.get("name")), arguments=text)
    return ToolCall(id=str(data.get("id")), function=function)


def _user(turn: Turn) -> UserInput:
    message = turn.message
    if all(block.type == "text" for block in message.content):
        return UserInput(id=turn.id, content=message.text)
    parts = [part for part in map(_content_part, message.content) if part is not None]
    return _USER.validate_python({"id": turn.id, "content": parts})


def _content_part(block: ContentBlock) -> dict[str, Any] | None:
    data: dict[str, Any] = block.model_extra or {}
    if block.type == "text":
        return {"type": "text", "text": block.text or ""}
    kind, mime = _MEDIA.get(block.type), data.get("media_type")
    if kind is not None and isinstance(data.get("url"), str):
        return {"type": kind, "source": {"type": "url", "value": data["url"], "mime_type": mime}}
    if kind is not None and isinstance(data.get("data"), str) and isinstance(mime, str):
        return {"type": kind, "source": {"type": "data", "value": data["data"], "mime_type": mime}}
    return None


async def open_runs_of(call: WebCall, session: FoundSession) -> list[RunRow]:
    """Return the open runs of a session, in the order of their arrival."""
    if not session.row.open_runs:
        return []
    rows = await call.runtime.store.lists.runs(agent=session.agent, status=OPEN, limit=MAX_OPEN)
    return sorted(rows, key=lambda row: row.arrival)


async def last_runs_of(call: WebCall, session: FoundSession) -> list[RunRow]:
    """Return the open runs of a session in the order of their arrival, then the newest other runs."""
    open_runs = await open_runs_of(call, session)
    newest_runs = await call.runtime.store.lists.runs(agent=session.agent, limit=MAX_OPEN)
    open_ids = {row.run_id for row in open_runs}
    return [*open_runs, *[row for row in newest_runs if row.run_id not in open_ids][:MAX_ENDED]]


async def tree_of(call: WebCall, session: FoundSession, run_id: RunId) -> RunTree:
    """Return the tree of a run and its descendants, with all events up to now."""
    tree = RunTree(run_id)
    feed = await feed_of_run(call, session.agent, run_id, None, live=False)
    child_starts = [event async for event in feed.past() if _adds_child(tree, event)]
    # Events of descendants are in their own logs, not in the session's.
    while child_starts:
        payload: Any = child_starts.pop(0).payload
        child_id, agent = RunId(payload["child"]), AgentId.parse(payload["agent"])
        names = call.runtime.hidden_names
        translator = RunTranslator(session.agent.key, child_id, agent, names)
        async for entry in call.runtime.entries(child_id):
            child_starts += [
                event for event in await translator.of(entry) if _adds_child(tree, event)
            ]
    return tree


def _adds_child(tree: RunTree, event: SessionEvent) -> bool:
    """Add an event to the tree; return True if it is the start of a child run."""
    tree.of(event)
    return event.type == "child_started"
