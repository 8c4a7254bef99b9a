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
    begun_line,
    error_line,
    line_of,
    open_interrupts,
)
from compose._web.endpoint import Done, FoundSession, StrictModel, WebCall, WebEndpoint
from compose._web.problems import HttpProblem, ProblemError
from compose._web.resources.approvals import audit_decision
from compose._web.resources.readers import CURSOR_HEADER, OnDisconnect, feed_of_run, streamed
from compose._web.resources.runs import OPEN, check_mode, on_gone
from compose._web.resources.sessions import make_session
from compose._web.streams import MEDIA_TYPE, EventLine

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
    # A repeated input finds the run that was started for a message with its run id.
    sender = sender_of("session", call.principal.name)
    run_id = run_id_of_submit(found.agent, sender, given.run_id)
    if await call.runtime.store.reads.run(run_id) is not None:
        return _again(call, found, given, run_id), run_id
    if given.said is not None:
        run_id = await start_run(call, found, given, given.said, mode=query.mode)
        return AguiReader(call, found, run_id, given).lines(), run_id
    return await _shown(call, found, given)


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
    turns = await call.runtime.store.data.sessions.path(found.agent)
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
    [*active] = await store.data.sessions.nodes(agent, [head])
    last = active[0].run_id if active else None
    turns: list[Turn] | None = None
    for id_ in ids:
        told = _RUN_OF_MESSAGE.match(id_)
        if (told is not None and told[1] == last) or id_ == head:
            return None
        if turns is None:
            turns = await store.data.transcripts.page(agent, agent.key, branches=True)
        wanted = [one for one in turns if (told is not None and one.run_id == told[1])]
        wanted = wanted or [one for one in turns if one.id == id_.partition(":")[0]]
        if wanted:
            return None if wanted[-1].id == head else wanted[-1].id
    return None


async def give_answers(
    call: WebCall, found: FoundSession, given: AguiInput
) -> tuple[RunId, Gate] | None:
    """Deliver answers to the run that waits for them; return the run, and a filter of its events.

    Return None if the input has only results of tools that are known. A repeated answer changes nothing.

    Raises:
        AnswerError: An answer does not fit.
    """
    results = {one.call_id: one for one in given.answers}
    resumed = {one.interrupt_id for one in given.resume}
    wanted = resumed | results.keys()
    for row in await last_runs_of(call, found):
        tree = await tree_of(call, found, row.run_id)
        if wanted & tree.asked:
            break
    else:
        raise _unknown(sorted(wanted))
    # A client may send the decision of an interrupt as the result of its tool call, too.
    for copy in tree.calls_of(resumed) - resumed:
        results.pop(copy, None)
    calls = tree.calls.keys()
    if unknown := sorted((results.keys() - calls) | (resumed - (tree.asked - calls))):
        raise _unknown(unknown)
    # The protocol requires the answers to all open interrupts in one input.
    refuse_open(await open_interrupts(call.runtime, tree.run_ids) - resumed)
    # All decisions are validated before the first answer is delivered.
    decisions = [(one, _is_approval(one)) for one in given.resume]
    own = {id_ for id_ in results if tree.calls[id_].is_asked}
    for id_ in results.keys() - own:
        if not tree.calls[id_].is_done:
            raise _refused(
                "not_a_client_tool", id_, "this tool is executed by the server", _WITHOUT
            )
    for entry, approve in decisions:
        await _decide(call, entry, approve, tree)
    for id_ in own:
        await call.runtime.approvals.give(row.run_id, id_, results[id_].result())
    answered = frozenset(resumed | own)
    known = Gate(answered, None, given.known_messages, given.known_results)
    return (row.run_id, known) if answered else None


def refuse_open(interrupts: set[str]) -> None:
    """Refuse an input if interrupts are open.

    Raises:
        AnswerError: There are open interrupts.
    """
    if interrupts:
        names = ", ".join(sorted(interrupts))
        remedy = "give an entry of `resume` for each; `cancelled` denies it"
        raise _refused("interrupts_open", names, f"the thread waits for answers to {names}", remedy)


def _is_approval(entry: ResumeEntry) -> bool:
    """Return the decision of an entry.

    Raises:
        AnswerError: The entry has no decision.
    """
    if entry.status == "cancelled":
        return False
    payload = entry.payload
    approved = payload.get("approved") if isinstance(payload, dict) else payload
    if not isinstance(approved, bool):
        problem = "the payload has no decision"
        remedy = 'give {"approved": true} or {"approved": false}, and perhaps a "comment"'
        raise _refused("invalid_answer", entry.interrupt_id, problem, remedy)
    return approved


async def _decide(call: WebCall, entry: ResumeEntry, approve: bool, tree: RunTree) -> None:
    id_, payload = entry.interrupt_id, entry.payload
    comment = payload.get("comment") if isinstance(payload, dict) else None
    if entry.status == "cancelled":
        comment = "cancelled"
    status = tree.decided.get(id_)
    if status is None:
        await audit_decision(call, RunId(tree.run_ids[0]), id_, approve=approve)
        try:
            await call.runtime.approvals.decide(
                id_, approve=approve, by=call.principal.name, comment=str(comment or "")
            )
        except UnknownApprovalError:  # another client has decided it meanwhile
            return
    elif status == "expired" and entry.status == "resolved":
        remedy = "cancel it to go on"
        raise _refused("interrupt_expired", id_, f"interrupt {id_} has expired", remedy)
    elif status != "expired" and (status == "approved") is not approve:
        raise _refused("interrupt_answered", id_, f"interrupt {id_} was {status}", _WITHOUT)


def _unknown(ids: list[str]) -> AnswerError:
    names = ", ".join(one[:100] for one in ids[:5])
    problem = f"the thread has not asked for {names}"
    return _refused("unknown_answer", names, problem, _WITHOUT)


def _refused(code: str, name: str, problem: str, remedy: str) -> AnswerError:
    return AnswerError(HttpProblem(409, code, problem, remedy, name=name))


def snapshot_of(turns: Sequence[Turn], *, open_run: str | None) -> MessagesSnapshotEvent:
    """Return turns as messages. Of an open run it has only the user's message: events carry the others."""
    shown = [
        one
        for one in turns[-MOST_MESSAGES:]
        if one.run_id != open_run or one.message.role == "user"
    ]
    return MessagesSnapshotEvent(
        messages=[message for turn in shown for message in _messages_of(turn)]
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
        for n, block in enumerate(one for one in message.content if one.type == "tool_result"):
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
    if all(one.type == "text" for one in message.content):
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


async def open_runs_of(call: WebCall, found: FoundSession) -> list[RunRow]:
    """Return the open runs of a session, in the order of their arrival."""
    if not found.row.open_runs:
        return []
    rows = await call.runtime.store.lists.runs(agent=found.agent, status=OPEN, limit=MAX_OPEN)
    return sorted(rows, key=lambda row: row.arrival)


async def last_runs_of(call: WebCall, found: FoundSession) -> list[RunRow]:
    """Return the open runs of a session in the order of their arrival, then the newest other runs."""
    opened = await open_runs_of(call, found)
    newest = await call.runtime.store.lists.runs(agent=found.agent, limit=MAX_OPEN)
    known = {row.run_id for row in opened}
    return [*opened, *[row for row in newest if row.run_id not in known][:MAX_ENDED]]


async def tree_of(call: WebCall, found: FoundSession, run_id: RunId) -> RunTree:
    """Return the tree of a run and its descendants, with all events up to now."""
    tree = RunTree(run_id)
    feed = await feed_of_run(call, found.agent, run_id, None, live=False)
    below = [event async for event in feed.past() if _adds_child(tree, event)]
    while below:
        said: Any = below.pop(0).payload
        child, agent = RunId(said["child"]), AgentId.parse(said["agent"])
        names = call.runtime.hidden_names
        translator = RunTranslator(found.agent.key, child, agent, names)
        async for entry in call.runtime.entries(child):
            below += [event for event in await translator.of(entry) if _adds_child(tree, event)]
    return tree


def _adds_child(tree: RunTree, event: SessionEvent) -> bool:
    """Add an event to the tree; return True if it is the start of a child run."""
    tree.of(event)
    return event.type == "child_started"


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
