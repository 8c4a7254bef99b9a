"""`callboard schedules` and `limits`: messages that the runtime sends by a schedule, and how many runs execute.

A limit says how many runs execute at once and start per second.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import DEFAULT_TENANT
from actors._kernel.stores.limits import MAX_SLOTS, MAX_WEIGHT, MOST_STARTS, Limit, LimitUse
from actors._kernel.stores.schedule import Schedule
from actors.errors import ContractError, InvalidScheduleError
from compose._commands import options as opt
from compose._commands.options import HERE, SECONDS, Target
from compose._commands.output import NoDataError, ago, pick, print_json
from compose._commands.terminal import print_facts

NameArg = Annotated[str, Parameter(help="The name, as `callboard schedules list` shows it.")]
TenantOpt = Annotated[str, Parameter(help="The schedule's tenant.")]
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/(s|m|h|d))?")


async def create(  # noqa: PLR0913 - they are what a schedule is
    name: str,
    agent: opt.AgentArg | None = None,
    payload: opt.JsonArg = "null",
    /,
    *,
    flow: str | None = None,
    variables: Annotated[str, Parameter(name="--vars", allow_leading_hyphen=True)] = "{}",
    tenant: TenantOpt = DEFAULT_TENANT,
    cron: str | None = None,
    timezone: str = "UTC",
    at: str | None = None,
    delay_s: Annotated[opt.Seconds | None, Parameter(allow_leading_hyphen=True)] = None,
    catch_up: Literal["one", "all"] = "one",
    replace: opt.Flag = False,
    target: Target = HERE,
) -> None:
    """Send a message or start a flow by a cron expression, at an instant, or after a delay.

    The same call again changes nothing. Other values for an existing name are refused, unless `--replace` is
    given. If a change of the clock skips the time of a tick, the tick fires once, at the next existing
    instant. If that time occurs twice, the tick fires the first time.

    Examples:
    `callboard schedules create report desk/main '{}' --cron "30 8 * * MON-FRI" --timezone Asia/Tokyo`;
    `callboard schedules create reminder desk/main '"call back"' --at 2027-03-01T09:00:00+01:00`;
    `callboard schedules create retry shop/42 --delay-s 3600`;
    `callboard schedules create nightly --flow billing/report --vars '{"days": 1}' --cron "0 3 * * *"`

    Parameters
    ----------
    name
        Name of the schedule, unique per tenant.
    payload
        The message as JSON; - reads it from standard input.
    flow
        APP/FLOW, instead of an agent: each tick starts a run of this flow.
    variables
        The first variables of these runs, a JSON object; - reads it from standard input, @FILE from a file.
    tenant
        The owner of these runs.
    cron
        Minute, hour, day of month, month, day of week; or six fields with the second first.
    timezone
        IANA name of the time zone of --cron.
    at
        Send one message at this instant: ISO 8601 with an offset.
    delay_s
        Send one message this number of seconds from now.
    catch_up
        After an outage: send one message for all missed ticks, or one for each missed tick.
    replace
        Replace the values of an existing schedule.
    """
    instant = None if at is None else _instant(at)
    timing: dict[str, Any] = {"cron": cron, "timezone": timezone, "at": instant, "delay_s": delay_s}
    timing |= {"catch_up": catch_up, "replace": replace}
    data = opt.parse_json(payload, what="the message")
    if (agent is None) == (flow is None):
        raise ContractError("name an agent, or a flow with --flow APP/FLOW; give one of both")
    app, flow_name, flow_vars = ("", "", {}) if flow is None else _parse_flow(flow, variables)
    async with target.client() as runtime:
        if agent is not None:
            schedule = await runtime.schedules.create(name, agent, data, **timing)
        else:
            from actors.workflow import schedule_flow  # noqa: PLC0415 - few schedules start flows

            schedule = await schedule_flow(
                runtime, app, name, flow_name, vars=flow_vars, tenant=tenant, **timing
            )
    _print(schedule, target)


async def list_schedules(*, tenant: opt.TenantOpt = None, target: Target = HERE) -> None:
    """List schedules, each with its agent, its next tick and its last tick.

    Example: `callboard schedules list --tenant acme`
    """
    async with target.client() as runtime:
        schedules = await runtime.schedules.list(tenant=tenant)
    target.table(
        schedules,
        _to_json,
        ("tenant", "name", "agent", "plan", "state", "next", "last"),
        lambda schedule: (
            schedule.tenant,
            schedule.name,
            schedule.agent_id,
            _plan(schedule),
            schedule.state,
            _next(schedule),
            ago(schedule.last_at),
        ),
        empty_text="no schedules",
    )


async def show(
    name: NameArg, /, *, tenant: TenantOpt = DEFAULT_TENANT, target: Target = HERE
) -> None:
    """Show one schedule with its message.

    Example: `callboard schedules show report`
    """
    async with target.client() as runtime:
        _print(await runtime.schedules.get(name, tenant=tenant), target)


async def pause(
    name: NameArg, /, *, tenant: TenantOpt = DEFAULT_TENANT, target: Target = HERE
) -> None:
    """Pause a schedule until it is resumed. Ticks of the time between are not sent.

    Example: `callboard schedules pause report`
    """
    async with target.client() as runtime:
        _print(await runtime.schedules.pause(name, tenant=tenant), target)


async def resume(
    name: NameArg, /, *, tenant: TenantOpt = DEFAULT_TENANT, target: Target = HERE
) -> None:
    """Continue a paused schedule with its next tick after now.

    If the schedule sends one message and its instant passed during the pause, the message is sent at once.

    Example: `callboard schedules resume report`
    """
    async with target.client() as runtime:
        _print(await runtime.schedules.resume(name, tenant=tenant), target)


async def trigger(
    name: NameArg,
    /,
    *,
    request_id: str | None = None,
    tenant: TenantOpt = DEFAULT_TENANT,
    target: Target = HERE,
) -> int:
    """Send a schedule's message now, in addition to its ticks. The schedule may be paused or done.

    Examples: `callboard schedules trigger report`;
    `callboard schedules trigger report --request-id deploy-17`

    Parameters
    ----------
    request_id
        Id of the request. The same id again sends nothing, so that a script can be run again.
    """
    async with target.client() as runtime:
        is_new = await runtime.schedules.trigger(name, request_id=request_id, tenant=tenant)
    text = f"sent the message of {name}" if is_new else f"request {request_id} was sent before"
    return target.tell({"name": name, "tenant": tenant, "sent": is_new}, text)


async def delete(
    name: NameArg, /, *, tenant: TenantOpt = DEFAULT_TENANT, target: Target = HERE
) -> int:
    """Delete a schedule. Messages that it has sent stay.

    Example: `callboard schedules delete report`
    """
    async with target.client() as runtime:
        await runtime.schedules.delete(name, tenant=tenant)
    return target.tell({"name": name, "tenant": tenant, "deleted": True}, f"deleted {name}")


def _parse_flow(flow_address: str, vars_json: str) -> tuple[str, str, dict[str, Any]]:
    """Return the app, the flow and the variables of the runs that ticks start."""
    app, _, flow_name = flow_address.partition("/")
    if not flow_name or ":" in flow_name:
        raise ContractError(
            f"--flow {flow_address!r} is not a flow: give APP/FLOW, such as billing/refund"
        )
    flow_vars = opt.parse_json(vars_json, what="--vars")
    if not isinstance(flow_vars, dict):
        raise ContractError("--vars: give a JSON object, such as '{\"order\": 7}'")
    return app, flow_name, flow_vars


def _instant(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
        at.astimezone(UTC)  # raises if the instant in UTC is after the year 9999
    except (ValueError, OverflowError) as exc:
        msg = f"--at {text!r} is not an instant: give ISO 8601, as 2027-03-01T09:00:00+01:00"
        raise InvalidScheduleError(msg) from exc
    return at


def _print(schedule: Schedule, target: Target) -> None:
    if target.json:
        print_json(_to_json(schedule))
        return
    print_facts(
        (
            ("name", schedule.name),
            ("tenant", schedule.tenant),
            ("agent", schedule.agent_id),
            ("plan", _plan(schedule)),
            ("catch up", schedule.catch_up if schedule.cron is not None else ""),
            ("state", schedule.state),
            (
                "next",
                ""
                if schedule.next_at is None
                else f"{_instant_text(schedule.next_at)} ({_next(schedule)})",
            ),
            (
                "last",
                ""
                if schedule.last_at is None
                else f"{_instant_text(schedule.last_at)} ({ago(schedule.last_at)})",
            ),
            ("payload", str(schedule.payload)),
        )
    )


def _plan(schedule: Schedule) -> str:
    if schedule.cron is not None:
        return (
            schedule.cron if schedule.timezone == "UTC" else f"{schedule.cron} {schedule.timezone}"
        )
    return f"once at {_instant_text(schedule.at)}" if schedule.at is not None else ""


def _next(schedule: Schedule) -> str:
    return "" if schedule.is_paused else ago(schedule.next_at)


def _instant_text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")


def _to_json(schedule: Schedule) -> dict[str, JsonValue]:
    def utc_text(at: datetime | None) -> str | None:
        return None if at is None else at.astimezone(UTC).isoformat()

    return {
        **pick(schedule, "name tenant agent=agent_id payload cron timezone"),
        "at": utc_text(schedule.at),
        **pick(schedule, "catch_up state"),
        "next_at": utc_text(schedule.next_at),
        "last_at": utc_text(schedule.last_at),
    }


async def list_limits(*, target: Target = HERE) -> None:
    """List all limits, each with the slots that hosts hold of it and the number of waiting runs.

    Example: `callboard limits list`
    """
    async with target.client() as runtime:
        limit_uses = await runtime.limits.list()
    target.table(
        limit_uses,
        lambda use: {**_limit_json(use.limit), **pick(use, "held waiting=wanting hosts")},
        ("scope", "at once", "starts", "burst", "weight", "in use", "waiting", "hosts"),
        _limit_row,
        empty_text="no limits",
    )


async def set_limit(
    scope: str,
    /,
    *,
    max_concurrent: Annotated[int, opt.within(0, MAX_SLOTS)] | None = None,
    rate: str | None = None,
    burst: Annotated[int, opt.within(1, MAX_SLOTS)] | None = None,
    weight: Annotated[int, opt.within(1, MAX_WEIGHT)] = 1,
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
    target.tell(_limit_json(limit), f"{limit.scope}: {_text(limit)}")


async def delete_limit(scope: str, /, *, target: Target = HERE) -> int:
    """Delete the limit of a scope. Runs that waited for it continue.

    Example: `callboard limits delete type:desk`

    Parameters
    ----------
    scope
        The scope, as `callboard limits list` shows it.
    """
    async with target.client() as runtime:
        is_deleted = await runtime.limits.delete(scope)
    if not is_deleted:
        raise NoDataError(f"{scope} has no limit")
    return target.tell({"deleted": scope}, f"{scope} has no limit any more")


def parse_rate(text: str) -> float:
    """Return a rate such as ``10/s``, ``90/m``, ``5000/h`` or ``10`` in starts per second.

    Raises:
        ContractError: The text is not a rate.
    """
    match = _RATE.fullmatch(text.strip())
    rate_per_s = 0.0 if match is None else float(match[1]) / SECONDS[match[2] or "s"]
    if not 0 < rate_per_s <= MOST_STARTS:
        example = f"up to {MOST_STARTS:.0f} a second, such as 10/s, 90/m, 5000/h or 1/d"
        raise ContractError(f"--rate {text[:60]!r} is not a rate: give a number above 0, {example}")
    return rate_per_s


def _text(limit: Limit) -> str:
    parts = []
    if limit.max_concurrent is not None:
        parts.append(f"at most {limit.max_concurrent} at once")
    if limit.rate_per_s is not None:
        parts.append(f"{limit.rate_per_s:g} starts/s, bursts of {limit.most_starts}")
    if limit.weight != 1:
        parts.append(f"weight {limit.weight}")
    return "; ".join(parts)


def _limit_row(use: LimitUse) -> tuple[object, ...]:
    limit = use.limit
    has_rate = limit.rate_per_s is not None
    starts = (f"{limit.rate_per_s:g}/s", limit.most_starts) if has_rate else ("", "")
    weight = "" if limit.weight == 1 else limit.weight
    return limit.scope, limit.max_concurrent, *starts, weight, use.held, use.wanting, use.hosts


def _limit_json(limit: Limit) -> dict[str, JsonValue]:
    return {
        "scope": str(limit.scope),
        "max_concurrent": limit.max_concurrent,
        "rate_per_s": limit.rate_per_s,
        "burst": None if limit.rate_per_s is None else limit.most_starts,
        "weight": limit.weight,
    }
