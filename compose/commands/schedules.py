"""`callboard schedules`: messages that come to agents by themselves."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from actors.errors import InvalidScheduleError
from actors.kernel.runtime.ids import DEFAULT_TENANT, AgentId
from compose.commands.exits import Exit
from compose.commands.json_argument import parse_json
from compose.commands.output import ago, print_facts, print_json, print_table, say
from compose.commands.target import HERE, Target

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.schedule import Schedule


async def create(  # noqa: PLR0913 - they are what a schedule is
    name: str,
    agent: str,
    payload: Annotated[str, Parameter(name="JSON", allow_leading_hyphen=True)] = "null",
    /,
    *,
    cron: str | None = None,
    timezone: str = "UTC",
    at: str | None = None,
    delay_s: Annotated[float | None, Parameter(allow_leading_hyphen=True)] = None,
    catch_up: Literal["one", "all"] = "one",
    replace: Annotated[bool, Parameter(negative="")] = False,
    target: Target = HERE,
) -> int:
    """Have an agent sent a message by a cron expression, at an instant, or after a delay.

    The same call again changes nothing; other values for a name that is there are refused, or take
    its place with `--replace`. A time of day that a change of the clock leaves out fires once, at
    the next instant there is; one that comes twice fires the first time.

    Examples:
    `callboard schedules create report desk/main '{}' --cron "30 8 * * MON-FRI" --timezone Asia/Tokyo`;
    `callboard schedules create reminder desk/main '"call back"' --at 2027-03-01T09:00:00+01:00`;
    `callboard schedules create retry shop/42 --delay-s 3600`

    Parameters
    ----------
    name
        Unique per tenant.
    agent
        TYPE/KEY, or TENANT:TYPE/KEY.
    payload
        The message as JSON; - reads it from standard input.
    cron
        Minute, hour, day of month, month, day of week; or six fields with the second first.
    timezone
        IANA name of the zone whose clock --cron means.
    at
        One message at this instant: ISO 8601 with an offset.
    delay_s
        One message so many seconds from now.
    catch_up
        After an outage: one message for all ticks that were missed, or one for each.
    replace
        Take these values in place of those that are there.
    """
    agent_id = AgentId.parse(agent)
    data = parse_json(payload, what="the message")
    instant = None if at is None else _instant(at)
    async with target.client() as runtime:
        made = await runtime.schedules.create(
            name, agent_id, data, cron=cron, timezone=timezone, at=instant, delay_s=delay_s,
            catch_up=catch_up, replace=replace,
        )  # fmt: skip
    _print(made, target)
    return Exit.OK


async def list_schedules(*, tenant: str | None = None, target: Target = HERE) -> None:
    """List schedules: who is sent a message, when next, and when last.

    Example: `callboard schedules list --tenant acme`

    Parameters
    ----------
    tenant
        Only those of this tenant.
    """
    async with target.client() as runtime:
        found = await runtime.schedules.list(tenant=tenant)
    if target.json:
        print_json([_to_json(one) for one in found])
        return
    print_table(
        ("tenant", "name", "agent", "plan", "state", "next", "last"),
        [
            (
                one.tenant, one.name, str(one.agent_id), _plan(one), one.state,
                _next(one), ago(one.last_at),
            )
            for one in found
        ],
        empty="no schedules",
    )  # fmt: skip


async def show(name: str, /, *, tenant: str = DEFAULT_TENANT, target: Target = HERE) -> int:
    """Show one schedule with its message.

    Example: `callboard schedules show report`

    Parameters
    ----------
    name
        As `callboard schedules list` shows it.
    tenant
        Whose it is.
    """
    async with target.client() as runtime:
        _print(await runtime.schedules.get(name, tenant=tenant), target)
    return Exit.OK


async def pause(name: str, /, *, tenant: str = DEFAULT_TENANT, target: Target = HERE) -> int:
    """Stop a schedule until it is resumed; ticks of the time between are not sent.

    Example: `callboard schedules pause report`

    Parameters
    ----------
    name
        As `callboard schedules list` shows it.
    tenant
        Whose it is.
    """
    async with target.client() as runtime:
        _print(await runtime.schedules.pause(name, tenant=tenant), target)
    return Exit.OK


async def resume(name: str, /, *, tenant: str = DEFAULT_TENANT, target: Target = HERE) -> int:
    """Let a paused schedule go on with its next tick after now.

    A single message whose instant has passed meanwhile comes at once.

    Example: `callboard schedules resume report`

    Parameters
    ----------
    name
        As `callboard schedules list` shows it.
    tenant
        Whose it is.
    """
    async with target.client() as runtime:
        _print(await runtime.schedules.resume(name, tenant=tenant), target)
    return Exit.OK


async def trigger(
    name: str,
    /,
    *,
    request_id: str | None = None,
    tenant: str = DEFAULT_TENANT,
    target: Target = HERE,
) -> int:
    """Send a schedule's message now, beside its plan, also when it is paused or done.

    Examples:
    `callboard schedules trigger report`;
    `callboard schedules trigger report --request-id deploy-17`

    Parameters
    ----------
    name
        As `callboard schedules list` shows it.
    request_id
        The same id again sends nothing, so a script may be run again.
    tenant
        Whose it is.
    """
    async with target.client() as runtime:
        is_new = await runtime.schedules.trigger(name, request_id=request_id, tenant=tenant)
    if target.json:
        print_json({"name": name, "tenant": tenant, "sent": is_new})
    else:
        say(f"sent the message of {name}" if is_new else f"request {request_id} was sent before")
    return Exit.OK


async def delete(name: str, /, *, tenant: str = DEFAULT_TENANT, target: Target = HERE) -> int:
    """Forget a schedule; messages it has sent stay.

    Example: `callboard schedules delete report`

    Parameters
    ----------
    name
        As `callboard schedules list` shows it.
    tenant
        Whose it is.
    """
    async with target.client() as runtime:
        await runtime.schedules.delete(name, tenant=tenant)
    if target.json:
        print_json({"name": name, "tenant": tenant, "deleted": True})
    else:
        say(f"deleted {name}")
    return Exit.OK


def _instant(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
        at.astimezone(UTC)  # the last day of the year 9999 may be no day there
    except (ValueError, OverflowError) as exc:
        words = f"--at {text!r} is no instant: give ISO 8601, as 2027-03-01T09:00:00+01:00"
        raise InvalidScheduleError(words) from exc
    return at


def _print(one: Schedule, target: Target) -> None:
    if target.json:
        print_json(_to_json(one))
        return
    print_facts(
        (
            ("name", one.name),
            ("tenant", one.tenant),
            ("agent", str(one.agent_id)),
            ("plan", _plan(one)),
            ("catch up", one.catch_up if one.cron is not None else ""),
            ("state", one.state),
            ("next", "" if one.next_at is None else f"{_said(one.next_at)} ({_next(one)})"),
            ("last", "" if one.last_at is None else f"{_said(one.last_at)} ({ago(one.last_at)})"),
            ("payload", str(one.payload)),
        )
    )


def _plan(one: Schedule) -> str:
    if one.cron is not None:
        return one.cron if one.timezone == "UTC" else f"{one.cron} {one.timezone}"
    return f"once at {_said(one.at)}" if one.at is not None else ""


def _next(one: Schedule) -> str:
    return "" if one.is_paused else ago(one.next_at)


def _said(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")


def _to_json(one: Schedule) -> dict[str, JsonValue]:
    def told(at: datetime | None) -> str | None:
        return None if at is None else at.astimezone(UTC).isoformat()

    return {
        "name": one.name, "tenant": one.tenant, "agent": str(one.agent_id), "payload": one.payload,
        "cron": one.cron, "timezone": one.timezone, "at": told(one.at), "catch_up": one.catch_up,
        "state": one.state, "next_at": told(one.next_at), "last_at": told(one.last_at),
    }  # fmt: skip
