"""PostgreSQL answers and has no room: turns wait with what they hold, and are written once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId
from actors.errors import StoreUnreachableError
from tests.conformance.bed import result
from tests.integration.persistence.hosts import host, kinds, sql, store_of
from tests.system.fullness import Fullness

if TYPE_CHECKING:
    from collections.abc import Sequence

WANTS = ("53100", "53200", "53400", "58030")


def _lines_of_writes(messages: Sequence[str]) -> list[str]:
    return [line for line in messages if "writes again" in line or "refuses to write" in line]


@pytest.mark.parametrize("code", WANTS)
async def test_turns_wait_for_a_server_without_room(
    postgres_dsn: str, schema: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Longer than calls do, each is written once; one line says that it began, one that it is over."""
    async with host(postgres_dsn, schema, outage_s=0.2) as bed:
        runs = [await bed.begin(agent=AgentId("desk", f"{n}")) for n in range(5)]
        full = await Fullness.of(postgres_dsn, schema, table="event_log", code=code)
        await full.begin()
        appending = [asyncio.ensure_future(run.append(result("0"))) for run in runs]
        await full.refused(6)

        assert not any(call.done() for call in appending)
        trouble = store_of(bed).trouble
        assert trouble is not None
        assert code in trouble
        assert await bed.store.reads.run(runs[0].run_id) is not None
        await full.end()
        assert await asyncio.gather(*appending) == [1] * 5
        assert [len(await kinds(run)) for run in runs] == [2] * 5
        assert store_of(bed).trouble is None
        assert await runs[0].append(result("1")) == 2
    assert len(_lines_of_writes(caplog.messages)) == 2


async def test_calls_from_outside_give_up_with_the_reason(postgres_dsn: str, schema: str) -> None:
    """After the limit; nothing was written, and the next one is."""
    async with host(postgres_dsn, schema, outage_s=0.3) as bed:
        full = await Fullness.of(postgres_dsn, schema, table="inbox")
        await full.begin()
        with pytest.raises(StoreUnreachableError, match="disk full") as exc_info:
            await bed.submit("m")
        await full.end()

        assert "0.3 s" in str(exc_info.value)
        assert (await bed.submit("m")).arrived is not None


async def test_a_store_closed_without_capacity_leaves_no_waiting_call(
    postgres_dsn: str, schema: str
) -> None:
    """What could not be written is told as unknown."""
    async with host(postgres_dsn, schema) as bed:
        run = await bed.begin()
        full = await Fullness.of(postgres_dsn, schema, table="event_log")
        await full.begin()
        appending = asyncio.ensure_future(run.append(result("0")))
        await full.refused(2)
    with pytest.raises(Exception, match="closed"):
        await appending
    await sql(postgres_dsn, schema, "select 1")
