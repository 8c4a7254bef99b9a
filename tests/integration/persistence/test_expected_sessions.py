"""A session is deleted between the check of a submit and the lock of its row."""

from __future__ import annotations

import asyncio

from actors._kernel.runtime.ids import AgentId, partition_hash
from actors._kernel.stores.conversations import SessionLabel
from actors._kernel.stores.errors import SessionDeletingError
from tests.conformance.run_store.test_expected_sessions import ask
from tests.conformance.run_store.test_sessions import CHAT
from tests.integration.persistence.hosts import connected, host, sql
from tests.system.waiting import until

WAITS = """
select count(*) as n from pg_stat_activity where wait_event_type = 'Lock' and query like '%submit_runs%'
"""
OTHER = AgentId("desk", "other")


async def test_a_submit_that_waits_for_a_deletion_does_not_create_the_session_again(
    postgres_dsn: str, schema: str
) -> None:
    """It saw the session before, and under the lock sees that it is gone. Its group is accepted without it."""

    async def waits() -> bool:
        return bool((await sql(postgres_dsn, schema, WAITS))[0]["n"])

    async with host(postgres_dsn, schema) as bed, connected(postgres_dsn, schema) as deleter:
        for agent in (CHAT, OTHER):
            await bed.store.data.directory.create(agent, SessionLabel(), owner="ada")
        async with deleter.transaction():
            begin, finish = (
                "select begin_delete_session($1, $2, $3)",
                "select finish_delete_session($1, 9)",
            )
            await deleter.execute(begin, str(CHAT), partition_hash(CHAT), CHAT.key)
            await deleter.execute(finish, str(CHAT))
            calls = [ask(bed, "ada", agent) for agent in (CHAT, OTHER)]
            submits = asyncio.gather(*calls, return_exceptions=True)
            await until(waits, "the submits wait for the session's row")
        refusal, submission = await submits

        assert isinstance(refusal, SessionDeletingError)
        assert not isinstance(submission, BaseException)
        sessions = bed.store.data.sessions
        assert (await sessions.get(CHAT), await sessions.facts(CHAT)) == (None, [])
