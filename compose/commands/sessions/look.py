"""`callboard sessions list|show|nodes`: list sessions, show a conversation or its nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from rich.text import Text

from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import DEFAULT_TENANT
from actors.kernel.stores.conversations import SessionRow
from actors.sessions.artifacts import project_folder
from actors.sessions.runtime import APP, AgentRuntime
from compose.commands import options as opt
from compose.commands.inspect.history import print_turn
from compose.commands.options import HERE, Target
from compose.commands.output import ago, picked, print_json
from compose.commands.sessions.nodes import all_nodes, node_text
from compose.commands.sessions.tree import NodeLine, tree_of
from compose.commands.terminal import console, say
from compose.host.visible import visible
from compose.tools.history import turn_to_json

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
    at = opt.instant("--before", before)
    label = None if project is None else str(project_folder(project))
    async with sessions_of(target, app, tenant) as agents:
        found = await agents.sessions(limit=limit, before=at)
    target.table(
        [one for one in found if label in (None, one.project)],
        _session_to_json,
        ("session", "title", "owner", "project", "open runs", "active node", "changed", "begun"),
        _session_row,
        empty=f"there is no session of {app}: begin one with callboard chat",
    )
    if len(found) == limit and not target.json:
        say(f"there may be more: --before {found[-1].last_at.isoformat()}, or a larger --limit")


def _session_to_json(one: SessionRow) -> dict[str, JsonValue]:
    names = (
        "agent=agent_id title owner project open_runs active_node=head last_fact created_at last_at"
    )
    return {"session": one.agent_id.key, **picked(one, names)}


def _session_row(one: SessionRow) -> tuple[object, ...]:
    times = ago(one.last_at), ago(one.created_at)
    named = one.agent_id.key, one.title, one.owner or "", one.project
    return *named, one.open_runs or "", (one.head or "")[:8], *times


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
    hidden = max(0, len(path) - last)
    facts = [f"{hidden} turn(s) before are not shown: see --last"] if hidden else []
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
