"""Tables of operators: audit, tokens of the API, usage, snapshots of runs, installed bundles of flows.

They are in `schema/migrations`: `0042_audit.sql` and `0043_audit_writes.sql`, `0036_owners_and_tokens.sql`,
`0031_usage.sql` (the committer writes the totals), `0041_run_snapshots.sql` and `0040_flow_bundles.sql`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Final, LiteralString

from pydantic_core import to_json
from typing_extensions import override

from actors._kernel.json import decoded_object
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.stores.administration import (
    EACH,
    ERASE_BATCH,
    ApiToken,
    AuditRow,
    AuditStore,
    Erasable,
    EraseCount,
    EraseRequest,
    EraseScope,
    Facts,
    NewAuditRow,
    NewToken,
    TokenState,
    TokenStore,
    UsageBy,
    UsageFilter,
    UsageStore,
    UsageTotal,
)
from actors._kernel.stores.errors import TokenExistsError
from actors._kernel.stores.flows import (
    FLOWS_SCOPE,
    FlowBundleRow,
    FlowBundleStore,
    NewFlowBundle,
    NewRunSnapshot,
    RunSnapshot,
    RunSnapshotStore,
    SnapshotFilter,
)
from actors._kernel.text import check_name_of
from persistence._postgres.connection.link import Links, Row


class TenantRows(Erasable):
    """The `Erasable` of a table of which an erase of a tenant takes all rows of that tenant.

    Args:
        links: Connections, each for one statement at a time.

    Attributes:
        kind: Name of the rows in a report.
        sql_erase: Deletes at most `$2` rows of tenant `$1` and returns their number.
        sql_count: Returns the number of rows of tenant `$1`.
    """

    kind: ClassVar[str]
    sql_erase: ClassVar[LiteralString]
    sql_count: ClassVar[LiteralString]

    def __init__(self, links: Links) -> None:
        self._links = links

    @override
    async def erase(
        self, what: EraseRequest, *, cursor: str | None = None, limit: int = ERASE_BATCH
    ) -> EraseCount:
        del cursor
        if what.scope is not EraseScope.TENANT:
            return EraseCount()
        args = (what.tenant, limit)
        count = await self._links.value(f"erasing {self.kind}", self.sql_erase, *args)
        return EraseCount({self.kind: count}, "+" if count == limit else None)

    @override
    async def count(self, what: EraseRequest) -> Mapping[str, int]:
        if what.scope is not EraseScope.TENANT:
            return {}
        doing = f"counting {self.kind}"
        return {self.kind: await self._links.value(doing, self.sql_count, what.tenant)}


COLUMNS: Final[LiteralString] = """
  a.id, a.tenant, a.principal, a.action, a.thing, a.agent, a.before::text as before, a.after::text as after,
  a.outcome, a.write_id, a.at
"""
# On a conflict the update changes nothing: it makes the statement return the row.
SQL_ADD_AUDIT: Final[LiteralString] = f"""
insert into audit as a (tenant, principal, action, thing, agent, before, after, outcome, write_id)
  values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
  on conflict (tenant, write_id) where write_id is not null do update set write_id = excluded.write_id
  returning {COLUMNS}
"""  # noqa: S608 - constants only
SQL_LIST_AUDIT: Final[LiteralString] = f"""
select {COLUMNS} from audit a where a.tenant = $1 and a.id < coalesce($2::bigint, 9223372036854775807)
  order by a.id desc limit $3
"""  # noqa: S608 - constants only
SQL_LIST_AUDIT_OF_THING: Final[LiteralString] = f"""
select {COLUMNS} from audit a
  where a.tenant = $1 and a.thing = $4 and a.id < coalesce($2::bigint, 9223372036854775807)
  order by a.id desc limit $3
"""  # noqa: S608 - constants only


class PostgresAudit(AuditStore):
    """An `AuditStore` on PostgreSQL.

    Args:
        links: For one statement at a time.
    """

    def __init__(self, links: Links) -> None:
        self._links = links

    @override
    async def add(self, new: NewAuditRow) -> AuditRow:
        args = (
            *(new.tenant, new.principal, new.action, new.thing),
            *(None if new.agent is None else str(new.agent), _text(new.before)),
            *(_text(new.after), new.outcome, new.write_id),
        )
        [row] = await self._links.fetch("writing an audit row", SQL_ADD_AUDIT, *args)
        return _audit_row(row)

    @override
    async def list(
        self, tenant: str, *, thing: str | None = None, after: int | None = None, limit: int = 100
    ) -> list[AuditRow]:
        check_name_of("thing", thing or "")
        args = (tenant, after, limit)
        query = (
            (SQL_LIST_AUDIT, *args) if thing is None else (SQL_LIST_AUDIT_OF_THING, *args, thing)
        )
        return [_audit_row(row) for row in await self._links.fetch("listing audit rows", *query)]


def _text(facts: Facts | None) -> str | None:
    return None if facts is None else to_json(facts).decode()


def _audit_row(row: Row) -> AuditRow:
    agent, before, after = row["agent"], row["before"], row["after"]
    return AuditRow(
        id=row["id"],
        tenant=row["tenant"],
        principal=row["principal"],
        action=row["action"],
        thing=row["thing"],
        agent=None if agent is None else AgentId.parse(agent),
        before=None if before is None else decoded_object(before),
        after=None if after is None else decoded_object(after),
        outcome=row["outcome"],
        write_id=row["write_id"],
        at=row["at"],
    )


TOKEN_COLUMNS: Final[LiteralString] = """
  t.id, t.name, t.tenant, t.principal, t.scopes, t.is_login,
  t.created_at, t.expires_at, t.revoked_at, t.last_used_at
"""  # noqa: S105 - names of columns
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
  returning {TOKEN_COLUMNS}, 'valid' as state
"""  # noqa: S608 - constants only
SQL_FIND_TOKEN: Final[LiteralString] = f"""
with used as (
  update api_tokens u set last_used_at = clock_timestamp()
    where u.digest = $1 and u.revoked_at is null
      and (u.last_used_at is null or u.last_used_at < clock_timestamp() - interval '60 s'))
select {TOKEN_COLUMNS}, {STATE} from api_tokens t where t.digest = $1
"""  # noqa: S608 - constants only
SQL_LIST_TOKENS: Final[LiteralString] = f"""
select {TOKEN_COLUMNS}, {STATE} from api_tokens t where not t.is_login order by t.created_at, t.id
"""  # noqa: S608 - constants only
SQL_REVOKE_TOKEN: Final[LiteralString] = f"""
update api_tokens t set revoked_at = coalesce(t.revoked_at, clock_timestamp())
  where t.id = coalesce(
    (select n.id from api_tokens n where n.name = $1 and n.revoked_at is null and not n.is_login), $1)
  returning {TOKEN_COLUMNS}, 'revoked' as state
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


SQL_SELECT_USAGE: Final[LiteralString] = """
select case when 'tenant' = any($1::text[]) then u.tenant end as tenant,
    case when 'agent' = any($1) then u.agent end as agent,
    case when 'model' = any($1) then u.model end as model,
    case when 'day' = any($1) then u.day end as day,
    sum(u.calls) as calls, sum(u.input) as input, sum(u.output) as output, sum(u.cached) as cached,
    sum(u.cache_written) as cache_written, sum(u.cost_usd) as cost_usd, sum(u.unpriced) as unpriced
  from usage_totals u
  where ($2::text is null or u.tenant = $2) and ($3::text is null or agent_type(u.agent) = $3)
    and ($4::text is null or u.agent = $4) and ($5::text is null or u.model = $5)
    and ($6::date is null or u.day >= $6) and ($7::date is null or u.day <= $7)
  group by 1, 2, 3, 4 order by 1, 2, 3, 4
"""


class PostgresUsage(UsageStore):
    """A `UsageStore` on PostgreSQL."""

    def __init__(self, links: Links) -> None:
        self._links = links

    @override
    async def totals(
        self, wanted: UsageFilter, *, by: Sequence[UsageBy] = EACH
    ) -> list[UsageTotal]:
        rows = await self._links.fetch(
            "reading usage",
            SQL_SELECT_USAGE,
            list(by),
            wanted.tenant,
            wanted.type_,
            None if wanted.agent_id is None else str(wanted.agent_id),
            wanted.model,
            wanted.since,
            wanted.until,
        )
        return [_total(row) for row in rows]


def _total(row: Row) -> UsageTotal:
    agent = row["agent"]
    return UsageTotal(
        tenant=row["tenant"],
        agent_id=None if agent is None else AgentId.parse(agent),
        model=row["model"],
        day=row["day"],
        calls=int(row["calls"]),
        input=int(row["input"]),
        output=int(row["output"]),
        cached=int(row["cached"]),
        cache_written=int(row["cache_written"]),
        cost_usd=row["cost_usd"],
        unpriced=int(row["unpriced"]),
    )


RUN_SNAPSHOT: Final[LiteralString] = """
  s.id, s.run_id, s.agent, s.seq, s.name, s.description, s.tags, s.spec_hash, s.created_by, s.created_at
"""
# The run is locked: an erase takes it first, and then all snapshots that it had.
SQL_PUT_SNAPSHOT: Final[LiteralString] = f"""
with held as materialized (select r.run_id from runs r where r.run_id = $5 and r.agent = $4 for key share)
insert into run_snapshots as s (tenant, id, app, agent, run_id, seq, name, description, folded, tags, spec_hash,
    state, created_by)
  select $1, $2, $3, $4, h.run_id, $6, $7, $8, $9, $10, $11, $12, $13 from held h
  returning {RUN_SNAPSHOT}
"""  # noqa: S608 - constants only
SQL_GET_SNAPSHOT: Final[LiteralString] = f"""
select {RUN_SNAPSHOT}, s.state::text as state from run_snapshots s where s.tenant = $1 and s.id = $2
"""  # noqa: S608 - constants only
_FITS: Final[LiteralString] = """
  s.tenant = $1 and ($2::text[] is null or s.app = any($2)) and ($3::text is null or $3 = any(s.tags))
  and ($4::text is null or strpos(s.folded, $4) > 0)
  and s.created_at <= coalesce($5::timestamptz, 'infinity')
  and ($5::timestamptz is null or s.created_at < $5 or s.id < $6)
"""
_NEWEST: Final[LiteralString] = "order by s.created_at desc, s.id desc limit $7"
SQL_LIST_SNAPSHOTS: Final[LiteralString] = f"""
select {RUN_SNAPSHOT} from run_snapshots s where {_FITS} {_NEWEST}
"""  # noqa: S608 - constants only
SQL_LIST_SNAPSHOTS_OF_RUN: Final[LiteralString] = f"""
select {RUN_SNAPSHOT} from run_snapshots s where s.run_id = $8 and {_FITS} {_NEWEST}
"""  # noqa: S608 - constants only
SQL_REMOVE_SNAPSHOT: Final[LiteralString] = (
    "delete from run_snapshots s where s.tenant = $1 and s.id = $2 returning s.id"
)


class PostgresRunSnapshots(RunSnapshotStore):
    """A `RunSnapshotStore` on PostgreSQL.

    Args:
        links: Connections, each for one statement at a time.
    """

    def __init__(self, links: Links) -> None:
        self._links = links

    @override
    async def put(self, new: NewRunSnapshot, state: str) -> RunSnapshot | None:
        args = (
            *(new.agent_id.tenant, new.id, new.agent_id.type, str(new.agent_id), new.run_id),
            *(new.seq, new.name, new.description, new.folded, [*new.tags], new.spec_hash),
            *(state, new.created_by),
        )
        rows = await self._links.fetch("keeping a snapshot", SQL_PUT_SNAPSHOT, *args)
        return _snapshot(rows[0]) if rows else None

    @override
    async def get(self, tenant: str, id: str) -> tuple[RunSnapshot, str] | None:
        rows = await self._links.fetch("reading a snapshot", SQL_GET_SNAPSHOT, tenant, id)
        return (_snapshot(rows[0]), rows[0]["state"]) if rows else None

    @override
    async def list(
        self, tenant: str, among: SnapshotFilter, *, limit: int = 100
    ) -> list[RunSnapshot]:
        apps = None if among.apps is None else [*among.apps]
        word, after = among.query and among.query.casefold(), among.after
        position = (None, None) if after is None else (after.created_at, after.id)
        args = (tenant, apps, among.tag, word, *position, limit)
        statement = (
            (SQL_LIST_SNAPSHOTS, *args)
            if among.run is None
            else (SQL_LIST_SNAPSHOTS_OF_RUN, *args, among.run)
        )
        rows = await self._links.fetch("listing snapshots", *statement)
        return [_snapshot(row) for row in rows]

    @override
    async def remove(self, tenant: str, id: str) -> bool:
        args = (SQL_REMOVE_SNAPSHOT, tenant, id)
        return bool(await self._links.fetch("removing a snapshot", *args))


def _snapshot(row: Row) -> RunSnapshot:
    return RunSnapshot(
        id=row["id"],
        run_id=RunId(row["run_id"]),
        agent_id=AgentId.parse(row["agent"]),
        seq=row["seq"],
        name=row["name"],
        description=row["description"],
        tags=tuple(row["tags"]),
        spec_hash=row["spec_hash"],
        created_by=row["created_by"],
        created_at=row["created_at"],
    )


FLOW_BUNDLE: Final[LiteralString] = """
  f.bundle, f.version, f.hash, f.artifact, f.size_bytes, f.manifest::text as manifest,
  f.installed_by, f.installed_at
"""
# The artifact is locked first, here and in SQL_REMOVE_FLOW: it cannot be collected meanwhile, and an install
# and a removal cannot wait for each other.
SQL_PUT_FLOW: Final[LiteralString] = """
with held as materialized (
  select a.id from artifacts a where a.tenant = $1 and a.scope = $2 and a.id = $6 for update),
put as (
  insert into flow_bundles as f (tenant, bundle, version, hash, artifact, size_bytes, manifest, installed_by)
    select $1, $3, $4, $5, h.id, $7, $8, $9 from held h
    on conflict (tenant, bundle, version) do nothing returning f.artifact)
select count(*)::int as held, (select pin_artifact($1, $2, p.artifact, $10) from put p) as is_put from held
"""
SQL_GET_FLOW: Final[LiteralString] = f"""
select {FLOW_BUNDLE} from flow_bundles f where f.tenant = $1 and f.bundle = $2 and f.version = $3
"""  # noqa: S608 - constants only
SQL_LIST_FLOWS: Final[LiteralString] = f"""
select {FLOW_BUNDLE} from flow_bundles f where f.tenant = $1
"""  # noqa: S608 - constants only
SQL_LIST_VERSIONS: Final[LiteralString] = f"""
select {FLOW_BUNDLE} from flow_bundles f where f.tenant = $1 and f.bundle = $2
"""  # noqa: S608 - constants only
# A colon ends each beginning of an address, and a semicolon comes next.
SQL_REMOVE_FLOW: Final[LiteralString] = """
with found as materialized (
  select f.artifact from flow_bundles f where f.tenant = $1 and f.bundle = $3 and f.version = $4),
held as materialized (
  select a.id from artifacts a
    where a.tenant = $1 and a.scope = $2 and a.id = (select o.artifact from found o) for update),
busy as materialized (
  select coalesce(sum(o.n), 0)::int as n from unnest($5::text[]) k(head)
    cross join lateral (select count(*) as n from runs r
      where r.agent >= k.head and r.agent < left(k.head, -1) || ';' and r.ended_at is null offset 0) o),
gone as (
  delete from flow_bundles f
    where f.tenant = $1 and f.bundle = $3 and f.version = $4
      and (select b.n from busy b) = 0 and (select count(*) from held) >= 0
    returning f.artifact)
select b.n, exists (select from found) as was_there,
    (select unpin_artifact($1, $2, g.artifact, $6)::text from gone g) as freed
  from busy b
"""
SQL_ERASE_FLOWS: Final[LiteralString] = """
with gone as (delete from flow_bundles f where f.ctid = any(array(
    select n.ctid from flow_bundles n where n.tenant = $1
      order by n.tenant, n.bundle, n.version limit $2 for update)) returning 1)
select count(*)::int as bundles from gone
"""
SQL_COUNT_FLOWS: Final[LiteralString] = (
    "select count(*)::int as bundles from flow_bundles f where f.tenant = $1"
)


class PostgresFlowBundles(FlowBundleStore, TenantRows):
    """A `FlowBundleStore` on PostgreSQL. An erase of a tenant takes its bundles, and artifacts with their pins.

    Args:
        links: Connections, each for one statement at a time.
    """

    erased_as, kind = "flows", "bundles"
    sql_erase, sql_count = SQL_ERASE_FLOWS, SQL_COUNT_FLOWS

    @override
    async def put(self, tenant: str, new: NewFlowBundle) -> FlowBundleRow | None:
        args = (
            *(tenant, FLOWS_SCOPE, new.bundle, new.version, new.hash, new.artifact),
            *(new.size_bytes, new.manifest, new.installed_by, new.ref),
        )
        [row] = await self._links.fetch("installing flows", SQL_PUT_FLOW, *args)
        return await self.get(tenant, new.bundle, new.version) if row["held"] else None

    @override
    async def get(self, tenant: str, bundle: str, version: str) -> FlowBundleRow | None:
        rows = await self._links.fetch("reading flows", SQL_GET_FLOW, tenant, bundle, version)
        return _bundle(rows[0]) if rows else None

    @override
    async def list(self, tenant: str, bundle: str | None = None) -> list[FlowBundleRow]:
        query = (SQL_LIST_FLOWS, tenant) if bundle is None else (SQL_LIST_VERSIONS, tenant, bundle)
        rows = await self._links.fetch("listing flows", *query)
        return [_bundle(row) for row in rows]

    @override
    async def remove(
        self, tenant: str, bundle: str, version: str, *, run_keys: Sequence[str]
    ) -> int | None:
        args = (tenant, FLOWS_SCOPE, bundle, version, [*run_keys], f"{bundle}@{version}")
        [row] = await self._links.fetch("removing flows", SQL_REMOVE_FLOW, *args)
        open_count: int = row["n"]
        return open_count if row["was_there"] else None


def _bundle(row: Row) -> FlowBundleRow:
    return FlowBundleRow(
        bundle=row["bundle"],
        version=row["version"],
        hash=row["hash"],
        artifact=row["artifact"],
        size_bytes=row["size_bytes"],
        manifest=row["manifest"],
        installed_by=row["installed_by"],
        installed_at=row["installed_at"],
    )
