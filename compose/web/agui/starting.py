"""Start of a run for a user's message, in an existing session or a new one."""

from __future__ import annotations

import re
from typing import Final

from actors.kernel.agent.transcript import Turn
from actors.kernel.runtime.ids import RunId
from actors.kernel.stores.errors import UnknownSessionError
from actors.kernel.stores.runs import OnConflict
from actors.sessions.artifacts import UserMessage
from compose.web.agui.answers import refuse_open
from compose.web.agui.intake import AguiInput
from compose.web.agui.past import open_runs_of, tree_of
from compose.web.agui.stream import open_interrupts
from compose.web.endpoint import FoundSession, WebCall
from compose.web.resources.runs import check_mode
from compose.web.resources.sessions import make_session

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
