"""`callboard sessions switch|delete|export`: change the active node, delete a session, write it to a file."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from actors._kernel.runtime.ids import DEFAULT_TENANT
from actors._sessions.events import EVENTS
from actors._sessions.runtime import APP, AgentRuntime
from actors.errors import ContractError
from compose._commands import options as opt
from compose._commands.files import progress, writing
from compose._commands.options import HERE, Target
from compose._commands.output import Exit
from compose._commands.sessions.look import (
    AppOpt,
    OwnerOpt,
    SessionArg,
    all_nodes,
    find_node,
    node_to_json,
    sessions_of,
    tree_of,
)
from compose._commands.terminal import console
from compose._host.logs import visible


async def switch(
    session: SessionArg,
    node: Annotated[str, Parameter(help="The node's id, or a prefix of it.")],
    /,
    *,
    app: AppOpt = APP,
    tenant: OwnerOpt = DEFAULT_TENANT,
    target: Target = HERE,
) -> int:
    """Make a node the active node, from which the next run continues. The other branches stay.

    The command is refused while a run of the session is open.

    Examples:
    `callboard sessions switch s1 3f2a91c4 --data ./data`;
    `callboard sessions switch s1 3f2a --app helpdesk --json`
    """
    async with sessions_of(target, app, tenant) as agents:
        await agents.session(session)
        active_node = await find_node(agents, session, node)
        await agents.switch_context(session, active_node.id)
    data = {"session": session, "active_node": active_node.id}
    return target.tell(data, f"the next run of {session} continues from {active_node.id}")


async def delete(
    session: SessionArg,
    /,
    *,
    app: AppOpt = APP,
    tenant: OwnerOpt = DEFAULT_TENANT,
    yes: Annotated[opt.Flag, Parameter(help="Do not ask.")] = False,
    target: Target = HERE,
) -> int:
    """Remove a session for good: nodes, events, runs, state and artifacts.

    The command is refused while a run of the session is open. If it dies before its end, call it again. The
    session accepts no runs until the removal is complete.

    Examples:
    `callboard sessions delete s1 --data ./data`;
    `callboard sessions delete s1 --app helpdesk --yes --json`
    """
    if not yes:
        _ask(session)
    async with sessions_of(target, app, tenant) as agents:
        removed_rows = await agents.delete_session(session)
    rows = sum(sum(kinds.values()) for kinds in removed_rows.values())
    return target.tell(
        {"session": session, "rows": rows, "counts": removed_rows},
        f"deleted {session}: {rows} row(s)",
    )


def _ask(session: str) -> None:
    """Ask a person at the terminal to confirm.

    Raises:
        ContractError: There is no terminal to ask at, or the user does not agree.
    """
    remedy = f"give --yes to delete session {session} for good"
    if not sys.stdin.isatty():
        raise ContractError(f"there is no terminal to ask at: {remedy}")
    sys.stderr.write(visible(f"Delete session {session} for good? [y/N] "))
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ContractError(f"nothing was deleted: {remedy}")


async def export(
    session: SessionArg,
    /,
    *,
    app: AppOpt = APP,
    tenant: OwnerOpt = DEFAULT_TENANT,
    nodes: opt.Flag = False,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    target: Target = HERE,
) -> int:
    """Write the stored events of a session as JSON lines, oldest first, or with `--nodes` its nodes.

    Each line of an event is valid by `docs/session-events.schema.json`. The file has message content: protect
    it like the database. With `--json` a summary is printed as JSON on standard error.

    Examples:
    `callboard sessions export s1 --data ./data > s1.jsonl`;
    `callboard sessions export s1 --app helpdesk --nodes --output s1-nodes.jsonl`

    Parameters
    ----------
    nodes
        Write one line for each node, with its parent. `active` marks the active node, `on_path` the nodes of
        its path.
    output
        The file, which is written completely or not at all. Default: standard output.
    """
    line_count, unit = 0, "nodes" if nodes else "events"
    async with sessions_of(target, app, tenant) as agents:
        await agents.session(session)
        lines = _nodes(agents, session) if nodes else _events(agents, session)
        with writing(output) as file, progress(output, unit) as report_progress:
            async with aclosing(lines) as source:
                async for line in source:
                    file.write(line + "\n")
                    line_count += 1
                    report_progress(line_count)
    if target.json:
        sys.stderr.write(json.dumps({"session": session, unit: line_count}) + "\n")
    else:
        console(stderr=True).print(f"{line_count} {unit}; message content is included")
    return Exit.OK


async def _events(agents: AgentRuntime, session: str) -> AsyncGenerator[str, None]:
    async with aclosing(agents.replay_session(session)) as events:
        async for event in events:
            yield EVENTS.dump_json(event, exclude_none=True).decode()


async def _nodes(agents: AgentRuntime, session: str) -> AsyncGenerator[str, None]:
    row = await agents.session(session)
    for line in tree_of(await all_nodes(agents, session), row.head):
        yield json.dumps(node_to_json(line), ensure_ascii=False)
