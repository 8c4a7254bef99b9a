"""`callboard usage`: show the tokens and the cost of models' answers."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any, Final

from cyclopts import Parameter

from actors.errors import ContractError
from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.administration import UsageBy, UsageTotal
from compose.commands import options as opt
from compose.commands.options import HERE, Target
from compose.commands.output import picked, print_json
from compose.commands.terminal import print_table, say

NAMES: Final[dict[UsageBy, str]] = {
    "tenant": "tenant",
    "agent": "agent_id",
    "model": "model",
    "day": "day",
}
"""Words of the option `--by`, each with the attribute of a total, in the order of the columns."""
TOKENS: Final = ("input", "cached", "cache_written", "output")


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
    chosen = [name for name in NAMES if name in (by or ["model"])]
    async with target.client() as runtime:
        found = await runtime.usage(
            tenant=tenant,
            type_=type_,
            agent=agent_id,
            model=model,
            since=first,
            until=last,
            by=chosen,
        )
    if target.json:
        print_json([_to_json(one) for one in found])
    else:
        _show(found, chosen)


def _to_json(one: UsageTotal) -> dict[str, Any]:
    """Return a total as JSON data. The cost is a text, because readers round a JSON number."""
    day = None if one.day is None else one.day.isoformat()
    figures = picked(one, f"calls {' '.join(TOKENS)}")
    return {
        **picked(one, "tenant agent=agent_id model"),
        "day": day,
        **figures,
        "cost_usd": f"{one.cost_usd:f}",
        "unpriced": one.unpriced,
    }


def _show(found: Sequence[UsageTotal], chosen: Sequence[UsageBy]) -> None:
    rows = [(*(getattr(one, NAMES[name]) for name in chosen), *_figures([one])) for one in found]
    if found:
        rows.append(("in all", *[""] * (len(chosen) - 1), *_figures(found)))
    columns = (*chosen, "answers", "input", "cached", "to cache", "output", "USD", "unpriced")
    print_table(columns, rows, empty="no answer of a model is counted here")
    unpriced = sum(one.unpriced for one in found)
    if unpriced:
        say(f"the cost of {unpriced} answer(s) is not known, and is not in the sum")


def _figures(found: Sequence[UsageTotal]) -> tuple[object, ...]:
    """Return the cells of a sum. The cell of the cost is empty if no answer has a known cost."""
    calls = sum(one.calls for one in found)
    unpriced = sum(one.unpriced for one in found)
    cost = sum((one.cost_usd for one in found), Decimal(0))
    tokens = (sum(getattr(one, name) for one in found) for name in TOKENS)
    return calls, *tokens, f"{cost:f}" if unpriced < calls else "", unpriced or ""
