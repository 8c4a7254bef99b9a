"""`callboard trace`: a conversation as a tree with times, from the logs alone."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.text import Text
from rich.tree import Tree

from compose.commands.duration import between, seconds_text
from compose.commands.numbers import Limit
from compose.commands.output import console, iso, print_json, say, working
from compose.commands.runs import known_run, status_text
from compose.commands.target import HERE, Target
from compose.conversation import find_root, read_conversation

if TYPE_CHECKING:
    from datetime import datetime

    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.ids import RunId
    from compose.conversation import Conversation, Link, Node

STYLES = {"COMPLETED": "green", "FAILED": "red", "CANCELLED": "yellow"}


async def trace(
    run: str,
    /,
    *,
    from_here: Annotated[bool, Parameter(negative="")] = False,
    limit: Limit = 200,
    target: Target = HERE,
) -> None:
    """Show a whole conversation: runs, what they spawned, asked, sent and published, and when.

    Any run of the conversation may be named; it begins at the run that caused all others. Times count
    from its creation. Needs no tracing backend: it is read from the logs of the runs.

    Examples:
    `callboard trace 0f3c…`;
    `callboard trace 0f3c… --from-here`;
    `callboard trace 0f3c… --json`

    Parameters
    ----------
    run
        A run of the conversation.
    from_here
        Only this run and what it caused.
    limit
        At most so many runs; a sentence says when there are more.
    """
    async with target.client() as runtime:
        row = await known_run(runtime, run)
        with working("reading the conversation") as count:
            root = row if from_here else await find_root(runtime, row)
            found = await read_conversation(runtime, root, limit=limit, count=count)
    start = found.root.row.created_at
    if target.json:
        whole = _to_json(found, start)
        print_json({"runs": found.count, "left_out": found.left_out, "root": whole})
        return
    _print(found, start, run)


# --- for people -----------------------------------------------------------------------------------


def _print(found: Conversation, start: datetime | None, named: str) -> None:
    out = console()
    shown = Tree(_run_line(found.root, start, named), guide_style="dim")
    todo = deque([(shown, found.root)])
    while todo:
        above, node = todo.popleft()
        for link in node.links:
            branch = above.add(_link_line(link, start))
            todo.extend((branch.add(_run_line(below, start, named)), below) for below in link.nodes)
            for known in link.known:
                branch.add(Text(f"run {known}, shown elsewhere", style="dim"))
            if link.unread:
                branch.add(Text("… runs that are not shown", style="dim"))
    out.print(shown)
    if found.left_out:
        say(
            f"not shown: {found.left_out} or more run(s) behind the first {found.count}; give a "
            "larger --limit, or name one of them with --from-here"
        )


def _run_line(node: Node, start: datetime | None, named: str) -> Text:
    row, timing = node.row, node.timing
    line = Text(str(row.agent_id), style="bold")
    line.append(f"  {status_text(row)}", style=STYLES.get(row.status.value, "cyan"))
    line.append(f"  +{seconds_text(between(start, row.created_at))}")
    line.append(f"  {seconds_text(between(row.created_at, node.ended_at))}")
    parts = [
        f"{name} {seconds_text(spent)}"
        for name, spent in (
            ("queued", timing.queued), ("executing", timing.executing),
            ("waiting", timing.waiting), ("back-off", timing.backing_off),
        )
        if spent >= 0.0005  # noqa: PLR2004 - less is shown as 0 ms
    ]  # fmt: skip
    parts += [f"attempt {timing.attempts}"] if timing.attempts > 1 else []
    parts += [f"taken over {timing.moves} times"] if timing.moves else []
    parts += ["swept"] if row.swept else []
    if parts:
        line.append(f" ({', '.join(parts)})", style="dim")
    line.append(f"  {row.run_id}", style="dim")
    if row.run_id == named:
        line.append(" ←", style="bold")
    return line


def _link_line(link: Link, start: datetime | None) -> Text:
    line = Text(f"+{seconds_text(between(start, link.at))}  {link.verb} → {link.target}")
    if link.took_s is not None:
        line.append(f"  {link.outcome.lower()} after {seconds_text(link.took_s)}", style="dim")
    elif link.verb in ("ask", "approval"):
        line.append("  no answer", style="dim")
    return line


# --- for programs ---------------------------------------------------------------------------------


def _to_json(found: Conversation, start: datetime | None) -> dict[str, JsonValue]:
    order = [found.root]
    made: dict[RunId, dict[str, JsonValue]] = {}
    for node in order:
        order += [below for link in node.links for below in link.nodes]
    for node in reversed(order):
        links: list[JsonValue] = [_link_to_json(link, start, made) for link in node.links]
        made[node.row.run_id] = {**_run_to_json(node, start), "caused": links}
    return made[found.root.row.run_id]


def _run_to_json(node: Node, start: datetime | None) -> dict[str, JsonValue]:
    row, timing = node.row, node.timing
    return {
        "run": row.run_id, "agent": str(row.agent_id), "status": row.status.value,
        "parked": row.parked, "parent": row.parent, "swept": row.swept,
        "created_at": iso(row.created_at), "began_at": iso(node.began_at),
        "ended_at": iso(node.ended_at), "start_s": between(start, row.created_at),
        "duration_s": between(row.created_at, node.ended_at),
        "queued_s": round(timing.queued, 3), "executing_s": round(timing.executing, 3),
        "waiting_s": round(timing.waiting, 3), "back_off_s": round(timing.backing_off, 3),
        "attempts": timing.attempts, "taken_over": timing.moves,
    }  # fmt: skip


def _link_to_json(
    link: Link, start: datetime | None, made: dict[RunId, dict[str, JsonValue]]
) -> dict[str, JsonValue]:
    return {
        "verb": link.verb, "target": link.target, "position": link.position,
        "at": iso(link.at), "start_s": between(start, link.at),
        "took_s": None if link.took_s is None else round(link.took_s, 3),
        "outcome": link.outcome or None, "message": link.message_id or None,
        "runs": [made[node.row.run_id] for node in link.nodes],
        "elsewhere": list(link.known), "left_out": link.unread,
    }  # fmt: skip
