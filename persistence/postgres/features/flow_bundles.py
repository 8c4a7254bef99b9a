"""Installed bundles of flows as rows: see `schema/migrations/0040_flow_bundles.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString

from typing_extensions import override

from actors.kernel.stores.flows import FLOWS_SCOPE, FlowBundleRow, FlowBundleStore, NewFlowBundle
from persistence.postgres.connection.link import Row
from persistence.postgres.features.tenant_rows import TenantRows

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
        wanted = (SQL_LIST_FLOWS, tenant) if bundle is None else (SQL_LIST_VERSIONS, tenant, bundle)
        rows = await self._links.fetch("listing flows", *wanted)
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
