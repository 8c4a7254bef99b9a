"""`callboard memory list|show|forget`: long-term memories of a tenant, by scope."""

from __future__ import annotations

from rich.text import Text

from actors.kernel.runtime.ids import DEFAULT_TENANT
from actors.kernel.stores.memory import Memory
from compose.commands import options as opt
from compose.commands.options import HERE, Target
from compose.commands.output import NoDataError, ago, print_json, short
from compose.commands.terminal import console, say
from compose.host.visible import visible


async def list_memories(
    about: str | None = None,
    /,
    *,
    tenant: opt.TenantOpt = None,
    limit: opt.LimitOpt = 50,
    offset: opt.Count = 0,
    target: Target = HERE,
) -> None:
    """List the present memories of a scope or, without a scope, of a tenant, newest first.

    The scope of an agent's own memories is `agent:` and its id, and the scope of its blocks is `blocks:agent:`
    and its id. The output has the texts: protect it like the database.

    Examples:
    `callboard memory list`;
    `callboard memory list user:7 --limit 5 --json`

    Parameters
    ----------
    about
        The scope, such as user:7.
    offset
        Leave out this number of the newest memories.
    """
    async with target.client() as runtime:
        memories = runtime.memory(tenant or DEFAULT_TENANT)
        found = await memories.page(about=about, limit=limit, offset=offset)
    target.table(
        found,
        _json,
        ("about", "key or id", "text", "source", "version", "since"),
        _row,
        empty="there are no memories here",
    )
    if len(found) == limit and not target.json:
        say(f"there may be more: give --offset {offset + limit}")


async def show(
    key_or_id: str, /, *, about: str, tenant: opt.TenantOpt = None, target: Target = HERE
) -> None:
    """Print a memory with its earlier versions, the present version first.

    Examples:
    `callboard memory show units --about user:7`;
    `callboard memory show units --about agent:helper/main --json`

    Parameters
    ----------
    key_or_id
        The memory's key, or the id of any of its versions.
    about
        The memory's scope.
    """
    async with target.client() as runtime:
        found = await runtime.memory(tenant or DEFAULT_TENANT).versions(key_or_id, about=about)
    if not found:
        raise _unknown(key_or_id, about)
    if target.json:
        print_json([_json(one) for one in found])
        return
    out = console()
    for one in found:
        until = "" if one.valid_until is None else f" until {one.valid_until:%Y-%m-%d %H:%M:%S}"
        run = f"  run {one.run_id}" if one.run_id else ""
        facts = f"{one.updated_at:%Y-%m-%d %H:%M:%S}{until}  {one.source}{run}  {one.id}"
        out.print(Text(visible(f"version {one.version}  {facts}"), style="bold"), soft_wrap=True)
        for line in one.text.split("\n"):
            out.print(Text(visible(f"    {line}")), soft_wrap=True)


async def forget(
    key_or_id: str, /, *, about: str, tenant: opt.TenantOpt = None, target: Target = HERE
) -> None:
    """Remove a memory with its earlier versions and their embeddings for good.

    Logs of runs that kept or recalled the memory have its text until these runs are swept.

    Examples:
    `callboard memory forget units --about user:7`

    Parameters
    ----------
    key_or_id
        The memory's key, or the id of any of its versions.
    about
        The memory's scope.
    """
    async with target.client() as runtime:
        removed = await runtime.memory(tenant or DEFAULT_TENANT).forget(key_or_id, about=about)
    if not removed:
        raise _unknown(key_or_id, about)
    if target.json:
        print_json({"about": about, "memory": key_or_id, "versions": removed})
        return
    say(f"forgotten: {key_or_id!r} of {about!r}, {removed} version(s)")


def _json(one: Memory) -> dict[str, object]:
    return one.model_dump(mode="json", exclude={"score"})


def _row(one: Memory) -> tuple[object, ...]:
    return (
        one.about,
        one.key or one.id,
        short(one.text),
        one.source,
        one.version,
        ago(one.updated_at),
    )


def _unknown(key_or_id: str, about: str) -> NoDataError:
    remedy = f"`callboard memory list {about}` lists the existing ones"
    return NoDataError(f"there is no memory {key_or_id!r} about {about!r}: {remedy}")
