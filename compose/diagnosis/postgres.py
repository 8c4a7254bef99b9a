"""PostgreSQL, the hosts and what waits, asked in one go. Reads only, and needs no tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString, TypeAlias

from actors.runtime.clock import SystemClock
from compose.diagnosis.finding import Finding
from persistence.migrate import known_migrations

if TYPE_CHECKING:
    import asyncpg

    from actors.kernel.json import JsonValue
    from compose.diagnosis.finding import Level

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

OLDEST_SERVER: Final = 14
MOST_SKEW_S: Final = 2.0
_UNABLE: Final = {"broker": "no broker", "blocked": "its event loop is blocked"}
_WRONG_CLOCK: Final = (
    "timers go by the server's clock, log lines do not: set the wrong one, and run NTP on all"
)

SQL_SERVER: Final[LiteralString] = """
select current_setting('server_version') as version, current_setting('server_version_num')::int as number,
  current_setting('fsync') as fsync, current_setting('synchronous_commit') as synchronous_commit,
  clock_timestamp() as now, to_regclass('schema_migrations') is not null as has_tables
"""
SQL_VERSION: Final[LiteralString] = "select max(version) from schema_migrations"
SQL_DEPLOYMENT: Final[LiteralString] = "select id from deployment"
SQL_HAS_DEPLOYMENT: Final[LiteralString] = "select to_regclass('deployment') is not null"
SQL_HOSTS: Final[LiteralString] = """
select h.incarnation, extract(epoch from h.expires_at - clock_timestamp())::float8 as left_s,
    count(s.shard) as shards, h.clock_ahead_s, h.unable
  from hosts h left join shards s on s.owner = h.incarnation
  where h.expires_at > clock_timestamp()
  group by h.incarnation, h.expires_at, h.clock_ahead_s, h.unable order by 1
"""
# What waits, by agent type, and how much of it nobody alive serves: a host may own what it does not
# serve, to read its mail.
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


async def diagnose_postgres(connection: Connection) -> list[Finding]:
    """Return what was found, in the order in which it matters."""
    asked = SystemClock().now()
    server = await connection.fetchrow(SQL_SERVER)
    answered = SystemClock().now()
    assert server is not None
    halfway = asked + (answered - asked) / 2
    found = [
        _server(server["version"], server["number"]),
        _durability(server["fsync"], server["synchronous_commit"]),
        _skew((server["now"] - halfway).total_seconds()),
    ]
    if not server["has_tables"]:
        found.append(_schema(0))
        return found
    found.append(_schema(await connection.fetchval(SQL_VERSION) or 0))
    if found[-1].level == "wrong":
        return found
    waiting = {row["type"]: row for row in await connection.fetch(SQL_WAITING)}
    hosts = await connection.fetch(SQL_HOSTS)
    found.append(_hosts(hosts, sum(row["waiting"] for row in waiting.values())))
    found.append(_shards(await connection.fetch(SQL_SHARDS), is_served=bool(hosts)))
    found.append(_unserved({name: row["unserved"] or 0 for name, row in waiting.items()}))
    found.append(_parked(await connection.fetch(SQL_PARKED)))
    found.append(_letters(await connection.fetchval(SQL_LETTERS)))
    return found


async def deployment_of(connection: Connection) -> str | None:
    """Return the id of the database, which its streams carry; None before it is migrated."""
    if not await connection.fetchval(SQL_HAS_DEPLOYMENT):
        return None
    found: str | None = await connection.fetchval(SQL_DEPLOYMENT)
    return found


def _server(version: str, number: int) -> Finding:
    is_old = number < OLDEST_SERVER * 10_000
    remedy = f"Callboard is tested with {OLDEST_SERVER} and newer: upgrade the server"
    return Finding(
        check="server", level="wrong" if is_old else "ok", found=f"PostgreSQL {version}",
        remedy=remedy if is_old else "", data={"version": version},
    )  # fmt: skip


def _durability(fsync: str, synchronous: str) -> Finding:
    is_safe = fsync == "on" and synchronous != "off"
    return Finding(
        check="durability", level="ok" if is_safe else "wrong",
        found=f"fsync {fsync}, synchronous_commit {synchronous}",
        remedy="" if is_safe else "a crash may lose what was committed: set both to on",
        data={"fsync": fsync, "synchronous_commit": synchronous},
    )  # fmt: skip


def _skew(skew_s: float) -> Finding:
    is_wrong = abs(skew_s) > MOST_SKEW_S
    return Finding(
        check="clock", level="wrong" if is_wrong else "ok",
        found=f"the server's clock is {abs(skew_s):.2f} s {'ahead' if skew_s > 0 else 'behind'}",
        remedy=_WRONG_CLOCK if is_wrong else "",
        data={"skew_s": round(skew_s, 3)},
    )  # fmt: skip


def _schema(version: int) -> Finding:
    newest = known_migrations()[-1].version
    data: dict[str, JsonValue] = {"version": version, "newest": newest}
    if version == newest:
        return Finding(check="schema", level="ok", found=f"version {version}", data=data)
    if version > newest:
        found = f"version {version}; this release knows {newest}"
        return Finding(check="schema", level="note", found=found, data=data)
    found = f"version {version} of {newest}" if version else "there are no tables"
    return Finding(
        check="schema", level="wrong", found=found, remedy="callboard migrate", data=data
    )


def _hosts(rows: list[asyncpg.Record], waiting: int) -> Finding:
    named = [_host(row) for row in rows]
    is_wrong = any(_is_skewed(row) for row in rows)
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
    if rows:
        level: Level = "wrong" if is_wrong else "ok"
    else:
        level = "wrong" if waiting else "note"
    remedy = _WRONG_CLOCK if is_wrong else "start one: callboard host MODULE:ATTR"
    return Finding(
        check="hosts", level=level, found=", ".join(named) or f"none alive, {waiting} run(s) or messages wait",
        remedy=remedy if level == "wrong" else "", data={"hosts": hosts},
    )  # fmt: skip


def _host(row: asyncpg.Record) -> str:
    more = f", clock {row['clock_ahead_s']:+.1f} s" if _is_skewed(row) else ""
    more += f", {_UNABLE[row['unable']]}" if row["unable"] in _UNABLE else ""
    return f"{row['incarnation'][:8]} ({row['shards']} shards, lease {row['left_s']:.1f} s{more})"


def _is_skewed(row: asyncpg.Record) -> bool:
    return row["clock_ahead_s"] is not None and abs(row["clock_ahead_s"]) > MOST_SKEW_S


def _shards(rows: list[asyncpg.Record], *, is_served: bool) -> Finding:
    lost = {row["type"]: row["ownerless"] for row in rows if row["ownerless"]}
    total = sum(row["shards"] for row in rows)
    words = ", ".join(f"{count} of type {name}" for name, count in lost.items())
    level: Level = "ok"
    if lost:
        level = "wrong" if is_served else "note"
    return Finding(
        check="shards", level=level, found=f"{total}; without a living owner: {words or 'none'}",
        remedy="start a host that serves these types" if level == "wrong" else "",
        data={"shards": total, "ownerless": dict(lost)},
    )  # fmt: skip


def _unserved(by_type: dict[str, int]) -> Finding:
    waiting = {name: count for name, count in by_type.items() if count}
    words = ", ".join(f"{count} of type {name}" for name, count in waiting.items())
    return Finding(
        check="unserved", level="wrong" if waiting else "ok",
        found=f"runs and messages that nobody takes: {words or 'none'}",
        remedy="start a host that serves these types" if waiting else "", data={"unserved": dict(waiting)},
    )  # fmt: skip


def _parked(rows: list[asyncpg.Record]) -> Finding:
    words = ", ".join(f"{row['runs']} {row['reason']} (such as {row['example']})" for row in rows)
    counts: dict[str, JsonValue] = {row["reason"]: row["runs"] for row in rows}
    return Finding(
        check="parked", level="wrong" if rows else "ok", found=f"runs that wait for you: {words or 'none'}",
        remedy="callboard runs list --parked, then callboard runs resolve" if rows else "",
        data={"parked": counts},
    )  # fmt: skip


def _letters(count: int) -> Finding:
    return Finding(
        check="dead letters", level="wrong" if count else "ok", found=str(count or "none"),
        remedy="callboard dlq list, then callboard dlq redrive" if count else "", data={"dead_letters": count},
    )  # fmt: skip
