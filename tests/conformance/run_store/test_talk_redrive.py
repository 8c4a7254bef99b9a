"""The contract of every `RunStore`: a failed run's messages are given to a new run."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.agent import SpawnBudget
from actors._kernel.agent.message import MessageKey
from actors._kernel.runtime.commit import Finish
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.errors import AlreadyRedrivenError, IllegalTransitionError, UnknownRunError
from tests.conformance.bed import DESK, Turns, message, result, started
from tests.conformance.talk import CLERK, row, terms

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.rows import Arrived
    from tests.conformance.bed import Bed


def received(n: int, arrived: Arrived, *, position: str = "in") -> NewEntry:
    """Return the entry of a message that a run started with or received."""
    payload: dict[str, JsonValue] = {
        "message": arrived.message.to_json(),
        "arrival": arrived.arrival,
    }
    return NewEntry(EntryKind.MSG_RECEIVED, f"{position}.{n}", payload)


async def begin(bed: Bed, *texts: str, **parts: object) -> Turns:
    """Start a run with these messages."""
    submitted = await bed.submit(texts[0], **parts)  # type: ignore[arg-type]
    assert submitted.arrived is not None
    arrived = [submitted.arrived]
    await bed.store.arrivals.deliver([message(text, id=f"more-{text}") for text in texts[1:]])
    arrived += await bed.store.backlog.pending_mail(agent=DESK)
    run = Turns(bed, submitted.run_id)
    await run.commit(
        run.turn(
            started(),
            *(received(n, item) for n, item in enumerate(arrived)),
            bind=tuple(MessageKey(DESK, m.sender, m.message.id) for m in arrived[1:]),
        )
    )
    return run


@pytest.mark.item(488)
async def test_a_dead_run_is_started_again_with_its_messages(bed: Bed) -> None:
    """A new pending run of the same agent gets copies of the first messages of the dead run, in order."""
    policy = RetryPolicy(max_retries=7)
    mine = terms("old", spawn=SpawnBudget(max_runs=3))
    run = await begin(bed, "one", "two", policy=policy, priority=2, supervision=mine)
    await run.fail("boom", orphans=None)

    submitted = await bed.store.operators.redrive_run(run.run_id)

    (new,) = await bed.store.reads.load([submitted.run_id])
    assert submitted.arrived is not None
    assert submitted.run_id != run.run_id
    assert (new.row.status, new.row.agent_id, new.row.parent) == (RunStatus.PENDING, DESK, None)
    assert (new.row.priority, new.row.retry_policy) == (2, RetryPolicy(max_retries=7))
    assert new.row.supervision is not None
    assert new.row.supervision.spawn_budget == SpawnBudget(max_runs=3)
    assert [m.message.payload for m in new.messages] == ["one", "two"]
    assert new.row.arrival == new.messages[0].arrival
    assert (await row(bed, run)).status is RunStatus.FAILED
    assert await bed.store.backlog.pending_mail(agent=DESK) == []


async def test_a_dead_run_is_started_again_once(bed: Bed) -> None:
    """Any number of calls, concurrent or later, create one new run."""
    run = await begin(bed, "one")
    await run.fail("boom")

    several = await asyncio.gather(*(bed.store.operators.redrive_run(run.run_id) for _ in range(5)))
    later = await bed.store.operators.redrive_run(run.run_id)

    assert len({submitted.run_id for submitted in [*several, later]}) == 1
    assert later.arrived is None
    assert sum(submitted.arrived is not None for submitted in several) == 1
    (new,) = await bed.store.reads.load([later.run_id])
    assert [m.message.payload for m in new.messages] == ["one"]


async def test_a_redriven_run_may_die_and_be_redriven(bed: Bed) -> None:
    """The next run's id is derived from its own."""
    run = await begin(bed, "one")
    await run.fail("boom")
    again = await bed.store.operators.redrive_run(run.run_id)
    (loaded,) = await bed.store.reads.load([again.run_id])
    second = Turns(bed, again.run_id)
    await second.commit(second.turn(started(), received(0, loaded.messages[0])))
    await second.fail("boom again")

    third = await bed.store.operators.redrive_run(second.run_id)

    (new,) = await bed.store.reads.load([third.run_id])
    assert len({run.run_id, second.run_id, third.run_id}) == 3
    assert [m.message.payload for m in new.messages] == ["one"]


async def test_only_what_a_run_began_with_is_given_again(bed: Bed) -> None:
    """Later messages of the run and first messages of a continued log are not copied."""
    run = await begin(bed, "one")
    await bed.store.arrivals.deliver([message("later", id="later")])
    (later,) = await bed.store.backlog.pending_mail(agent=DESK)
    await run.commit(
        run.turn(received(0, later, position="4"), bind=(MessageKey(DESK, later.sender, "later"),))
    )
    continued = NewEntry(EntryKind.RUN_CONTINUED, "", {"generation": 1, "input": "x"})
    await run.commit(run.turn(continued, received(0, later)))
    await run.fail("boom")

    submitted = await bed.store.operators.redrive_run(run.run_id)

    (new,) = await bed.store.reads.load([submitted.run_id])
    assert [m.message.payload for m in new.messages] == ["one"]


async def test_a_dead_child_is_started_again_as_a_root(bed: Bed) -> None:
    """The new run has no parent and counts in no parent's budget."""
    root = await bed.begin()
    child = await root.spawn("c", CLERK, boot="go")
    (loaded,) = await bed.store.reads.load([child.run_id])
    await child.commit(child.turn(started(CLERK), received(0, loaded.messages[0])))
    await child.fail("boom")

    submitted = await bed.store.operators.redrive_run(child.run_id)

    (new,) = await bed.store.reads.load([submitted.run_id])
    assert (new.row.parent, new.row.root, new.row.depth) == (None, submitted.run_id, 0)
    assert [m.message.payload for m in new.messages] == ["go"]


async def test_only_a_failed_run_is_redriven(bed: Bed) -> None:
    """Open, completed and cancelled runs are refused. For an unknown run an error is raised."""
    runs = [await bed.begin(), await bed.begin(agent=CLERK)]
    await runs[1].complete()

    for run in runs:
        with pytest.raises(IllegalTransitionError):
            await bed.store.operators.redrive_run(run.run_id)
    with pytest.raises(UnknownRunError):
        await bed.store.operators.redrive_run(RunId("0" * 32))


async def test_a_dead_run_without_messages_is_started_again_empty(bed: Bed) -> None:
    """A child that was spawned without a message starts without one again."""
    root = await bed.begin()
    child = await root.spawn("c", CLERK)
    await child.commit(child.turn(started(CLERK), result("0")))
    await child.fail("boom")

    submitted = await bed.store.operators.redrive_run(child.run_id)

    (new,) = await bed.store.reads.load([submitted.run_id])
    assert new.messages == ()
    assert new.row.status is RunStatus.PENDING


async def die(run: Turns) -> list[int]:
    """Fail the run for good; return the numbers of its dead letters, in order."""
    finish = Finish(RunStatus.FAILED, error={"message": "boom"}, dead_letter="max_retries")
    error: JsonValue = {"type": "builtins:ValueError", "message": "boom"}
    entry = NewEntry(EntryKind.RUN_FAILED, "", {"status": "error", "error": error})
    await run.commit(run.turn(entry, then=finish))
    letters = await run.bed.store.lists.dead_letters(agent=run.agent, limit=10_000)
    return sorted(letter.id for letter in letters if letter.run_id == run.run_id)


async def test_a_run_whose_dead_letters_were_redriven_is_not_redriven(bed: Bed) -> None:
    """For one or all of them. The refusal names those and the others, which can be redriven, too."""
    run = await begin(bed, "one", "two")
    first, second = await die(run)
    assert len(await bed.store.operators.redrive([first])) == 1

    with pytest.raises(AlreadyRedrivenError) as refused:
        await bed.store.operators.redrive_run(run.run_id)
    await bed.store.operators.redrive([second])
    with pytest.raises(AlreadyRedrivenError) as again:
        await bed.store.operators.redrive_run(run.run_id)

    assert (refused.value.given, refused.value.left) == ((first,), (second,))
    assert (again.value.given, again.value.left) == ((first, second), ())
    assert f"callboard dlq redrive {second}" in str(refused.value)
    waiting = await bed.store.backlog.pending_mail(agent=DESK)
    assert [arrived.message.payload for arrived in waiting] == ["one", "two"]
    assert {row.run_id for row in await bed.store.lists.runs(agent=DESK)} == {run.run_id}


async def test_what_a_run_received_on_its_way_stays_a_dead_letter(bed: Bed) -> None:
    """The new run does not get it. It is redriven individually, before or after the run."""
    for n, comes_first in enumerate((False, True)):
        run = await begin(bed, f"one-{n}")
        await bed.store.arrivals.deliver([message("later", id=f"later-{n}")])
        (later,) = await bed.store.backlog.pending_mail(agent=DESK)
        bind = (MessageKey(DESK, later.sender, later.message.id),)
        await run.commit(run.turn(received(0, later, position="4"), bind=bind))
        _, letter = await die(run)

        redriven_messages = await bed.store.operators.redrive([letter]) if comes_first else []
        submitted = await bed.store.operators.redrive_run(run.run_id)
        redriven_messages += await bed.store.operators.redrive([letter])

        (new,) = await bed.store.reads.load([submitted.run_id])
        assert [m.message.payload for m in new.messages] == [f"one-{n}"]
        assert [arrived.message.payload for arrived in redriven_messages] == ["later"]
        assert await bed.store.lists.dead_letters(agent=DESK) == []
        await _finish_all(bed)


async def test_of_a_run_and_its_dead_letters_at_once_one_is_redriven(bed: Bed) -> None:
    """In any order and from several processes, the agent gets each message once."""
    for n in range(150):
        run = await begin(bed, f"a{n}", f"b{n}")
        letters = await die(run)

        async def give(letters: list[int] = letters) -> int:
            await asyncio.sleep(random.choice((0, 0, 0.001, 0.002)))
            return len(await bed.store.operators.redrive(letters))

        async def start(run: Turns = run) -> int:
            await asyncio.sleep(random.choice((0, 0, 0.001, 0.002)))
            try:
                submitted = await bed.store.operators.redrive_run(run.run_id)
            except AlreadyRedrivenError:
                return 0
            return 2 if submitted.arrived is not None else 0

        calls = [give(letters[:1]), give(letters[1:]), give(), start(), start()]
        random.shuffle(calls)
        counts = await asyncio.gather(*calls)

        assert sum(counts) == 2
        mail = await bed.store.backlog.pending_mail(agent=DESK)
        assert sorted(str(m.message.payload) for m in mail) in ([], [f"a{n}", f"b{n}"])
        await _finish_all(bed)


async def _finish_all(bed: Bed) -> None:
    """Finish all waiting runs and messages of the desk, so that the next round starts alone."""
    for row_ in await bed.store.lists.runs(status=[RunStatus.PENDING], agent=DESK):
        again = Turns(bed, row_.run_id)
        await again.commit(again.turn(started()))
        await again.complete()
    mail = await bed.store.backlog.pending_mail(agent=DESK)
    if mail:
        key = MessageKey(DESK, mail[0].sender, mail[0].message.id)
        run, new = bed.turns_of_mail(key)
        bind = tuple(MessageKey(DESK, m.sender, m.message.id) for m in mail)
        await run.commit(run.turn(started(), create=new, bind=bind))
        await run.complete()


@pytest.mark.item(488)
async def test_dead_letters_of_a_redriven_run_count_as_redriven(bed: Bed) -> None:
    """Redriving them as well would do the work twice."""
    run = await begin(bed, "one", "two")
    letters = await die(run)

    await bed.store.operators.redrive_run(run.run_id)

    assert len(letters) == 2
    assert await bed.store.lists.dead_letters(agent=DESK) == []
    assert await bed.store.operators.redrive(letters) == []
