"""The contract of every `AuditStore`: rows of a tenant, newest first, until retention or an erase."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from actors._inmemory.administration import InMemoryAudit
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.administration import (
    MAX_FACTS_BYTES,
    AuditStore,
    EraseRequest,
    NewAuditRow,
)
from actors.errors import ContractError, InvalidTextError
from persistence._postgres.administration.tables import PostgresAudit
from tests.conformance.clock import ManualClock
from tests.conformance.stores.stored import lent_links

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.stores.administration import AuditRow
    from tests.conformance.bed import Bed

ADA = AgentId("desk", "ada", "acme")
OLD_S = 400 * 86_400
AGE = "update audit set at = at - $1::interval"


@asynccontextmanager
async def in_memory(request: pytest.FixtureRequest) -> AsyncIterator[AuditStore]:
    """Return rows of this process."""
    del request
    yield InMemoryAudit(ManualClock().now)


@asynccontextmanager
async def in_postgres(request: pytest.FixtureRequest) -> AsyncIterator[AuditStore]:
    """Return rows of a schema."""
    async with lent_links(request) as links:
        yield PostgresAudit(links)


@pytest.fixture(params=[in_memory, pytest.param(in_postgres, marks=pytest.mark.postgres)])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[AuditStore]:
    """An empty store on each backend."""
    async with request.param(request) as audit:
        yield audit


def new(thing: str = "run:1", tenant: str = "acme", **more: Any) -> NewAuditRow:
    """Return a new row."""
    return NewAuditRow(tenant=tenant, principal="ada", action="run.cancel", thing=thing, **more)


async def things(store: AuditStore, tenant: str = "acme", **more: Any) -> list[str]:
    """Return the things of a page's rows."""
    return [row.thing for row in await store.list(tenant, **more)]


async def age(bed: Bed, seconds: int) -> None:
    """Let this time pass since all rows were written."""
    if isinstance(bed.clock, ManualClock):
        bed.clock.advance(seconds)
        return
    audit = bed.store.data.audit
    assert isinstance(audit, PostgresAudit)
    await audit._links.fetch("ageing", AGE, timedelta(seconds=seconds))


async def test_a_row_is_returned_as_it_was_written(store: AuditStore) -> None:
    """With any character of JSON, and with its number and instant."""
    new_row = new(
        agent=ADA,
        before={"title": "<script>\x00 😀", "n": 1.5, "none": None},
        after={},
        outcome="not_found",
        write_id="w",
    )
    row = await store.add(new_row)
    plain = await store.add(new("run:2"))

    assert asdict(row) == asdict(new_row) | {"id": row.id, "at": row.at}
    assert row.at.tzinfo is not None
    assert (plain.agent, plain.before, plain.after, plain.outcome) == (None, None, None, "done")
    assert await store.list("acme") == [plain, row]


async def test_a_write_with_an_id_is_one_row_however_often_it_is_sent(store: AuditStore) -> None:
    """Also at once; of each tenant its own, and without an id each write is a row."""
    sent = await asyncio.gather(*(store.add(new(write_id="w")) for _ in range(3)))
    changed = await store.add(new("run:2", write_id="w"))
    others = [
        await store.add(new_row)
        for new_row in (new(write_id="v"), new(tenant="other", write_id="w"), new(), new())
    ]

    assert sent == [changed] * 3
    assert len({row.id for row in (changed, *others)}) == 5
    assert len(await store.list("acme")) == 4
    assert len(await store.list("other")) == 1


async def test_pages_have_each_row_of_a_tenant_once(store: AuditStore) -> None:
    """Newest first, of one thing or of all; rows of another tenant are in none."""
    for n in (1, 2, 1, 2):
        await store.add(new(f"run:{n}"))
    await store.add(new("run:1", tenant="other"))
    for thing, expected in ((None, ["run:2", "run:1"] * 2), ("run:1", ["run:1"] * 2)):
        rows: list[AuditRow] = []
        after = None
        while page := await store.list("acme", thing=thing, after=after, limit=1):
            rows += page
            after = page[-1].id
            assert len(rows) < 9
        assert [row.thing for row in rows] == expected
        assert [row.id for row in rows] == sorted({row.id for row in rows}, reverse=True)
    assert await things(store, "other") == ["run:1"]
    assert await things(store, "nobody") == []
    assert await things(store, thing="run") == []


async def test_what_no_row_can_have_is_refused(store: AuditStore) -> None:
    """Values of more than 4 KiB, and texts that no database takes."""
    fits = {"x": "y" * (MAX_FACTS_BYTES - len('{"x":""}'))}
    await store.add(new(before=fits, after=fits))
    too_much: Any = {"x": fits["x"] + "y"}
    for name in ("before", "after"):
        with pytest.raises(ContractError, match="write 4096 bytes at most"):
            new(**{name: too_much})
    for thing in ("a\0", "x" * 1025):
        with pytest.raises(InvalidTextError):
            new(thing)
        with pytest.raises(InvalidTextError):
            await store.list("acme", thing=thing)


async def test_retention_takes_rows_only_after_400_days(bed: Bed) -> None:
    """However early runs go; and rows stay if nothing is to be forgotten by age."""
    audit, retention = bed.store.data.audit, bed.store.retention
    await audit.add(new())
    for older_than_s in (None, 0.0, OLD_S):
        await retention.forget_old(older_than_s=older_than_s)
        assert await things(audit) == ["run:1"]
    await age(bed, OLD_S + 60)
    await audit.add(new("run:2"))
    await retention.forget_old(older_than_s=OLD_S + 3600)
    assert await things(audit) == ["run:2", "run:1"]
    assert await retention.forget_old(older_than_s=0) == 1
    assert await things(audit) == ["run:2"]


async def test_an_erase_deletes_rows_of_a_tenant_and_clears_those_of_an_agent(bed: Bed) -> None:
    """In batches; a dry run counts them, and an erase of a subject or a conversation leaves them."""
    audit = bed.store.data.audit
    [part] = [p for p in bed.store.data.erasure.parts if p.erased_as == "audit"]
    for n, agent in enumerate((ADA, ADA, None)):
        facts: Any = {"before": {"title": "t"}, "after": {"title": "u"}}
        await audit.add(new("run:1", agent=agent, write_id=f"w{n}", **facts))
    await audit.add(new("run:2", tenant="other"))
    for what in (
        EraseRequest(tenant="acme", about="user:1"),
        EraseRequest(tenant="acme", agent=ADA, session="s"),
    ):
        assert await part.count(what) in ({}, {"audit": 0})
        assert not (await part.erase(what)).rows.get("audit")
    for what, count in (
        (EraseRequest(tenant="acme", agent=ADA), 2),
        (EraseRequest(tenant="acme", agent=ADA), 0),
        (EraseRequest(tenant="acme"), 3),
    ):
        assert (await part.count(what)).get("audit", 0) == count
        erased_count = 0
        cursor: str | None = None
        while True:
            done = await part.erase(what, cursor=cursor, limit=1)
            erased_count, cursor = erased_count + done.rows.get("audit", 0), done.cursor
            if cursor is None:
                break
        assert erased_count == count
        if what.agent is not None:
            values = [(row.before, row.after) for row in await audit.list("acme")]
            assert values == [({"title": "t"}, {"title": "u"}), (None, None), (None, None)]
    assert await things(audit) == []
    await audit.add(new("run:3", write_id="w0"))
    assert await things(audit) == ["run:3"]
    assert await things(audit, "other") == ["run:2"]
