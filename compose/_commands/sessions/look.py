"""`callboard sessions list|show|nodes`: sessions, and a conversation as turns or as the tree of its nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter
from rich.text import Text

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import CUT_OFF
from actors._kernel.agent.transcript import NO_CUT, Turn
from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import DEFAULT_TENANT
from actors._kernel.stores.errors import UnknownNodeError
from actors._sessions.artifacts import project_folder
from actors._sessions.runtime import APP, AgentRuntime
from compose._commands import options as opt
from compose._commands.inspect.history import print_turn
from compose._commands.options import HERE, Target
from compose._commands.output import NoDataError, ago, pick, print_json, short
from compose._commands.terminal import console, say
from compose._host.logs import visible
from compose._tools.history import turn_to_json

SHOWN: Final = 50
"""Number of turns that `show` prints by default."""
SessionArg = Annotated[str, Parameter(help="The session's id.")]
AppOpt = Annotated[str, Parameter(help="Type of the sessions' agents.")]
OwnerOpt = Annotated[str, Parameter(name="--tenant", help="The owner of the session.")]


@asynccontextmanager
async def sessions_of(target: Target, app: str, tenant: str) -> AsyncIterator[AgentRuntime]:
    """Yield the sessions of an app, for a client that executes no runs."""
    async with (
        target.client() as runtime,
        AgentRuntime(runtime=runtime, app=app, tenant=tenant) as agents,
    ):
        yield agents


async def list_all(
    *,
    app: AppOpt = APP,
    tenant: OwnerOpt = DEFAULT_TENANT,
    project: Path | None = None,
    before: str | None = None,
    limit: opt.LimitOpt = 50,
    target: Target = HERE,
) -> None:
    """List sessions. The session that changed last is first.

    Examples:
    `callboard sessions list --data ./data`;
    `callboard sessions list --app helpdesk --project . --limit 5 --json`;
    `callboard sessions list --before 2026-01-31T08:00`

    Parameters
    ----------
    project
        Only sessions of this folder. The command looks for them among the --limit sessions that it reads.
    before
        Only sessions whose last change was before this instant, or longer ago than this span. Gives the next
        page.
    """
    before_at = opt.instant("--before", before)
    label = None if project is None else str(project_folder(project))
    async with sessions_of(target, app, tenant) as agents:
        rows = await agents.sessions(limit=limit, before=before_at)
    columns_text = (
        "agent=agent_id title owner project open_runs active_node=head last_fact created_at last_at"
    )
    target.table(
        [row for row in rows if label in (None, row.project)],
        lambda row: {"session": row.agent_id.key, **pick(row, columns_text)},
        ("session", "title", "owner", "project", "open runs", "active node", "changed", "begun"),
        lambda row: (
            row.agent_id.key,
            row.title,
            row.owner or "",
            row.project,
            row.open_runs or "",
            (row.head or "")[:8],
            ago(row.last_at),
            ago(row.created_at),
        ),
        empty_text=f"there is no session of {app}: begin one with callboard chat",
    )
    if len(rows) == limit and not target.json:
        say(f"there may be more: --before {rows[-1].last_at.isoformat()}, or a larger --limit")


async def show(
    session: SessionArg,
    /,
    *,
    app: AppOpt = APP,
    tenant: OwnerOpt = DEFAULT_TENANT,
    last: opt.Limit = SHOWN,
    full: opt.Flag = False,
    target: Target = HERE,
) -> None:
    """Print the conversation on the active path, which the next run continues, by default its newest 50 turns.

    The output has message content: protect it like the database. With `--json` it is a list of all turns of the
    path.

    Examples:
    `callboard sessions show s1 --data ./data`;
    `callboard sessions show s1 --app helpdesk --last 4 --full`;
    `callboard sessions show s1 --json`

    Parameters
    ----------
    last
        Print only this number of turns at the end.
    full
        Print calls of tools and their results in full.
    """
    async with sessions_of(target, app, tenant) as agents:
        row = await agents.session(session)
        path = await agents.path(session)
    if target.json:
        print_json([turn_to_json(turn) for turn in path])
        return
    for turn in path[-last:]:
        print_turn(turn, is_full=full)
    hidden_count = max(0, len(path) - last)
    facts = [f"{hidden_count} turn(s) before are not shown: see --last"] if hidden_count else []
    facts += [f"{row.open_runs} run(s) are open"] if row.open_runs else []
    if facts or not path:
        say("; ".join(facts) or "nothing was said yet")


async def nodes(
    session: SessionArg,
    /,
    *,
    app: AppOpt = APP,
    tenant: OwnerOpt = DEFAULT_TENANT,
    target: Target = HERE,
) -> None:
    """Print the nodes of a session as a tree. * marks the active node. Nodes outside its path are dim.

    Examples:
    `callboard sessions nodes s1 --data ./data`;
    `callboard sessions nodes s1 --app helpdesk --json`
    """
    async with sessions_of(target, app, tenant) as agents:
        row = await agents.session(session)
        lines = [*tree_of(await all_nodes(agents, session), row.head)]
    if target.json:
        print_json([node_to_json(line) for line in lines])
        return
    out = console()
    for line in lines:
        style = "bold" if line.is_active else "" if line.is_on_path else "dim"
        out.print(Text(visible(node_text(line))), style=style, soft_wrap=True)
    if not lines:
        say("nothing was said yet")


def node_to_json(line: NodeLine) -> dict[str, JsonValue]:
    """Return a node as JSON data."""
    return {**turn_to_json(line.turn), "active": line.is_active, "on_path": line.is_on_path}


PAGE: Final = 500
"""Number of nodes per read."""
ENDS_EARLY: Final = "(a limit of tokens cut the answer off)"
"""Line below an answer that has no end."""


async def all_nodes(agents: AgentRuntime, session_id: str) -> list[Turn]:
    """Return the nodes of all branches, oldest first, each with its parent's id."""
    agent, after = agents.agent_id(session_id), NO_CUT
    nodes: list[Turn] = []
    store = agents.runtime.store
    while page := await store.data.transcripts.page(
        agent, agent.key, limit=PAGE, after=after, branches=True
    ):
        nodes += await store.data.sessions.nodes(agent, [turn.id for turn in page])
        after = page[-1].ordinal
    return nodes


async def find_node(agents: AgentRuntime, session_id: str, text: str) -> Turn:
    """Return the node whose id is `text`, else the only node whose id begins with it.

    Raises:
        UnknownNodeError: No node has such an id.
        NoDataError: Several ids begin with `text`.
    """
    agent = agents.agent_id(session_id)
    if exact_nodes := await agents.runtime.store.data.sessions.nodes(agent, [text]):
        return exact_nodes[0]
    nodes = [turn for turn in await all_nodes(agents, session_id) if turn.id.startswith(text)]
    if len(nodes) > 1:
        raise NoDataError(f"{len(nodes)} nodes begin with {text!r}: give more of the id")
    if not nodes or not text:
        raise UnknownNodeError(str(agent), text)
    return nodes[0]


def node_text(line: NodeLine) -> str:
    """Return a line for a node: its branch marks, its short id, its role and the start of its text."""
    turn, mark = line.turn, "*" if line.is_active else " "
    text = turn.message.text or ", ".join(lines_of_blocks(turn.message))
    return f"{mark} {line.marks}{turn.id[:SHOWN_ID]} {turn.message.role}: {short(text)}"


def lines_of_blocks(message: ChatMessage) -> Iterator[str]:
    """Yield a line for each call of a tool, each result, and the mark of an answer that was cut off."""
    for block in message.content:
        data: dict[str, Any] = block.model_extra or {}
        if block.type == "tool_call":
            yield f"→ {data.get('name')} {short(data.get('arguments'))}".rstrip()
        elif block.type == "tool_result":
            yield f"← {data.get('name')}: {short(block.text)}"
        elif block.type == CUT_OFF:
            yield ENDS_EARLY


SHOWN_ID: Final = 8
"""Number of characters of a node's id in output for people."""


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node at its position in the tree.

    Attributes:
        turn: The node.
        marks: Text before the node, which draws the lines of its branch and of the branches beside it.
        is_active: True if the next run continues from the node.
        is_on_path: True if the node is on the path from the first node to the active node.
    """

    turn: Turn
    marks: str
    is_active: bool
    is_on_path: bool


def tree_of(turns: Sequence[Turn], head: str | None) -> Iterator[NodeLine]:
    """Yield the nodes, each after its parent, and branches in the order of their first nodes.

    Args:
        turns: All nodes of a session, oldest first.
        head: Id of the active node.
    """
    turns_by_id = {turn.id: turn for turn in turns}
    children_by_parent: defaultdict[str | None, list[Turn]] = defaultdict(list)
    for turn in turns:
        children_by_parent[turn.parent if turn.parent in turns_by_id else None].append(turn)
    path_ids, node_id = set[str](), head
    while node_id is not None and node_id in turns_by_id:
        path_ids.add(node_id)
        node_id = turns_by_id[node_id].parent
    stack = [*reversed(list(_mark_children(children_by_parent[None], "")))]
    while stack:
        turn, marks, prefix = stack.pop()
        yield NodeLine(turn, marks, turn.id == head, turn.id in path_ids)
        stack += reversed(list(_mark_children(children_by_parent[turn.id], prefix)))


def _mark_children(children: Sequence[Turn], prefix: str) -> Iterator[tuple[Turn, str, str]]:
    """Yield each child with the marks before it, and the marks before its descendants."""
    if len(children) == 1:
        yield children[0], prefix, prefix
        return
    for number, child in enumerate(children, 1):
        is_last = number == len(children)
        yield child, prefix + ("└─ " if is_last else "├─ "), prefix + ("   " if is_last else "│  ")
