"""The checks of PostgreSQL, the hosts and the waiting work. They only read, and need no tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString, TypeAlias

from actors._kernel.json import JsonValue
from actors._runtime.loop.clock import SystemClock
from compose._diagnosis.finding import Finding, is_this_machine, judge
from persistence._migrate import stale_functions
from persistence._postgres.data.indexes import EXACT_ROWS, SearchIndexes, SearchScope
from persistence._schema_files import known_functions, known_migrations

if TYPE_CHECKING:
    import asyncpg

    Data: TypeAlias = dict[str, JsonValue]
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

OLDEST_SERVER: Final = 14
MOST_SKEW_S: Final = 2.0
_UNABLE: Final = {"broker": "no broker", "blocked": "its event loop is blocked"}
_SERVE: Final = "start a host that serves these types"
_WRONG_CLOCK: Final = (
    "timers use the server's clock, log lines do not: correct the wrong clock, and run NTP on all"
)

SQL_SERVER: Final[LiteralString] = """
select current_setting('server_version') as version, current_setting('server_version_num')::int as number,
  current_setting('fsync') as fsync, current_setting('synchronous_commit') as synchronous_commit,
  clock_timestamp() as now, to_regclass('schema_migrations') is not null as has_tables,
  host(inet_server_addr()) as address, current_user as role,
  (select rolsuper from pg_roles where rolname = current_user) as is_superuser,
  (select ssl from pg_stat_ssl where pid = pg_backend_pid()) as is_encrypted
"""
SQL_VERSIONS: Final[LiteralString] = "select version from schema_migrations"
SQL_DEPLOYMENT: Final[LiteralString] = "select id from deployment"
SQL_HAS_DEPLOYMENT: Final[LiteralString] = "select to_regclass('deployment') is not null"
SQL_HOSTS: Final[LiteralString] = """
select h.incarnation, extract(epoch from h.expires_at - clock_timestamp())::float8 as left_s,
    count(s.shard) as shards, h.clock_ahead_s, h.unable
  from hosts h left join shards s on s.owner = h.incarnation
  where h.expires_at > clock_timestamp()
  group by h.incarnation, h.expires_at, h.clock_ahead_s, h.unable order by 1
"""
# Waiting runs and messages by agent type, and how many of them no live host serves. A host may own a shard
# whose types it does not serve, to read the shard's messages.
SQL_WAITING: Final[LiteralString] = """
with served as (
  select unnest(h.types) as type, null as shard from hosts h where h.expires_at > clock_timestamp()
  union select null, unnest(h.shards) from hosts h where h.expires_at > clock_timestamp())
select w.type, count(*)::int as waiting,
    (count(*) filter (where not exists (select 1 from served s
      where s.type = w.type or s.shard = w.shard)))::int as unserved
  from (
    select agent_type(r.agent) as type, r.shard from runs r where r.ended_at is null
    union all
    select agent_type(i.agent), i.shard from inbox i where i.state = 'p') w
  group by w.type order by w.type
"""
SQL_SHARDS: Final[LiteralString] = """
select s.type, count(*)::int as shards,
    (count(*) filter (where not exists (select 1 from hosts h
      where h.incarnation = s.owner and h.expires_at > clock_timestamp())))::int as ownerless
  from shards s group by s.type order by s.type
"""
SQL_PARKED: Final[LiteralString] = """
select r.parked as reason, count(*)::int as runs, min(r.run_id) as example from runs r
  where r.parked is not null and r.ended_at is null group by r.parked order by r.parked
"""
SQL_LETTERS: Final[LiteralString] = (
    "select count(*)::int from dead_letters where redriven_at is null"
)
# A store creates its table of embeddings at its first use, with pgvector's type if pgvector is available.
SQL_EMBEDDINGS: Final[LiteralString] = """
select format_type(a.atttypid, null) as type, a.attrelid::regclass::text as table,
    (select e.extversion from pg_extension e where e.extname = 'vector') as installed,
    exists (select from pg_available_extensions e where e.name = 'vector') as is_available
  from pg_attribute a
  where a.attname = 'embedding' and a.attrelid in (to_regclass('vector_documents'), to_regclass('memories'))
  order by 2
"""
SQL_MOST_EMBEDDINGS: Final[LiteralString] = """
select coalesce(max(c.reltuples), 0)::bigint from pg_class c
  where c.oid in (to_regclass('vector_documents'), to_regclass('memories'))
"""

SQL_HAS_CYPHER: Final[LiteralString] = "select to_regclass('cypher_graphs') is not null"
SQL_CYPHER: Final[LiteralString] = """
select count(*)::int as graphs,
    (select e.extversion from pg_extension e where e.extname = 'age') as installed,
    exists (select from pg_available_extensions e where e.name = 'age') as is_available
  from cypher_graphs
"""


async def diagnose_postgres(connection: Connection) -> list[Finding]:
    """Return the findings, the most important first."""
    before = SystemClock().now()
    server = await connection.fetchrow(SQL_SERVER)
    after = SystemClock().now()
    assert server is not None
    # The server read its clock about halfway, so a slow connection does not count as a wrong clock.
    midpoint = before + (after - before) / 2
    is_here = server["address"] is None or is_this_machine(server["address"])
    findings = [
        _server(server["version"], server["number"]),
        _durability(server["fsync"], server["synchronous_commit"]),
        _skew((server["now"] - midpoint).total_seconds()),
        _encryption(is_encrypted=server["is_encrypted"], is_here=is_here),
        _role(server["role"], is_superuser=server["is_superuser"], is_here=is_here),
    ]
    if not server["has_tables"]:
        findings.append(_schema(set(), []))
        return findings
    applied_versions = {row["version"] for row in await connection.fetch(SQL_VERSIONS)}
    functions = await stale_functions(connection, known_functions())
    findings.append(_schema(applied_versions, [function.file for function in functions]))
    # The queries below need the tables and functions of this release.
    if findings[-1].level == "wrong":
        return findings
    waiting_rows_by_type = {row["type"]: row for row in await connection.fetch(SQL_WAITING)}
    hosts = await connection.fetch(SQL_HOSTS)
    findings.append(_hosts(hosts, sum(row["waiting"] for row in waiting_rows_by_type.values())))
    findings.append(_shards(await connection.fetch(SQL_SHARDS), is_served=bool(hosts)))
    findings.append(
        _unserved({name: row["unserved"] or 0 for name, row in waiting_rows_by_type.items()})
    )
    findings.append(_parked(await connection.fetch(SQL_PARKED)))
    findings.append(_dead_letters(await connection.fetchval(SQL_LETTERS)))
    if embeddings := await connection.fetch(SQL_EMBEDDINGS):
        findings.append(_embeddings(embeddings))
        if await connection.fetchval(SQL_MOST_EMBEDDINGS) > EXACT_ROWS:
            findings.append(_searches(await SearchIndexes(connection).scopes(rows=EXACT_ROWS)))
    if await connection.fetchval(SQL_HAS_CYPHER):
        [cypher] = await connection.fetch(SQL_CYPHER)
        findings += [_cypher(cypher)] if cypher["graphs"] else []
    return findings


async def deployment_of(connection: Connection) -> str | None:
    """Return the id of the database, which its streams have too, or None before the first migration."""
    if not await connection.fetchval(SQL_HAS_DEPLOYMENT):
        return None
    deployment: str | None = await connection.fetchval(SQL_DEPLOYMENT)
    return deployment


def _server(version: str, number: int) -> Finding:
    is_old = number < OLDEST_SERVER * 10_000
    remedy = f"Callboard is tested with {OLDEST_SERVER} and newer: upgrade the server"
    data: Data = {"version": version}
    return judge("server", f"PostgreSQL {version}", data, wrong=is_old, remedy=remedy)


def _durability(fsync: str, synchronous_commit: str) -> Finding:
    is_safe = fsync == "on" and synchronous_commit != "off"
    text = f"fsync {fsync}, synchronous_commit {synchronous_commit}"
    data: Data = {"fsync": fsync, "synchronous_commit": synchronous_commit}
    remedy = "a crash may lose what was committed: set both to on"
    return judge("durability", text, data, wrong=not is_safe, remedy=remedy)


def _skew(skew_s: float) -> Finding:
    text = f"the server's clock is {abs(skew_s):.2f} s {'ahead' if skew_s > 0 else 'behind'}"
    data: Data = {"skew_s": round(skew_s, 3)}
    is_wrong = abs(skew_s) > MOST_SKEW_S
    return judge("clock", text, data, wrong=is_wrong, remedy=_WRONG_CLOCK)


def _encryption(*, is_encrypted: bool, is_here: bool) -> Finding:
    off_text = "off, and not needed: no network is between" if is_here else "off"
    return judge(
        "encryption",
        "on" if is_encrypted else off_text,
        {"encrypted": is_encrypted},
        note=not is_encrypted and not is_here,
        remedy="unless the network is yours alone: ?sslmode=verify-full&sslrootcert=/path/ca.pem",
    )


def _role(role: str, *, is_superuser: bool, is_here: bool) -> Finding:
    text = f"{role}, a superuser: a compromised host exposes the server" if is_superuser else role
    return judge(
        "role",
        text,
        {"role": role, "superuser": is_superuser},
        wrong=is_superuser and not is_here,
        note=is_superuser,
        remedy="a role that owns the schema and nothing else, see docs/operations.md",
    )


def _schema(applied_versions: set[int], stale_files: list[str]) -> Finding:
    migrations = known_migrations()
    version, newest = max(applied_versions, default=0), migrations[-1].version
    missing_steps = [step for step in migrations if step.version not in applied_versions]
    missing_names = [*(step.name for step in missing_steps), *stale_files]
    is_wrong = bool(stale_files) or not all(step.can_wait for step in missing_steps)
    text = f"version {version}"
    if missing_names:
        text += f" of {newest}" if is_wrong else ""
        text += f"; missing: {', '.join(missing_names)}"
    elif version > newest:
        text += f"; this release knows {newest}"
    return judge(
        "schema",
        text if applied_versions else "there are no tables",
        {"version": version, "newest": newest, "missing": [*missing_names]},
        wrong=is_wrong,
        note=bool(missing_names) or version > newest,
        remedy="callboard migrate" if missing_names else "",
    )


def _hosts(rows: list[asyncpg.Record], waiting_count: int) -> Finding:
    is_skewed = any(_is_skewed(row) for row in rows)
    hosts: list[JsonValue] = [
        {
            "host": row["incarnation"],
            "shards": row["shards"],
            "lease_left_s": round(row["left_s"], 3),
            "unable": row["unable"],
            "clock_ahead_s": row["clock_ahead_s"] and round(row["clock_ahead_s"], 3),
        }
        for row in rows
    ]
    start_remedy = "start one: callboard host MODULE:ATTR" if waiting_count else ""
    return judge(
        "hosts",
        ", ".join(map(_host, rows)) or f"none alive, {waiting_count} run(s) or messages wait",
        {"hosts": hosts},
        wrong=is_skewed if rows else waiting_count > 0,
        note=not rows,
        remedy=_WRONG_CLOCK if is_skewed else start_remedy,
    )


def _host(row: asyncpg.Record) -> str:
    notes = f", clock {row['clock_ahead_s']:+.1f} s" if _is_skewed(row) else ""
    notes += f", {_UNABLE[row['unable']]}" if row["unable"] in _UNABLE else ""
    return f"{row['incarnation'][:8]} ({row['shards']} shards, lease {row['left_s']:.1f} s{notes})"


def _is_skewed(row: asyncpg.Record) -> bool:
    return row["clock_ahead_s"] is not None and abs(row["clock_ahead_s"]) > MOST_SKEW_S


def _shards(rows: list[asyncpg.Record], *, is_served: bool) -> Finding:
    counts_by_type = {row["type"]: row["ownerless"] for row in rows if row["ownerless"]}
    total = sum(row["shards"] for row in rows)
    return judge(
        "shards",
        f"{total}; without a living owner: {_by_type(counts_by_type)}",
        {"shards": total, "ownerless": dict(counts_by_type)},
        wrong=bool(counts_by_type) and is_served,
        note=bool(counts_by_type),
        remedy=_SERVE if is_served else "",
    )


def _unserved(counts_by_type: dict[str, int]) -> Finding:
    positive_counts_by_type = {name: count for name, count in counts_by_type.items() if count}
    text = f"runs and messages that no host serves: {_by_type(positive_counts_by_type)}"
    data: Data = {"unserved": dict(positive_counts_by_type)}
    return judge("unserved", text, data, wrong=bool(positive_counts_by_type), remedy=_SERVE)


def _by_type(counts_by_type: dict[str, int]) -> str:
    return ", ".join(f"{count} of type {name}" for name, count in counts_by_type.items()) or "none"


def _parked(rows: list[asyncpg.Record]) -> Finding:
    reasons_text = ", ".join(
        f"{row['runs']} {row['reason']} (such as {row['example']})" for row in rows
    )
    data: Data = {"parked": {row["reason"]: row["runs"] for row in rows}}
    remedy = "callboard runs list --parked, then callboard runs resolve"
    text = f"runs that wait for an operator: {reasons_text or 'none'}"
    return judge("parked", text, data, wrong=bool(rows), remedy=remedy)


def _dead_letters(count: int) -> Finding:
    remedy = "callboard dlq list, then callboard dlq redrive"
    data: Data = {"dead_letters": count}
    return judge("dead letters", str(count or "none"), data, wrong=count > 0, remedy=remedy)


def _embeddings(rows: list[asyncpg.Record]) -> Finding:
    """Return a finding about the type of the embeddings. `rows` has one row for each table."""
    arrays = [row["table"] for row in rows if row["type"] == "real[]"]
    version, is_available = rows[0]["installed"], rows[0]["is_available"]
    text = f"pgvector {version}"
    if arrays:
        text = (
            f"arrays in {', '.join(arrays)}: a search takes about 30 times as long as with pgvector"
        )
    install_step = "install pgvector on the server, then " if not is_available else ""
    create_step = "" if version else "as a superuser `create extension vector schema public`, then "
    remedy = f"{install_step}{create_step}recreate the tables, see docs/memory.md"
    data: Data = {"pgvector": version, "arrays": [*arrays]}
    return judge("embeddings", text, data, note=bool(arrays), remedy=remedy)


def _cypher(row: asyncpg.Record) -> Finding:
    """Return a finding about Apache AGE, without which Cypher queries of tenants' graphs fail."""
    version, graphs = row["installed"], row["graphs"]
    install_step = "" if row["is_available"] else "install Apache AGE on the server, then "
    create_step = "create extension age; grant usage on schema ag_catalog to the hosts' user"
    text = f"Apache AGE {version}, {graphs} graph(s)" if version else "no Apache AGE: Cypher fails"
    data: Data = {"age": version, "graphs": graphs}
    return judge(
        "cypher",
        text,
        data,
        wrong=version is None,
        remedy=f"{install_step}as a superuser `{create_step}`",
    )


def _searches(scopes: list[SearchScope]) -> Finding:
    """Return a finding about large scopes without an index, or with an index that a crash left half built."""
    slow_scopes = [
        scope for scope in scopes if scope.is_indexable and scope.state in {"none", "broken"}
    ]
    text = (
        "large collections and memory scopes that are searched without an index: "
        f"{len(slow_scopes) or 'none'}"
    )
    if slow_scopes:
        text += (
            f" (such as {slow_scopes[0].store} {slow_scopes[0].name!r} of {slow_scopes[0].tenant}: "
            f"{slow_scopes[0].rows})"
        )
    data: Data = {"large": len(scopes), "without_index": len(slow_scopes)}
    return judge("searches", text, data, note=bool(slow_scopes), remedy="callboard indexes build")
