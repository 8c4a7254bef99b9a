"""`callboard trace`, `runs tree` and `usage`: conversations and trees of runs with times, tokens and cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter
from rich.text import Text
from rich.tree import Tree

from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.rows import RunRow
from actors._kernel.stores.administration import UsageBy, UsageTotal
from actors.errors import ContractError
from compose._commands import options as opt
from compose._commands.options import HERE, Flag, MostRunsOpt, Target
from compose._commands.output import between, pick, print_json, seconds_text
from compose._commands.runs.list import known_run, open_run, status_text
from compose._commands.terminal import console, print_table, say, working
from compose._tools.conversation import CausalLink, Conversation, Node, find_root, read_conversation
from compose._tools.statuses import colour_of

if TYPE_CHECKING:
    from actors._runtime import Runtime


NAMES: Final[dict[UsageBy, str]] = {
    "tenant": "tenant",
    "agent": "agent_id",
    "model": "model",
    "day": "day",
}
"""Words of the option `--by`, each with the attribute of a total, in the order of the columns."""
TOKENS: Final = ("input", "cached", "cache_written", "output")


async def trace(
    run: str, /, *, from_here: Flag = False, limit: MostRunsOpt = 200, target: Target = HERE
) -> None:
    """Show a whole conversation as a tree: its runs, and the runs that they caused, with times.

    A run causes another run when it spawns or asks an agent, sends it a message or publishes to a topic. You
    may name any run of the conversation. The tree begins at the run that caused all others. Times count
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
        Show only this run and the runs that it caused.
    """
    async with open_run(target, run) as (runtime, row):
        with working("reading the conversation") as count:
            root = row if from_here else await find_root(runtime, row)
            conversation = await read_conversation(runtime, root, limit=limit, count=count)
    start = conversation.root.row.created_at
    if target.json:
        root_json = _to_json(conversation, start)
        print_json(
            {"runs": conversation.count, "left_out": conversation.left_out, "root": root_json}
        )
        return
    _print(conversation, start, run)


def _print(conversation: Conversation, start: datetime | None, named_run_id: str) -> None:
    out = console()
    tree_view = Tree(_run_line(conversation.root, start, named_run_id), guide_style="dim")
    todo = deque([(tree_view, conversation.root)])
    while todo:
        parent_branch, node = todo.popleft()
        for link in node.links:
            branch = parent_branch.add(_link_line(link, start))
            todo.extend(
                (branch.add(_run_line(child, start, named_run_id)), child) for child in link.nodes
            )
            for run_id in link.runs_elsewhere:
                branch.add(Text(f"run {run_id}, shown elsewhere", style="dim"))
            if link.unread:
                branch.add(Text("… runs that are not shown", style="dim"))
    out.print(tree_view)
    if conversation.left_out:
        say(
            f"not shown: {conversation.left_out} or more run(s) after the first {conversation.count}; give a "
            "larger --limit, or name one of them with --from-here"
        )


def _run_line(node: Node, start: datetime | None, named_run_id: str) -> Text:
    row, timing = node.row, node.timing
    line = Text(str(row.agent_id), style="bold")
    line.append(f"  {status_text(row)}", style=colour_of(row.status) or "cyan")
    line.append(f"  +{seconds_text(between(start, row.created_at))}")
    line.append(f"  {seconds_text(between(row.created_at, node.ended_at))}")
    parts = [
        f"{name} {seconds_text(seconds)}"
        for name, seconds in (
            ("queued", timing.queued),
            ("executing", timing.executing),
            ("waiting", timing.waiting),
            ("back-off", timing.backing_off),
        )
        if seconds >= 0.0005  # noqa: PLR2004 - less is shown as 0 ms
    ]
    parts += [f"attempt {timing.attempts}"] if timing.attempts > 1 else []
    parts += [f"taken over {timing.moves} times"] if timing.moves else []
    parts += ["swept"] if row.swept else []
    if parts:
        line.append(f" ({', '.join(parts)})", style="dim")
    line.append(f"  {row.run_id}", style="dim")
    if row.run_id == named_run_id:
        line.append(" ←", style="bold")
    return line


def _link_line(link: CausalLink, start: datetime | None) -> Text:
    line = Text(f"+{seconds_text(between(start, link.at))}  {link.verb} → {link.target}")
    if link.took_s is not None:
        line.append(f"  {link.outcome.lower()} after {seconds_text(link.took_s)}", style="dim")
    elif link.verb in ("ask", "approval", "tool", "wait"):
        line.append("  no answer", style="dim")
    return line


def _to_json(conversation: Conversation, start: datetime | None) -> dict[str, JsonValue]:
    roots: list[dict[str, JsonValue]] = []
    todo = [(roots, conversation.root)]
    for siblings, node in todo:
        caused: list[JsonValue] = []
        siblings.append({**_run_to_json(node, start), "caused": caused})
        for link in node.links:
            runs = list[Any]()
            caused.append(_link_to_json(link, start, runs))
            todo += [(runs, child) for child in link.nodes]
    return roots[0]


def _run_to_json(node: Node, start: datetime | None) -> dict[str, JsonValue]:
    row, timing = node.row, node.timing
    return {
        **pick(row, "run=run_id agent=agent_id status parked parent swept created_at"),
        **pick(node, "began_at ended_at"),
        "start_s": between(start, row.created_at),
        "duration_s": between(row.created_at, node.ended_at),
        "queued_s": round(timing.queued, 3),
        "executing_s": round(timing.executing, 3),
        "waiting_s": round(timing.waiting, 3),
        "back_off_s": round(timing.backing_off, 3),
        **pick(timing, "attempts taken_over=moves"),
    }


def _link_to_json(
    link: CausalLink, start: datetime | None, runs: list[JsonValue]
) -> dict[str, JsonValue]:
    return {
        **pick(link, "verb target position at"),
        "start_s": between(start, link.at),
        "took_s": None if link.took_s is None else round(link.took_s, 3),
        "outcome": link.outcome or None,
        "message": link.message_id or None,
        "runs": runs,
        "elsewhere": list(link.runs_elsewhere),
        "left_out": link.unread,
    }


@dataclass(slots=True)
class TreeNode:
    """A run and the runs that it spawned. `hidden` is the number of its children that were not read."""

    row: RunRow
    below: list[TreeNode] = field(default_factory=list)
    hidden: int = 0


async def tree(
    run: str, /, *, from_here: Flag = False, limit: MostRunsOpt = 500, target: Target = HERE
) -> None:
    """Show a run's whole tree, with the status and the duration of each run.

    You may name any run of the tree. The output begins at the tree's root.

    Examples:
    `callboard runs tree 0f3c…`;
    `callboard runs tree 0f3c… --from-here --json`

    Parameters
    ----------
    run
        A run of the tree.
    from_here
        Show only this run and the runs below it.
    """
    async with open_run(target, run) as (runtime, row):
        with working("reading the tree") as count:
            is_top = from_here or row.root is None
            root = row if is_top else await known_run(runtime, str(row.root))
            top, left_out = await read_tree(runtime, root, limit=limit, count=count)
    if target.json:
        print_json({**_tree_to_json(top), "left_out": left_out})
        return
    tree_view = Tree(_line(top.row, is_named=top.row.run_id == run), guide_style="dim")
    _grow(tree_view, top, run)
    console().print(tree_view, soft_wrap=True)
    if left_out:
        say(f"not shown: the children of {left_out} run(s); give a larger --limit than {limit}")


async def read_tree(
    runtime: Runtime, root: RunRow, *, limit: int, count: Callable[[int], None]
) -> tuple[TreeNode, int]:
    """Return the tree below a run, and the number of runs whose children were left out."""
    top = TreeNode(root)
    todo, seen_ids, left_out = deque([top]), {root.run_id}, 0
    while todo:
        branch = todo.popleft()
        if len(seen_ids) >= limit:
            left_out += 1 + len(todo)
            break
        for child in await runtime.store.lists.children(branch.row.run_id):
            if child.run_id in seen_ids:
                continue
            if len(seen_ids) >= limit:
                branch.hidden += 1
                continue
            seen_ids.add(child.run_id)
            child_node = TreeNode(child)
            branch.below.append(child_node)
            todo.append(child_node)
        left_out += branch.hidden > 0
        count(len(seen_ids))
    return top, left_out


def _grow(tree_view: Tree, branch: TreeNode, named_run_id: str) -> None:
    todo = [(tree_view, branch)]
    while todo:
        parent_branch, node = todo.pop()
        for child in node.below:
            is_named = child.row.run_id == named_run_id
            todo.append((parent_branch.add(_line(child.row, is_named=is_named)), child))
        if node.hidden:
            parent_branch.add(f"… and {node.hidden} more")


def _line(row: RunRow, *, is_named: bool) -> Text:
    duration = seconds_text(_took_s(row))
    mark = " ←" if is_named else ""
    retries = f", attempt {row.attempt}" if row.attempt > 1 else ""
    return Text(f"{row.agent_id}  {status_text(row)}  {duration}{retries}  {row.run_id}{mark}")


def _tree_to_json(top: TreeNode) -> dict[str, JsonValue]:
    roots: list[dict[str, JsonValue]] = []
    todo = [(roots, top)]
    for siblings, node in todo:
        row, children = node.row, list[Any]()
        siblings.append(
            {
                **pick(row, "run=run_id agent=agent_id status parked attempt depth"),
                **pick(row, "created_at updated_at"),
                "duration_s": _took_s(row),
                "children": children,
            }
        )
        todo += [(children, child) for child in node.below]
    return roots[0]


def _took_s(row: RunRow) -> float:
    return between(row.created_at, row.updated_at if row.status.is_terminal else None)


async def usage(
    *,
    by: Annotated[list[UsageBy] | None, Parameter(negative="")] = None,
    tenant: opt.TenantOpt = None,
    type_: opt.TypeOpt = None,
    agent: str | None = None,
    model: str | None = None,
    since: str | None = None,
    until: str | None = None,
    target: Target = HERE,
) -> None:
    """Show the tokens and the cost in dollars of models' answers, and the number of unpriced answers.

    Each recorded answer counts once, even if hosts crash. Answers of swept runs and of forgotten agents
    count too. An unpriced answer has no known cost. Days are in UTC. Input includes the tokens that were read
    from a provider's cache and written to it.

    Examples:
    `callboard usage`;
    `callboard usage --by day --since 30d`;
    `callboard usage --tenant acme --by agent --by model --since 2026-01-01 --until 2026-01-31 --json`

    Parameters
    ----------
    by
        Print a line for each value of this property. Give it several times for a line for each combination.
        Default: model.
    type_
        Only answers to agents of this type.
    agent
        Only answers to this agent, TYPE/KEY or TENANT:TYPE/KEY.
    model
        Only answers of this model. Give the name that the agent's client has.
    since
        Only answers of this day or later: a day such as 2026-01-31, or a span that is subtracted from now, such
        as 30d.
    until
        Only answers of this day or earlier, given like --since.
    """
    first, last = opt.day("--since", since), opt.day("--until", until)
    if first is not None and last is not None and first > last:
        raise ContractError(f"--since {first} is later than --until {last}: exchange them")
    agent_id = None if agent is None else AgentId.parse(agent)
    properties = [name for name in NAMES if name in (by or ["model"])]
    async with target.client() as runtime:
        totals = await runtime.usage(
            tenant=tenant,
            type_=type_,
            agent=agent_id,
            model=model,
            since=first,
            until=last,
            by=properties,
        )
    if target.json:
        print_json([_usage_json(total) for total in totals])
    else:
        _show(totals, properties)


def _usage_json(total: UsageTotal) -> dict[str, Any]:
    """Return a total as JSON data. The cost is a text, because readers round a JSON number."""
    day = None if total.day is None else total.day.isoformat()
    figures = pick(total, f"calls {' '.join(TOKENS)}")
    return {
        **pick(total, "tenant agent=agent_id model"),
        "day": day,
        **figures,
        "cost_usd": f"{total.cost_usd:f}",
        "unpriced": total.unpriced,
    }


def _show(totals: Sequence[UsageTotal], properties: Sequence[UsageBy]) -> None:
    rows = [
        (*(getattr(total, NAMES[name]) for name in properties), *_figures([total]))
        for total in totals
    ]
    if totals:
        rows.append(("in all", *[""] * (len(properties) - 1), *_figures(totals)))
    columns = (*properties, "answers", "input", "cached", "to cache", "output", "USD", "unpriced")
    print_table(columns, rows, empty_text="no answer of a model is counted here")
    unpriced = sum(total.unpriced for total in totals)
    if unpriced:
        say(f"the cost of {unpriced} answer(s) is not known, and is not in the sum")


def _figures(totals: Sequence[UsageTotal]) -> tuple[object, ...]:
    """Return the cells of a sum. The cell of the cost is empty if no answer has a known cost."""
    calls = sum(total.calls for total in totals)
    unpriced = sum(total.unpriced for total in totals)
    cost = sum((total.cost_usd for total in totals), Decimal(0))
    tokens = (sum(getattr(total, name) for total in totals) for name in TOKENS)
    return calls, *tokens, f"{cost:f}" if unpriced < calls else "", unpriced or ""
