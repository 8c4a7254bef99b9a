"""Names of the release before that its hosts still use, on the database of this one."""

from __future__ import annotations

import pytest

from actors._kernel.runtime.commit import Finish
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import Wait
from persistence._postgres.administration import operators
from persistence._postgres.commits import outcomes
from persistence._postgres.connection.listener import nudge_of
from tests.integration.persistence.hosts import host, sql


def use_old_names(patch: pytest.MonkeyPatch) -> None:
    """Have this process call the functions that a host of the release before calls."""
    for module, constant, new, old in (
        (outcomes, "SQL_COMMIT_RUNS", "commit_runs", "commit_turns"),
        (operators, "SQL_REDRIVE_LETTERS", "redrive_dead_letters", "redrive_letters"),
    ):
        statement = getattr(module, constant)
        assert new in statement
        patch.setattr(module, constant, statement.replace(new, old))


@pytest.mark.parametrize("is_old", [True, False])
async def test_functions_are_called_by_either_name(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, *, is_old: bool
) -> None:
    """Commits of any shape, and dead letters that are delivered again."""
    if is_old:
        use_old_names(monkeypatch)
    monkeypatch.setattr(outcomes, "fast_arguments", lambda _units: None)
    async with host(postgres_dsn, schema) as bed:
        run = await bed.begin(text="again", id="m")
        wait = Wait("1", "approval", "may I?", request={"sum": 3})
        await run.commit(run.turn(waits=(wait,)))
        waits = await bed.store.lists.waits(run.run_id)
        failed_entry = NewEntry(EntryKind.RUN_FAILED, "", {"status": "failed", "error": {}})
        finish = Finish(RunStatus.FAILED, error={}, dead_letter="max_retries")
        await run.commit(run.turn(failed_entry, then=finish))
        [letter] = await bed.store.lists.dead_letters()
        [arrival] = await bed.store.operators.redrive([letter.id])

        assert [row.wait for row in waits] == [wait]
        assert arrival.message.payload == "again"
        assert await bed.store.lists.dead_letters() == []


async def test_an_outbox_message_becomes_a_dead_letter_by_either_name(
    postgres_dsn: str, schema: str
) -> None:
    """The message has left the outbox, and is listed."""
    async with host(postgres_dsn, schema) as bed:
        await bed.begin()
        insert = (
            "insert into outbox (sender, target, message_id, shard, target_hash, body)"
            " select 'agent:desk:a', 'desk:a', $1, shard, 1, '{}' from runs limit 1 returning n"
        )
        for function in ("dead_letter_outbox", "bury_outbox"):
            [row] = await sql(postgres_dsn, schema, insert, function)
            args = ("agent:desk:a", "desk:a", row["n"], "too large")
            await sql(postgres_dsn, schema, f"select {function}($1, $2, $3, $4)", *args)
        rows = await sql(postgres_dsn, schema, "select message_id from dead_letters order by id")
        outbox = await sql(postgres_dsn, schema, "select from outbox where target = 'desk:a'")

    assert [row["message_id"] for row in rows] == ["dead_letter_outbox", "bury_outbox"]
    assert outbox == []


def test_a_hint_is_understood_by_either_name() -> None:
    """Functions of the database send the old one, which hosts of the release before understand."""
    assert nudge_of("places", None, None) == nudge_of("slots", None, None) == Nudge("slots")
