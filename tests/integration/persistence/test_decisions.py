"""Decisions of operators that the release before has kept, and that no host has taken yet."""

from __future__ import annotations

import asyncpg

from actors.kernel.runtime.ids import RunId
from persistence.migrate import known_migrations, migrate
from tests.integration.persistence.hosts import host

RUN = RunId("0" * 32)
SQL_RUN = """
insert into runs (run_id, agent, tenant, shard, hash, status, priority, attempt, depth, parked)
  values ($1, 'desk/1', 'default', 'desk/0', 0, 'SUSPENDED', 5, 1, 0, 'in_doubt')
"""
SQL_ENTRY = """
insert into event_log (run_id, seq, kind, position, payload, ts)
  values ($1, $2, $3, $4, '{"mode": "at_most_once"}', clock_timestamp())
"""
SQL_SIGNAL = """
insert into signals (run_id, sender, message_id, name, payload)
  values ($1, 'client:x', $2, '~resolve:0', to_json($2::text))
"""


async def test_decisions_from_before_are_about_the_doubt_they_came_behind(
    postgres_dsn: str, schema: str
) -> None:
    """The first one since the effect was begun again counts; one for the doubt before it does not."""
    connection = await asyncpg.connect(postgres_dsn, server_settings={"search_path": schema})
    try:
        await migrate(connection, schema, known_migrations()[:17])
        await connection.execute(SQL_RUN, RUN)
        await connection.execute(SQL_ENTRY, RUN, 0, "effect.intent", "0")
        await connection.execute(SQL_SIGNAL, RUN, "stale")
        await connection.execute(SQL_ENTRY, RUN, 1, "in_doubt.resolved", "0")
        await connection.execute(SQL_ENTRY, RUN, 2, "effect.intent", "0")
        await connection.execute(SQL_ENTRY, RUN, 3, "run.parked", "")
        await connection.execute(SQL_SIGNAL, RUN, "meant")
        await connection.execute(SQL_SIGNAL, RUN, "second")
    finally:
        await connection.close()

    async with host(postgres_dsn, schema) as bed:
        kept = await bed.store.signals(RUN)

    assert [(s.payload, s.about) for s in kept] == [("stale", None), ("meant", 2), ("second", None)]
