"""Sweeping on a real PostgreSQL: by several hosts at once, in small batches, and message ids after days."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors.kernel.runtime.ids import HostIncarnation
from actors.kernel.runtime.log_entry import EntryKind, NewEntry
from actors.runtime.sweeping import sweep_all
from tests.conformance.bed import DESK, message
from tests.conformance.talk import CLERK, join_wait, rest
from tests.integration.persistence.hosts import host, sql

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conformance.bed import Bed


@pytest.fixture
async def bed(postgres_dsn: str, schema: str) -> AsyncIterator[Bed]:
    """A host that owns every agent."""
    async with host(postgres_dsn, schema) as found:
        yield found


@pytest.mark.item(487)
async def test_several_hosts_sweep_each_run_once(bed: Bed, postgres_dsn: str, schema: str) -> None:
    """Together they sweep all there is, without waiting for each other."""
    for n in range(40):
        await (await bed.begin(agent=CLERK if n % 2 else DESK)).complete(n)
    still_open = await bed.begin()
    await asyncio.sleep(0.01)
    async with (
        host(postgres_dsn, schema, HostIncarnation("h2")) as second,
        host(postgres_dsn, schema, HostIncarnation("h3")) as third,
        asyncio.timeout(20),
    ):
        counts = [
            count
            for _ in range(5)
            for count in await asyncio.gather(
                *(each.store.sweep(older_than_s=0, limit=3) for each in (bed, second, third))
            )
        ]
        rest_of_them = await sweep_all(second.store, older_than_s=0)

    assert sum(counts) + rest_of_them == 40
    left = await sql(postgres_dsn, schema, "select distinct run_id from event_log")
    assert [row["run_id"] for row in left] == [still_open.run_id]
    swept = await sql(postgres_dsn, schema, "select count(*) as n from runs where swept")
    assert swept[0]["n"] == 40


@pytest.mark.item(487)
async def test_a_batch_is_small_in_entries_too(bed: Bed) -> None:
    """Runs with many entries are swept a few at a time: no commit takes long."""
    for _ in range(4):
        run = await bed.begin()
        payload = {"effect": "now", "hash": "0" * 16, "status": "ok", "value": 1}
        entries = [NewEntry(EntryKind.EFFECT_RESULT, str(n), payload) for n in range(8_000)]  # type: ignore[arg-type]
        await run.commit(run.turn(*entries))
        await run.complete()
    await asyncio.sleep(0.01)

    counts = [await bed.store.sweep(older_than_s=0) for _ in range(3)]

    assert counts == [3, 1, 0]


@pytest.mark.item(487)
async def test_ids_of_messages_are_kept_for_eight_days(
    bed: Bed, postgres_dsn: str, schema: str
) -> None:
    """Whatever the age at which runs are swept; and as long as their run is open."""
    old = await bed.begin(id="old")
    await old.complete()
    young = await bed.begin(id="young")
    await young.complete()
    await bed.begin(id="open")
    age = "update inbox set received_at = received_at - $2::interval where message_id = $1"
    for name, days in (("old", 9), ("young", 7), ("open", 90)):
        await sql(postgres_dsn, schema, age.replace("$2", f"'{days} days'"), name)
    await asyncio.sleep(0.01)

    await sweep_all(bed.store, older_than_s=0)

    left = await sql(postgres_dsn, schema, "select message_id from inbox order by 1")
    assert [row["message_id"] for row in left] == ["open", "young"]


@pytest.mark.item(487)
async def test_answers_of_an_open_run_stay(bed: Bed, postgres_dsn: str, schema: str) -> None:
    """However old they are: it may replay the wait they end."""
    target, joiner = await bed.begin(agent=CLERK), await bed.begin()
    await rest(joiner, join_wait(target))
    await target.complete("done")
    await sql(postgres_dsn, schema, "update runs set ended_at = ended_at - interval '90 days'")

    assert await sweep_all(bed.store, older_than_s=86_400) == 1

    kept = await sql(postgres_dsn, schema, "select parent, child from completions")
    assert [(row["parent"], row["child"]) for row in kept] == [(joiner.run_id, target.run_id)]
    assert (await bed.store.deliver([message("x", id="m")])) != []
