"""What the servers do for an operation: CPU by process, statements within functions, rows, bytes of WAL."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, LiteralString

import asyncpg

from compose import embedded
from tests.benchmarks.outside import Servers

if TYPE_CHECKING:
    from collections.abc import Iterator

TICKS: Final = os.sysconf("SC_CLK_TCK")
PRELOADED: Final = "pg_stat_statements"
GONE_S: Final = 0.02

SQL_ROWS: Final[LiteralString] = """
select coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint
  from pg_stat_user_tables where schemaname = $1 and relname <> 'hosts'
"""
"""Without heartbeats: on a busy machine one falls into most plays."""
SQL_WAL: Final[LiteralString] = """
select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint as bytes,
  (select coalesce(sum(fsyncs), 0)::bigint from pg_stat_io where object = 'wal') as syncs
"""
SQL_SESSIONS: Final[LiteralString] = """
select count(*) from pg_stat_activity where application_name like 'callboard %'
"""
SQL_FUNCTIONS: Final[LiteralString] = """
select funcname as name, calls, total_time as ms, self_time as own_ms
  from pg_stat_user_functions where schemaname = $1
"""
SQL_STATEMENTS: Final[LiteralString] = """
select toplevel, sum(calls)::bigint as calls, sum(total_exec_time + total_plan_time) as ms,
    sum(rows)::bigint as rows, regexp_replace(left(query, 400), '\\s+', ' ', 'g') as text
  from pg_stat_statements s join pg_database d on d.oid = s.dbid and d.datname = current_database()
  group by toplevel, text order by ms desc
"""


def cpu_s() -> dict[str, float]:
    """Return the CPU seconds of the processes that this one started, by program; ten milliseconds fine."""
    parents: dict[int, int] = {}
    cpu_by_pid: dict[int, tuple[str, float]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue  # it has just ended
            fields = rest.split()
            parents[int(folder.name)] = int(fields[1])
            # With those of its children that have ended.
            cpu_by_pid[int(folder.name)] = (name, sum(map(int, fields[11:15])) / TICKS)
    cpu_by_program: defaultdict[str, float] = defaultdict(float)
    for pid, (name, seconds) in cpu_by_pid.items():
        if _descends(pid, parents):
            cpu_by_program["postgres" if name.startswith("postgres") else name] += seconds
    return cpu_by_program


def _descends(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == os.getpid():
            return True
    return False


@contextmanager
def profiled_servers(folder: Path, *, broker: bool) -> Iterator[Servers]:
    """Yield durable servers of this process that can count what statements within functions do."""
    settings = {"shared_preload_libraries": PRELOADED}
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    with embedded.start_postgres(folder / "postgres", durable=True, settings=settings) as postgres:
        if not broker:
            yield Servers(postgres.url, "")
            return
        with embedded.start_nats(folder / "nats") as nats:
            yield Servers(postgres.url, nats.url)


@dataclass
class Totals:
    """What PostgreSQL did: rows written, bytes and syncs of WAL; of each function calls and milliseconds."""

    sums: dict[str, int]
    functions: dict[str, tuple[int, float, float]]
    """Calls, milliseconds, and those of its own statements."""


class Watch:
    """Reads the server's own statistics of one schema.

    Statements are counted while `deep` is on, which makes them slower.
    """

    def __init__(self, connection: asyncpg.Connection[Any], schema: str) -> None:
        self._connection, self._schema = connection, schema

    async def deep(self, *, on: bool) -> None:
        """Count statements within functions, and the functions, or not."""
        await self._connection.execute("create extension if not exists pg_stat_statements")
        for name, value in (
            ("pg_stat_statements.track", "all" if on else "none"),
            ("pg_stat_statements.track_planning", "on" if on else "off"),
            ("track_functions", "all" if on else "none"),
        ):
            await self._connection.execute(f"alter system set {name} = '{value}'")
        await self._connection.execute("select pg_reload_conf()")
        await self._connection.execute("select pg_stat_statements_reset()")

    async def until_no_host(self) -> None:
        """Return when no host is connected: what a session did is known when it has ended."""
        while await self._connection.fetchval(SQL_SESSIONS):  # noqa: ASYNC110 - nobody says so
            await asyncio.sleep(GONE_S)

    async def rows(self) -> int:
        """Return how many rows were written until now by sessions that have told so."""
        await self._connection.execute("select pg_stat_clear_snapshot()")
        rows: int = await self._connection.fetchval(SQL_ROWS, self._schema)
        return rows

    async def totals(self) -> Totals:
        """Return what was done until now by such sessions."""
        rows = await self.rows()
        wal = await self._connection.fetchrow(SQL_WAL)
        assert wal is not None
        functions = await self._connection.fetch(SQL_FUNCTIONS, self._schema)
        function_figures = {
            row["name"]: (row["calls"], row["ms"], row["own_ms"]) for row in functions
        }
        return Totals(
            {"rows": rows, "wal_bytes": wal["bytes"], "syncs": wal["syncs"]}, function_figures
        )

    async def statements(self) -> list[dict[str, Any]]:
        """Return what was executed since `deep`: toplevel, calls, ms, rows, text."""
        return [dict(row) for row in await self._connection.fetch(SQL_STATEMENTS)]
