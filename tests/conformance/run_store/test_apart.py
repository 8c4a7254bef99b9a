"""The starter of a run, and submits that affect only runs of their own sender."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import MessageKey
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors.errors import RunConflictError
from tests.conformance.bed import DESK, message, started
from tests.conformance.talk import CLERK

if TYPE_CHECKING:
    from tests.conformance.bed import Bed

CRM, SHOP = "ext:crm", "ext:shop"


def received_entry(n: int, sender: str) -> NewEntry:
    """Return what the log records of the n-th message that a run started with."""
    return NewEntry(EntryKind.MSG_RECEIVED, f"in.{n}", {"message": {"sender": sender}})


async def test_a_run_is_of_who_sent_what_it_began_with(bed: Bed) -> None:
    """The starter is known before the start, while the run executes and after its end.

    An unknown run has none.
    """
    submitted = await bed.submit(sender=CRM, id="1")
    before = await bed.store.reads.started_by(submitted.run_id)
    run = await bed.begin(sender=CRM, id="1")
    await run.append(received_entry(0, CRM))
    started = await bed.store.reads.started_by(run.run_id)
    child = await run.spawn("1", CLERK)
    await run.append(NewEntry(EntryKind.MSG_RECEIVED, "2", {"message": {"sender": SHOP}}))
    of_child = await bed.store.reads.started_by(child.run_id)
    await run.complete()

    assert of_child == CRM
    assert [before, started, await bed.store.reads.started_by(run.run_id)] == [CRM] * 3
    assert await bed.store.reads.started_by(RunId("no-run")) is None


@pytest.mark.parametrize("mode", ["join", "interrupt"])
async def test_apart_a_run_of_another_owner_is_neither_joined_nor_stopped(
    bed: Bed, mode: str
) -> None:
    """The submit is refused and leaves nothing; the same one is accepted once the agent is free."""
    run = await bed.begin(sender=SHOP, id="s")
    with pytest.raises(RunConflictError):
        await bed.submit(sender=CRM, id="c", on_conflict=mode, is_apart=True)  # type: ignore[arg-type]
    row = await bed.store.reads.run(run.run_id)
    await run.complete()
    accepted = await bed.submit(sender=CRM, id="c", on_conflict=mode, is_apart=True)  # type: ignore[arg-type]

    assert row is not None
    assert row.cancel_requested is None
    assert accepted.arrived is not None
    assert await bed.store.reads.started_by(accepted.run_id) == CRM


async def test_apart_a_sender_joins_and_stops_its_own(bed: Bed) -> None:
    """As without `apart`. A known message returns the run that it joined and stops no run."""
    run = await bed.begin(sender=CRM, id="1")
    joined = [
        await bed.submit(sender=CRM, id="2", on_conflict="join", is_apart=True) for _ in range(2)
    ]
    newer = [
        await bed.submit(sender=CRM, id="3", on_conflict="interrupt", is_apart=True)
        for _ in range(2)
    ]
    stopped = await bed.store.reads.run(run.run_id)

    assert [submitted.run_id for submitted in joined] == [run.run_id] * 2
    assert [submitted.arrived is None for submitted in (*joined, *newer)] == [False, True] * 2
    assert newer[0].run_id == newer[1].run_id != run.run_id
    assert stopped is not None
    assert stopped.cancel_requested is not None


async def test_apart_of_many_at_once_none_stops_what_another_one_started(bed: Bed) -> None:
    """Two senders interrupt by turns. Only the sender that started the agent's run stops it."""
    await asyncio.gather(
        *(
            bed.submit(sender=sender, id=f"{sender}{n}", on_conflict="interrupt", is_apart=True)
            for n in range(10)
            for sender in (CRM, SHOP)
        ),
        return_exceptions=True,
    )
    rows = await bed.store.lists.runs(agent=DESK)
    senders = {await bed.store.reads.started_by(row.run_id) for row in rows}

    assert len(rows) == 10
    assert len(senders) == 1


async def test_a_run_of_messages_of_several_senders_has_no_single_starter(bed: Bed) -> None:
    """A single starter would see what the other senders sent."""
    messages = [message(n, id=f"m{n}", sender=who) for n, who in enumerate((CRM, SHOP))]
    arrived = await bed.store.arrivals.deliver(messages)
    keys = tuple(MessageKey(DESK, row.sender, row.message.id) for row in arrived)
    run, new = bed.turns_of_mail(keys[0])
    entries = (started(), received_entry(0, CRM), received_entry(1, SHOP))
    await run.commit(run.turn(*entries, create=new, bind=keys))

    assert await bed.store.reads.started_by(run.run_id) is None
