"""Nodes of sessions: the turns of the conversation, its branches, and the active node."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from starlette.responses import Response

from actors.kernel.agent.transcript import NO_CUT, Turn
from actors.kernel.stores.errors import UnknownNodeError
from compose.web.changes import thing_of_session
from compose.web.endpoint import Done, ShownModel, StrictModel, WebCall, WebEndpoint
from compose.web.resources.pages import OfApp, PagedOfApp


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


def node_of(turn: Turn) -> NodeJson:
    """Return a turn in the form in which clients receive it."""
    message = turn.message
    return NodeJson(
        node_id=turn.id,
        parent=turn.parent,
        run_id=turn.run_id or None,
        role=message.role,
        text=message.text,
        content=[one.model_dump(mode="json", exclude_none=True) for one in message.content],
        at=turn.at,
    )


async def list_nodes(call: WebCall, query: NodesQuery, _: None) -> Done:
    """Return a page of a session's nodes."""
    found = await call.session(query.app)
    store, agent = call.runtime.store, found.agent
    after = None
    if query.after is not None:
        after = next(iter(await store.sessions.nodes(agent, [query.after])), None)
        if after is None:
            raise UnknownNodeError(str(agent), query.after[:100])
    behind = NO_CUT if after is None else after.ordinal
    turns = await store.sessions.path(
        agent, after=behind, limit=query.limit + 1, branches=query.path == "all"
    )
    nodes = [node_of(turn) for turn in turns[: query.limit]]
    more = nodes[-1].node_id if len(turns) > query.limit else None
    return NodesJson(active_node=found.row.head, nodes=nodes, next=more)


async def switch(call: WebCall, query: OfApp, body: ActiveNodeJson) -> Done:
    """Make a node the active one. Refused while a run is open."""
    found = await call.session(query.app)
    before, after = {"active_node": found.row.head}, {"active_node": body.node_id}
    call.audit(thing_of_session(found.agent), agent=found.agent, before=before, after=after)
    await found.agents.switch_context(found.agent.key, body.node_id)
    return Response(status_code=204)


_SESSION: Final = "/v1/sessions/{session}"
ENDPOINTS: Final = (
    WebEndpoint(
        method="GET",
        path=f"{_SESSION}/nodes",
        call=list_nodes,
        says="List nodes, oldest first.",
        query=NodesQuery,
        answer=NodesJson,
    ),
    WebEndpoint(
        method="PUT",
        path=f"{_SESSION}/active-node",
        call=switch,
        says="Make a node the active one, from which the next run continues.",
        query=OfApp,
        body=ActiveNodeJson,
        status=204,
    ),
)
