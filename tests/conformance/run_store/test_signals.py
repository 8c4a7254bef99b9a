"""The contract of every `RunStore`: signals, cancel requests and nudges."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.commit import Committed, Missing, Park, Retry, SignalKey
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.rows import OPERATOR, decision_id
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import WakeSet
from actors.errors import UnknownRunError
from tests.conformance.bed import DESK, EPOCH, message, result

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.hints import Nudge
    from tests.conformance.bed import Bed, Turns

CLERK = AgentId("clerk", "7")
UNDECLARED = AgentId("nobody", "1")


@pytest.mark.item(131, 132)
async def test_signals_are_buffered_in_order_and_taken_once(bed: Bed) -> None:
    """Two signals of one name wait in order. A taken signal is not returned again."""
    run, other = await bed.begin(), await bed.begin(agent=CLERK)
    for n, name in enumerate(["go", "stop", "go"]):
        await bed.store.arrivals.signal(
            run.run_id, name, {"n": n}, message_id=f"{n}", sender="client:x"
        )

    waiting = await bed.store.reads.signals(run.run_id)
    key = SignalKey(waiting[0].name, waiting[0].n)
    await run.commit(run.turn(result("0"), take_signals=(key,)))
    again = await run.send(run.turn(result("1"), take_signals=(key,)))

    assert [(s.name, s.payload) for s in waiting] == [
        ("go", {"n": 0}),
        ("stop", {"n": 1}),
        ("go", {"n": 2}),
    ]
    assert isinstance(again, Missing)
    assert [s.payload for s in await bed.store.reads.signals(run.run_id)] == [{"n": 1}, {"n": 2}]
    assert await bed.store.reads.signals(other.run_id) == []


async def test_a_known_signal_is_not_accepted_again(bed: Bed) -> None:
    """A signal is known by run, sender and id, also after it was taken."""
    run = await bed.begin()

    async def send(sender: str = "client:x") -> bool:
        outcome = await bed.store.arrivals.signal(
            run.run_id, "go", 1, message_id="s", sender=sender
        )
        assert outcome.agent_id in (DESK, None)
        return outcome.accepted

    both = await asyncio.gather(send(), send())
    (signal,) = await bed.store.reads.signals(run.run_id)
    await run.commit(run.turn(take_signals=(SignalKey(signal.name, signal.n),)))

    assert sorted(both) == [False, True]
    assert not await send()
    assert await send("ext:shop")


async def test_a_signal_needs_a_run(bed: Bed) -> None:
    """For an unknown run an error is raised and the signal is not stored."""
    with pytest.raises(UnknownRunError):
        await bed.store.arrivals.signal(RunId("0" * 32), "go", 1, message_id="s", sender="client:x")


def intent(position: str, mode: str = "at_most_once") -> NewEntry:
    """Return the entry of a started step."""
    payload: dict[str, JsonValue] = {
        "effect": "step",
        "name": "s",
        "hash": "0" * 16,
        "id": "0" * 64,
        "mode": mode,
    }
    return NewEntry(EntryKind.EFFECT_INTENT, position, payload)


def resolved(position: str) -> NewEntry:
    """Return the entry of an operator's decision to execute the step again."""
    return NewEntry(EntryKind.IN_DOUBT_RESOLVED, position, {"action": "retry"})


async def park(run: Turns, *entries: NewEntry, reason: str = "in_doubt") -> int:
    """Park the run after these entries; return the seq of its last entry."""
    parked = NewEntry(EntryKind.RUN_PARKED, "", {"reason": reason})
    await run.commit(run.turn(*entries, parked, then=Park(reason)))
    return run.seq


async def decide(
    run: Turns, name: str, about: int | None = None, value: JsonValue = None
) -> tuple[bool, bool]:
    """Decide about this entry, or without an entry like older releases; return (accepted, same)."""
    message_id = f"token-{next(run.n)}" if about is None else decision_id(name, about)
    sender = "client:x" if about is None else OPERATOR
    outcome = await run.bed.store.arrivals.signal(
        run.run_id, name, {"value": value}, message_id=message_id, sender=sender
    )
    return outcome.accepted, outcome.same


async def test_a_decision_is_about_one_doubt_and_counts_once(bed: Bed) -> None:
    """While the run is parked, the same decision again changes nothing and another one is refused."""
    run = await bed.begin()
    await run.commit(run.turn(intent("0"), intent("1", "idempotent")))
    first = run.seq - 1
    early = await decide(run, "~resolve:0", first)
    await park(run)

    assert early == (False, False)
    assert await decide(run, "~resolve:1", first + 1) == (False, False)
    assert await decide(run, "~resolve:2", first + 1) == (False, False)
    assert await decide(run, "~retry", run.seq) == (False, False)
    assert await decide(run, "~resolve:0", first, "A") == (True, False)
    assert await decide(run, "~resolve:0", first, "A") == (False, True)
    assert await decide(run, "~resolve:0", first, "B") == (False, False)
    assert await decide(run, "~resolve:0", None, "B") == (False, False)
    [signal] = await bed.store.reads.signals(run.run_id)
    assert (signal.payload, signal.about) == ({"value": "A"}, first)

    take = (SignalKey(signal.name, signal.n),)
    await run.commit(run.turn(resolved("0"), take_signals=take))
    assert await decide(run, "~resolve:0", first, "B") == (False, False)
    await park(run, intent("0"))
    assert await decide(run, "~resolve:0", first, "B") == (False, False)
    assert await decide(run, "~resolve:0", first, "A") == (False, True)
    assert await bed.store.reads.signals(run.run_id) == []
    assert await decide(run, "~resolve:0", None, "B") == (True, False)
    assert [s.about for s in await bed.store.reads.signals(run.run_id)] == [run.seq - 1]


@pytest.mark.parametrize("n", range(5))
async def test_of_conflicting_decisions_at_once_one_counts(bed: Bed, n: int) -> None:
    """Also in one batch. The decision that is stored is the accepted one."""
    run = await bed.begin()
    end = await park(run, intent("0"))
    decisions = await asyncio.gather(
        *(decide(run, "~resolve:0", end - 1, f"{n}-{k}") for k in range(8))
    )

    [signal] = await bed.store.reads.signals(run.run_id)
    [k] = [k for k, (accepted, _) in enumerate(decisions) if accepted]
    assert signal.payload == {"value": f"{n}-{k}"}


async def test_a_decision_to_start_anew_is_about_one_stop(bed: Bed) -> None:
    """It is about the last entry before the parking or the back-off, not about an earlier one."""
    run = await bed.begin()
    assert await decide(run, "~retry", run.seq) == (False, False)
    failed = NewEntry(
        EntryKind.RUN_ATTEMPT_FAILED,
        "",
        {"attempt": 1, "error": {}, "retry_from": run.seq, "at": EPOCH.isoformat()},
    )
    await run.commit(run.turn(failed, then=Retry(EPOCH, {}, run.seq)))
    backs_off = run.seq
    assert await decide(run, "~retry", backs_off) == (True, False)
    end = await park(run, reason="poison")
    assert await decide(run, "~resolve:0", end) == (False, False)
    assert await decide(run, "~retry", backs_off) == (False, True)
    assert await decide(run, "~retry", end) == (True, False)
    assert await decide(run, "~retry") == (False, True)
    assert [s.about for s in await bed.store.reads.signals(run.run_id)] == [backs_off, end]


@pytest.mark.item(132, 226)
async def test_a_suspension_that_is_over_before_it_begins_says_so(bed: Bed) -> None:
    """An earlier signal, message or child's end wakes the run with its suspend commit."""
    run = await bed.begin()
    child = await run.spawn("c", CLERK)
    wakes = [WakeSet(signals=("no", "go")), WakeSet(message=True), WakeSet(runs=(child.run_id,))]

    before = [(await run.suspend(wake)).wake_now for wake in wakes]
    await bed.store.arrivals.signal(run.run_id, "go", 1, message_id="s", sender="client:x")
    await bed.store.arrivals.deliver([message(id="1")])
    await child.start()
    await child.complete()
    after = [(await run.suspend(wake)).wake_now for wake in wakes]

    assert before == [False, False, False]
    assert after == [True, True, True]


async def test_a_suspension_is_not_over_because_of_other_things(bed: Bed) -> None:
    """Signals of other names, messages to other agents and taken signals do not wake the run."""
    run = await bed.begin()
    await bed.store.arrivals.signal(run.run_id, "go", 1, message_id="s", sender="client:x")
    await bed.store.arrivals.deliver([message(id="1", to=CLERK)])
    (signal,) = await bed.store.reads.signals(run.run_id)

    outcome = await run.suspend(
        WakeSet(signals=("go", "other"), message=True),
        take_signals=(SignalKey(signal.name, signal.n),),
    )

    assert outcome.wake_now is False


@pytest.mark.item(216)
async def test_of_a_signal_and_a_suspension_at_once_one_sees_the_other(bed: Bed) -> None:
    """Either the commit returns `wake_now` or the signal finds a suspended run. No signal is missed."""
    runs = [await bed.begin(agent=AgentId("desk", f"{n}")) for n in range(10)]

    async def signal(run: Turns) -> RunStatus:
        await bed.store.arrivals.signal(run.run_id, "go", 1, message_id="s", sender="client:x")
        row = await bed.store.reads.run(run.run_id)
        assert row is not None
        return row.status

    both = await asyncio.gather(
        *(run.suspend(WakeSet(signals=("go",))) for run in runs), *(signal(run) for run in runs)
    )

    for outcome, status in zip(both[:10], both[10:], strict=True):
        assert isinstance(outcome, Committed)
        assert outcome.wake_now or status is RunStatus.SUSPENDED


async def test_a_cancel_flags_the_whole_subtree(bed: Bed) -> None:
    """Every open run below is flagged. Siblings and ended runs are not."""
    run, other = await bed.begin(), await bed.begin(agent=CLERK)
    tree: list[Turns] = []
    for n, above in enumerate([run, run, None, None]):
        tree.append(await (above or tree[n - 2]).spawn(f"{n}", AgentId("clerk", f"c{n}")))
    await tree[2].complete()

    report = await bed.store.arrivals.request_cancel(run.run_id, reason="enough")

    flagged_runs = {run.run_id: DESK} | {
        child.run_id: child.agent for child in tree if child is not tree[2]
    }
    assert dict(report.runs) == flagged_runs
    for run_id in flagged_runs:
        row = await bed.store.reads.run(run_id)
        assert row is not None
        assert row.cancel_requested == "enough"
    beside = await bed.store.reads.run(other.run_id)
    assert beside is not None
    assert beside.cancel_requested is None


async def test_a_commit_learns_that_its_run_is_asked_to_stop(bed: Bed) -> None:
    """Each commit after the request returns it. The first reason stays."""
    run = await bed.begin()
    before = await run.commit(run.turn(result("0")))
    await bed.store.arrivals.request_cancel(run.run_id, reason="first")
    await bed.store.arrivals.request_cancel(run.run_id, reason="second")

    after = await run.commit(run.turn(result("1")))

    assert (before.cancel_requested, after.cancel_requested) == (None, "first")


async def test_a_child_of_a_run_that_is_to_stop_is_born_so(bed: Bed) -> None:
    """Children spawned after the request inherit the flag."""
    run = await bed.begin()
    await bed.store.arrivals.request_cancel(run.run_id, reason="enough")

    child = await run.spawn("c", CLERK)

    row = await bed.store.reads.run(child.run_id)
    assert row is not None
    assert row.cancel_requested == "enough"


async def test_cancelling_an_ended_run_tells_nobody(bed: Bed) -> None:
    """No owner is notified. For an unknown run an error is raised."""
    run = await bed.begin()
    await run.complete()

    report = await bed.store.arrivals.request_cancel(run.run_id, reason="late")

    assert report.runs == ()
    with pytest.raises(UnknownRunError):
        await bed.store.arrivals.request_cancel(RunId("0" * 32), reason="what")


@pytest.mark.item(195)
async def test_changes_by_another_process_nudge_the_owner(bed: Bed) -> None:
    """Submit, message, signal and cancel each call the owner's hook with their agent."""
    bed.needs("nudges")
    run = await bed.begin()
    seen: asyncio.Queue[Nudge] = asyncio.Queue()
    bed.store.set_nudge_hook(seen.put_nowait)

    async def next_of(kind: str) -> Nudge:
        async with asyncio.timeout(20):
            while (nudge := await seen.get()).kind != kind:
                pass
        return nudge

    async with bed.rival() as rival:
        submitted = await rival.submit(agent=CLERK)
        queued = await next_of("run")
        await rival.store.arrivals.deliver([message(id="1")])
        mail = await next_of("mail")
        await rival.store.arrivals.signal(run.run_id, "go", 1, message_id="s", sender="client:x")
        signal = await next_of("signal")
        await rival.store.arrivals.request_cancel(run.run_id, reason="enough")
        cancel = await next_of("cancel")
    bed.store.set_nudge_hook(None)

    assert (queued.agent_id, queued.run_id) == (CLERK, submitted.run_id)
    assert mail.agent_id == DESK
    assert (signal.agent_id, signal.run_id) == (DESK, run.run_id)
    assert (cancel.agent_id, cancel.run_id) == (DESK, run.run_id)
