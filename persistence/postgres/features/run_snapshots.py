"""Snapshots of runs as rows: see `schema/migrations/0041_run_snapshots.sql`."""

from __future__ import annotations

from typing import Final, LiteralString

from typing_extensions import override

from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.stores.flows import NewRunSnapshot, RunSnapshot, RunSnapshotStore, SnapshotFilter
from persistence.postgres.connection.link import Links, Row

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
        args = (tenant, apps, among.tag, word, *_place(after), limit)
        wanted = (
            (SQL_LIST_SNAPSHOTS, *args)
            if among.run is None
            else (SQL_LIST_SNAPSHOTS_OF_RUN, *args, among.run)
        )
        rows = await self._links.fetch("listing snapshots", *wanted)
        return [_snapshot(row) for row in rows]

    @override
    async def remove(self, tenant: str, id: str) -> bool:
        args = (SQL_REMOVE_SNAPSHOT, tenant, id)
        return bool(await self._links.fetch("removing a snapshot", *args))


def _place(after: RunSnapshot | None) -> tuple[object, object]:
    return (None, None) if after is None else (after.created_at, after.id)


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
