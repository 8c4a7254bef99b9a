"""`callboard audit list`: changes that principals made over HTTP."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

from actors.kernel.runtime.ids import DEFAULT_TENANT
from actors.kernel.stores.administration import AuditRow, Facts
from compose.commands import options as opt
from compose.commands.options import HERE, Target
from compose.commands.output import ago, picked
from compose.commands.terminal import say


async def list_changes(
    *,
    thing: str | None = None,
    tenant: str = DEFAULT_TENANT,
    after: int | None = None,
    limit: opt.LimitOpt = 50,
    target: Target = HERE,
) -> None:
    """List changes that principals of a tenant made over HTTP, newest first.

    Examples: `callboard audit list`; `callboard audit list --thing session:helpdesk/s1`;
    `callboard audit list --tenant acme --thing run:0f3c… --json`

    Parameters
    ----------
    thing
        Only changes of this thing: its kind, a colon and its id. Kinds are session, run, flow and app.
    tenant
        The tenant.
    after
        Only changes after this change in the list. Give the id of the last change of the page before.
    """
    async with target.client() as runtime:
        rows = await runtime.store.audit.list(tenant, thing=thing, after=after, limit=limit + 1)
    target.table(
        rows[:limit],
        _to_json,
        ("id", "ago", "principal", "action", "thing", "outcome", "before", "after"),
        _row,
        empty="there is no such change",
    )
    if len(rows) > limit and not target.json:
        say(f"there are more: --after {rows[limit - 1].id}")


def _to_json(row: AuditRow) -> dict[str, Any]:
    return picked(row, "id at tenant principal action thing before after outcome")


def _row(row: AuditRow) -> tuple[object, ...]:
    return (
        *(row.id, ago(row.at), row.principal, row.action, row.thing, row.outcome),
        *(_text(row.before), _text(row.after)),
    )


def _text(facts: Facts | None) -> str:
    return "" if facts is None else to_json(facts).decode()
