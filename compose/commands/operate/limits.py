"""`callboard limits list|set|delete`: how many runs execute at once and start per second."""

from __future__ import annotations

import re
from typing import Final

from actors.errors import ContractError
from actors.kernel.json import JsonValue
from actors.kernel.stores.limits import Limit, LimitUse
from compose.commands.options import HERE, SECONDS, Target
from compose.commands.output import NoDataError, picked

_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/(s|m|h|d))?")


async def list_limits(*, target: Target = HERE) -> None:
    """List all limits, each with the slots that hosts hold of it and the number of waiting runs.

    Example: `callboard limits list`
    """
    async with target.client() as runtime:
        found = await runtime.limits.list()
    target.table(
        found,
        _use_to_json,
        ("scope", "at once", "starts", "burst", "weight", "in use", "waiting", "hosts"),
        _row,
        empty="no limits",
    )


async def set_limit(
    scope: str,
    /,
    *,
    max_concurrent: int | None = None,
    rate: str | None = None,
    burst: int | None = None,
    weight: int = 1,
    target: Target = HERE,
) -> None:
    """Create the limit of a scope, or replace all its values.

    Hosts apply the limit within a moment, without a restart. Runs that are executing already continue.

    Examples:
    `callboard limits set type:desk --max-concurrent 5 --rate 10/s --burst 20`;
    `callboard limits set tenant:acme --max-concurrent 50 --weight 3`;
    `callboard limits set deployment --max-concurrent 0` stops all starts of runs, and
    `callboard limits delete deployment` allows them again

    Parameters
    ----------
    scope
        deployment, tenant:NAME, type:NAME, flow:APP/FLOW or agent:TYPE/KEY.
    max_concurrent
        Greatest number of runs in memory at once, over all hosts. With 0 no run starts.
    rate
        Greatest number of starts of runs per time, such as 10/s, 90/m or 0.5/s.
    burst
        Greatest number of starts at once after a pause. Default: the starts of one second.
    weight
        Weight of a tenant: the number of runs that it starts in each round, in which a tenant without a
        weight starts one.
    """
    rate_per_s = None if rate is None else parse_rate(rate)
    if max_concurrent is None and rate_per_s is None and weight == 1:
        raise ContractError("give a limit: --max-concurrent, --rate or --weight")
    async with target.client() as runtime:
        limit = await runtime.limits.set(
            scope, max_concurrent=max_concurrent, rate_per_s=rate_per_s, burst=burst, weight=weight
        )
    target.tell(_to_json(limit), f"{limit.scope}: {_text(limit)}")


async def delete_limit(scope: str, /, *, target: Target = HERE) -> int:
    """Delete the limit of a scope. Runs that waited for it continue.

    Example: `callboard limits delete type:desk`

    Parameters
    ----------
    scope
        The scope, as `callboard limits list` shows it.
    """
    async with target.client() as runtime:
        is_gone = await runtime.limits.delete(scope)
    if not is_gone:
        raise NoDataError(f"{scope} has no limit")
    return target.tell({"deleted": scope}, f"{scope} has no limit any more")


def parse_rate(text: str) -> float:
    """Return a rate such as ``10/s``, ``90/m``, ``5000/h`` or ``10`` in starts per second.

    Raises:
        ContractError: The text is not a rate.
    """
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise ContractError(f"{text!r} is not a rate: give a number per s, m, h or d, such as 10/s")
    return float(found[1]) / SECONDS[found[2] or "s"]


def _text(limit: Limit) -> str:
    parts = []
    if limit.max_concurrent is not None:
        parts.append(f"at most {limit.max_concurrent} at once")
    if limit.rate_per_s is not None:
        parts.append(f"{limit.rate_per_s:g} starts/s, bursts of {limit.most_starts}")
    if limit.weight != 1:
        parts.append(f"weight {limit.weight}")
    return "; ".join(parts)


def _row(use: LimitUse) -> tuple[object, ...]:
    limit = use.limit
    has_rate = limit.rate_per_s is not None
    starts = (f"{limit.rate_per_s:g}/s", limit.most_starts) if has_rate else ("", "")
    weight = "" if limit.weight == 1 else limit.weight
    return limit.scope, limit.max_concurrent, *starts, weight, use.held, use.wanting, use.hosts


def _to_json(limit: Limit) -> dict[str, JsonValue]:
    return {
        "scope": str(limit.scope),
        "max_concurrent": limit.max_concurrent,
        "rate_per_s": limit.rate_per_s,
        "burst": None if limit.rate_per_s is None else limit.most_starts,
        "weight": limit.weight,
    }


def _use_to_json(use: LimitUse) -> dict[str, JsonValue]:
    return {**_to_json(use.limit), **picked(use, "held waiting=wanting hosts")}
