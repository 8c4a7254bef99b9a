"""The earlier events of a session's runs, read from their logs: questions, and pending answers."""

from __future__ import annotations

from typing import Any, Final

from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.rows import RunRow
from actors.sessions.events import SessionEvent
from actors.sessions.translation import RunTranslator
from compose.web.agui.tree import RunTree
from compose.web.endpoint import FoundSession, WebCall
from compose.web.resources.readers import feed_of_run
from compose.web.resources.runs import OPEN

MAX_OPEN: Final = 100
"""Maximum number of open runs of a session that are read."""
MAX_ENDED: Final = 10
"""Maximum number of ended runs, newest first, that are searched for an answer that was delivered before."""


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
    below = [event async for event in feed.past() if _told(tree, event)]
    while below:
        said: Any = below.pop(0).payload
        child, agent = RunId(said["child"]), AgentId.parse(said["agent"])
        names = call.runtime.hidden_names
        translator = RunTranslator(found.agent.key, child, agent, names)
        async for entry in call.runtime.entries(child):
            below += [event for event in await translator.of(entry) if _told(tree, event)]
    return tree


def _told(tree: RunTree, event: SessionEvent) -> bool:
    """Add an event to the tree; return True if it is the start of a child run."""
    tree.of(event)
    return event.type == "child_started"
