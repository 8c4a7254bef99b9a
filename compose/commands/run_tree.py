"""`callboard runs tree`: a run with everything it spawned."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.text import Text
from rich.tree import Tree

from compose.commands.duration import between, seconds_text
from compose.commands.numbers import Limit
from compose.commands.output import console, iso, print_json, say, working
from compose.commands.runs import known_run, status_text
from compose.commands.target import HERE, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import RunRow
    from actors.kernel.runtime.ids import RunId
    from actors.runtime import Runtime


@dataclass(slots=True)
class Branch:
    """A run and those it spawned; `hidden` counts children that were not read."""

    row: RunRow
    below: list[Branch] = field(default_factory=list)
    hidden: int = 0


async def tree(
    run: str,
    /,
    *,
    from_here: Annotated[bool, Parameter(negative="")] = False,
    limit: Limit = 500,
    target: Target = HERE,
) -> None:
    """Show a run's whole tree: who spawned whom, how each run is, and how long it took.

    Any run of the tree may be named; the tree begins at its root.

    Examples:
    `callboard runs tree 0f3c…`;
    `callboard runs tree 0f3c… --from-here --json`

    Parameters
    ----------
    run
        A run of the tree.
    from_here
        Only this run and what is below it.
    limit
        At most so many runs; a sentence says when there are more.
    """
    async with target.client() as runtime:
        row = await known_run(runtime, run)
        with working("reading the tree") as count:
            is_top = from_here or row.root is None
            root = row if is_top else await known_run(runtime, str(row.root))
            top, left = await read_tree(runtime, root, limit=limit, count=count)
    if target.json:
        print_json({**_to_json(top), "left_out": left})
        return
    shown = Tree(_line(top.row, is_named=top.row.run_id == run), guide_style="dim")
    _grow(shown, top, run)
    console().print(shown, soft_wrap=True)
    if left:
        say(f"not shown: the children of {left} run(s); give a larger --limit than {limit}")


async def read_tree(
    runtime: Runtime, root: RunRow, *, limit: int, count: Callable[[int], None]
) -> tuple[Branch, int]:
    """Return the tree below a run, and of how many runs the children were left out."""
    top = Branch(root)
    todo, seen, left = deque([top]), {root.run_id}, 0
    while todo:
        branch = todo.popleft()
        if len(seen) >= limit:
            left += 1 + len(todo)
            break
        for child in await runtime.store.children(branch.row.run_id):
            if child.run_id in seen:
                continue
            if len(seen) >= limit:
                branch.hidden += 1
                continue
            seen.add(child.run_id)
            below = Branch(child)
            branch.below.append(below)
            todo.append(below)
        left += branch.hidden > 0
        count(len(seen))
    return top, left


def _grow(shown: Tree, branch: Branch, named: str) -> None:
    todo = [(shown, branch)]
    while todo:
        above, here = todo.pop()
        todo.extend(
            (above.add(_line(below.row, is_named=below.row.run_id == named)), below)
            for below in here.below
        )
        if here.hidden:
            above.add(f"… and {here.hidden} more")


def _line(row: RunRow, *, is_named: bool) -> Text:
    ended = row.updated_at if row.status.is_terminal else None
    took = seconds_text(between(row.created_at, ended))
    mark = " ←" if is_named else ""
    retries = f", attempt {row.attempt}" if row.attempt > 1 else ""
    return Text(f"{row.agent_id}  {status_text(row)}  {took}{retries}  {row.run_id}{mark}")


def _to_json(branch: Branch) -> dict[str, JsonValue]:
    made: dict[RunId, dict[str, JsonValue]] = {}
    order = [branch]
    for one in order:
        order += one.below
    for one in reversed(order):
        row = one.row
        below: list[JsonValue] = [made[child.row.run_id] for child in one.below]
        made[row.run_id] = {
            "run": row.run_id, "agent": str(row.agent_id), "status": row.status.value,
            "parked": row.parked, "attempt": row.attempt, "depth": row.depth,
            "created_at": iso(row.created_at), "updated_at": iso(row.updated_at),
            "duration_s": between(
                row.created_at, row.updated_at if row.status.is_terminal else None
            ),
            "children": below,
        }  # fmt: skip
    return made[branch.row.run_id]
