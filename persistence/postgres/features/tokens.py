"""Tokens of the API as rows: see `schema/migrations/0036_owners_and_tokens.sql`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, LiteralString

from typing_extensions import override

from actors.kernel.stores.administration import ApiToken, NewToken, TokenState, TokenStore
from actors.kernel.stores.errors import TokenExistsError
from persistence.postgres.connection.link import Row
from persistence.postgres.features.tenant_rows import TenantRows

COLUMNS: Final[LiteralString] = """
  t.id, t.name, t.tenant, t.principal, t.scopes, t.is_login,
  t.created_at, t.expires_at, t.revoked_at, t.last_used_at
"""
STATE: Final[LiteralString] = """
  case when t.revoked_at is not null or exists (
      select from api_tokens p where p.id = t.parent and p.revoked_at is not null) then 'revoked'
    when t.expires_at <= clock_timestamp() then 'expired' else 'valid' end as state
"""
SQL_CREATE_TOKEN: Final[LiteralString] = f"""
with gone as (delete from api_tokens o
    where o.tenant = $4 and o.principal = $5 and o.is_login and o.expires_at < statement_timestamp())
insert into api_tokens as t (id, digest, name, tenant, principal, scopes, expires_at, is_login, parent)
  values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
  on conflict (name) where revoked_at is null and not is_login do nothing
  returning {COLUMNS}, 'valid' as state
"""  # noqa: S608 - constants only
SQL_FIND_TOKEN: Final[LiteralString] = f"""
with used as (
  update api_tokens u set last_used_at = clock_timestamp()
    where u.digest = $1 and u.revoked_at is null
      and (u.last_used_at is null or u.last_used_at < clock_timestamp() - interval '60 s'))
select {COLUMNS}, {STATE} from api_tokens t where t.digest = $1
"""  # noqa: S608 - constants only
SQL_LIST_TOKENS: Final[LiteralString] = f"""
select {COLUMNS}, {STATE} from api_tokens t where not t.is_login order by t.created_at, t.id
"""  # noqa: S608 - constants only
SQL_REVOKE_TOKEN: Final[LiteralString] = f"""
update api_tokens t set revoked_at = coalesce(t.revoked_at, clock_timestamp())
  where t.id = coalesce(
    (select n.id from api_tokens n where n.name = $1 and n.revoked_at is null and not n.is_login), $1)
  returning {COLUMNS}, 'revoked' as state
"""  # noqa: S608 - constants only
SQL_TOKENS_OVER: Final[LiteralString] = f"""
select w.id, coalesce(k.state, 'revoked') as state from unnest($1::text[]) w(id)
  left join lateral (select {STATE} from api_tokens t where t.id = w.id) k on true
  where k.state is distinct from 'valid'
"""  # noqa: S608 - constants only
SQL_ERASE_TOKENS: Final[LiteralString] = """
with gone as (delete from api_tokens t where t.ctid = any(array(
    select n.ctid from api_tokens n where n.tenant = $1 limit $2 for update)) returning 1)
select count(*)::int as tokens from gone
"""
SQL_COUNT_TOKENS: Final[LiteralString] = (
    "select count(*)::int as tokens from api_tokens t where t.tenant = $1"
)


class PostgresTokens(TokenStore, TenantRows):
    """A `TokenStore` on PostgreSQL. An erase of a tenant takes its tokens.

    Args:
        links: Connections, each for one statement at a time.
    """

    erased_as, kind = "tokens", "tokens"
    sql_erase, sql_count = SQL_ERASE_TOKENS, SQL_COUNT_TOKENS

    @override
    async def create(self, new: NewToken) -> ApiToken:
        args = (
            *(new.id, new.digest, new.name, new.tenant, new.principal, [*new.scopes]),
            *(new.expires_at, new.is_login, new.parent),
        )
        rows = await self._links.fetch("creating a token", SQL_CREATE_TOKEN, *args)
        if not rows:
            raise TokenExistsError(new.name)
        return _token(rows[0])

    @override
    async def find(self, digest: str) -> ApiToken | None:
        rows = await self._links.fetch("reading a token", SQL_FIND_TOKEN, digest)
        return _token(rows[0]) if rows else None

    @override
    async def list(self) -> list[ApiToken]:
        rows = await self._links.fetch("listing tokens", SQL_LIST_TOKENS)
        return [_token(row) for row in rows]

    @override
    async def revoke(self, name_or_id: str) -> ApiToken | None:
        rows = await self._links.fetch("revoking a token", SQL_REVOKE_TOKEN, name_or_id)
        return _token(rows[0]) if rows else None

    @override
    async def over(self, ids: Collection[str]) -> dict[str, TokenState]:
        rows = await self._links.fetch("reading tokens", SQL_TOKENS_OVER, [*ids])
        return {row["id"]: row["state"] for row in rows}


def _token(row: Row) -> ApiToken:
    return ApiToken(
        id=row["id"],
        name=row["name"],
        tenant=row["tenant"],
        principal=row["principal"],
        scopes=tuple(row["scopes"]),
        is_login=row["is_login"],
        state=row["state"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        last_used_at=row["last_used_at"],
    )
