"""`callboard tokens create|list|revoke` and `audit list`: clients of `callboard serve`, and their changes."""

from __future__ import annotations

import secrets
import sys
from datetime import timedelta
from typing import Annotated, Final

from cyclopts import Parameter
from pydantic_core import to_json

from actors._inmemory.administration import BEARER, digest_of, new_secret
from actors._kernel.runtime.ids import DEFAULT_TENANT
from actors._kernel.stores.administration import ApiToken, Facts, NewToken, Scope
from actors._kernel.text import is_name
from compose._commands import options as opt
from compose._commands.options import HERE, Target, span_s
from compose._commands.output import Exit, NoDataError, ago, pick, print_json
from compose._commands.terminal import say
from compose._host.logs import visible

ScopeOpt = Annotated[list[Scope] | None, Parameter(negative="")]
_SHOWN: Final = (
    "id name tenant principal scopes state created_at expires_at revoked_at last_used_at"
)
"""Attributes of a token in the output of `--json`."""


async def create(
    name: str,
    /,
    *,
    tenant: str = DEFAULT_TENANT,
    principal: str | None = None,
    scope: ScopeOpt = None,
    expires: str | None = None,
    target: Target = HERE,
) -> int:
    """Create a token of the API, and print it once. The token itself is not stored.

    The line on stdout is the token alone. Its name and scopes are printed on stderr.

    Examples:
    `callboard tokens create ada --scope sessions:own --expires 90d`;
    `callboard tokens create shop --tenant acme --principal shop --scope sessions:all --scope cleanup`;
    `TOKEN=$(callboard tokens create ci --scope operate)`

    Parameters
    ----------
    name
        Name of the token in lists. Two tokens that are not revoked cannot have the same name.
    tenant
        Tenant of the token. The token gives no access to other tenants.
    principal
        Owner of the sessions that are created with the token. Default: the token's name. Several tokens may
        have one principal.
    scope
        Permission of the token: sessions:own (its principal's sessions; the default), sessions:all (all
        sessions of the tenant), operate (any run and agent of the tenant), cleanup (cleanup of the sessions
        that it sees), flows:run (runs of flows of the tenant), flows:operate (stop these runs), flows:install
        (install and remove flows).
    expires
        Span such as 90d, after which the token is refused. Default: the token does not expire.
    """
    secret = new_secret(BEARER)
    lifetime = None if expires is None else timedelta(seconds=span_s(expires))
    async with target.client() as runtime:
        new_token = NewToken(
            id=secrets.token_hex(8),
            digest=digest_of(secret),
            name=name,
            tenant=tenant,
            principal=name if principal is None else principal,
            scopes=tuple(dict.fromkeys(scope or ["sessions:own"])),
            expires_at=None if lifetime is None else runtime.clock.now() + lifetime,
        )
        token = await runtime.store.data.tokens.create(new_token)
    if target.json:
        print_json({"token": secret, **pick(token, _SHOWN)})
    else:
        end = "" if token.expires_at is None else f", until {token.expires_at:%Y-%m-%d %H:%M} UTC"
        who = f"principal {token.principal} of tenant {token.tenant}: {', '.join(token.scopes)}"
        text = f"token {token.name} ({token.id}): {who}{end}. It is shown this once:"
        sys.stderr.write(f"{visible(text)}\n")
        sys.stdout.write(f"{secret}\n")
    return Exit.OK


async def list_tokens(*, target: Target = HERE) -> None:
    """List the tokens of the API, each with its principal, its scopes and the time of its last use.

    Example: `callboard tokens list`
    """
    async with target.client() as runtime:
        tokens = await runtime.store.data.tokens.list()
    target.table(
        tokens,
        _SHOWN,
        ("id", "name", "tenant", "principal", "scopes", "state", "expires", "last used"),
        _token_row,
        empty_text="no tokens",
    )


async def revoke(name_or_id: str, /, *, target: Target = HERE) -> int:
    """Revoke a token and the logins that were made from it.

    Every API process refuses them within seconds, and ends the streams that were opened with them. The
    sessions of the token's principal stay.

    Example: `callboard tokens revoke ada`

    Parameters
    ----------
    name_or_id
        The token's name or id, as `callboard tokens list` shows it.
    """
    token = None
    if is_name(name_or_id):
        async with target.client() as runtime:
            token = await runtime.store.data.tokens.revoke(name_or_id)
    if token is None:
        raise NoDataError(f"there is no token {name_or_id[:100]}")
    return target.tell(pick(token, _SHOWN), f"token {token.name} ({token.id}) is revoked")


async def list_changes(
    *,
    thing: str | None = None,
    tenant: str = DEFAULT_TENANT,
    after: Annotated[int, opt.within(1, 2**63 - 1, "the id of a change")] | None = None,
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
        rows = await runtime.store.data.audit.list(
            tenant, thing=thing, after=after, limit=limit + 1
        )
    target.table(
        rows[:limit],
        "id at tenant principal action thing before after outcome",
        ("id", "ago", "principal", "action", "thing", "outcome", "before", "after"),
        lambda row: (
            row.id,
            ago(row.at),
            row.principal,
            row.action,
            row.thing,
            row.outcome,
            _text(row.before),
            _text(row.after),
        ),
        empty_text="there is no such change",
    )
    if len(rows) > limit and not target.json:
        say(f"there are more: --after {rows[limit - 1].id}")


def _token_row(token: ApiToken) -> tuple[object, ...]:
    last_used, end = token.last_used_at, token.expires_at
    return (
        *(token.id, token.name, token.tenant, token.principal, " ".join(token.scopes)),
        *(token.state, "" if end is None else f"{end:%Y-%m-%d %H:%M}"),
        "never" if last_used is None else f"{ago(last_used)} ago",
    )


def _text(facts: Facts | None) -> str:
    return "" if facts is None else to_json(facts).decode()
