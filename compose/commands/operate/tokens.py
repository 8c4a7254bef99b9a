"""`callboard tokens create|list|revoke`: who may ask `callboard serve`, and for what."""

from __future__ import annotations

import secrets
import sys
from datetime import timedelta
from typing import Annotated, Final

from cyclopts import Parameter

from actors.kernel.runtime.ids import DEFAULT_TENANT
from actors.kernel.storage.token import ApiToken, NewToken, Scope
from actors.kernel.text import is_name
from actors.storage.tokens import BEARER, digest_of, new_secret
from compose.commands.options import HERE, Target, span_s
from compose.commands.output import Exit, NoDataError, ago, picked, print_json
from compose.host.visible import visible

ScopeOpt = Annotated[list[Scope] | None, Parameter(negative="")]
_SHOWN: Final = (
    "id name tenant principal scopes state created_at expires_at revoked_at last_used_at"
)
"""The attributes of a token that programs get."""


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
    """Make a token of the API, and print it: it is shown this once, and kept nowhere.

    The token alone is the line on stdout; its scopes are printed on stderr.

    Examples:
    `callboard tokens create ada --scope sessions:own --expires 90d`;
    `callboard tokens create shop --tenant acme --principal shop --scope sessions:all --scope cleanup`;
    `TOKEN=$(callboard tokens create ci --scope operate)`

    Parameters
    ----------
    name
        What lists show; one token at a time has a name.
    tenant
        Nothing of another one is found with the token.
    principal
        The owner of the sessions that are made with the token; its name, if left out. Several tokens may
        be of one principal.
    scope
        What the token is for: sessions:own (its principal's sessions, by default), sessions:all (all of the
        tenant), operate (any run and agent of the tenant), cleanup (of the sessions that it sees), flows:run
        (runs of flows of the tenant), flows:operate (stop these), flows:install (install and remove flows).
    expires
        A span such as 90d, after which it is of no use; without end, if left out.
    """
    secret = new_secret(BEARER)
    lasts = None if expires is None else timedelta(seconds=span_s(expires))
    async with target.client() as runtime:
        new = NewToken(
            id=secrets.token_hex(8),
            digest=digest_of(secret),
            name=name,
            tenant=tenant,
            principal=name if principal is None else principal,
            scopes=tuple(dict.fromkeys(scope or ["sessions:own"])),
            expires_at=None if lasts is None else runtime.clock.now() + lasts,
        )
        made = await runtime.store.tokens.create(new)
    if target.json:
        print_json({"token": secret, **picked(made, _SHOWN)})
    else:
        sys.stderr.write(f"{visible(_text(made))}\n")
        sys.stdout.write(f"{secret}\n")
    return Exit.OK


async def list_tokens(*, target: Target = HERE) -> None:
    """List the tokens of the API: whose they are, what they may, and when they were used last.

    Example: `callboard tokens list`
    """
    async with target.client() as runtime:
        found = await runtime.store.tokens.list()
    target.table(
        found,
        _SHOWN,
        ("id", "name", "tenant", "principal", "scopes", "state", "expires", "last used"),
        _row,
        empty="no tokens",
    )


async def revoke(name_or_id: str, /, *, target: Target = HERE) -> int:
    """End a token, with the logins that were made from it: within seconds, on every API process.

    Streams that were opened with it end then, too. The sessions of its principal stay.

    Example: `callboard tokens revoke ada`

    Parameters
    ----------
    name_or_id
        As `callboard tokens list` shows it.
    """
    found = None
    if is_name(name_or_id):
        async with target.client() as runtime:
            found = await runtime.store.tokens.revoke(name_or_id)
    if found is None:
        raise NoDataError(f"there is no token {name_or_id[:100]}")
    return target.tell(picked(found, _SHOWN), f"token {found.name} ({found.id}) is revoked")


def _text(token: ApiToken) -> str:
    end = "" if token.expires_at is None else f", until {token.expires_at:%Y-%m-%d %H:%M} UTC"
    scopes = ", ".join(token.scopes)
    who = f"principal {token.principal} of tenant {token.tenant}"
    return f"token {token.name} ({token.id}): {who}: {scopes}{end}. It is shown this once:"


def _row(token: ApiToken) -> tuple[object, ...]:
    used, end = token.last_used_at, token.expires_at
    return (
        *(token.id, token.name, token.tenant, token.principal, " ".join(token.scopes)),
        *(token.state, "" if end is None else f"{end:%Y-%m-%d %H:%M}"),
        "never" if used is None else f"{ago(used)} ago",
    )
