"""The contract of every `RunStore`, first part: appends and turns, refusals and resends.

The other parts: `test_run_store_{owners,mail,signals,reading}.py`.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import MessageKey
from actors._kernel.runtime.commit import (
    DELETED,
    Committed,
    Conflict,
    Finish,
    LeaseLost,
    Missing,
    OutOfOrder,
    SignalKey,
    Suspend,
)
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.rows import NewRun
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import WakeSet
from actors.errors import (
    ConcurrentAppendError,
    ConflictError,
    IllegalTransitionError,
    InvalidEntryError,
    OutOfOrderError,
)
from tests.conformance.bed import (
    DESK,
    Turns,
    completed,
    message,
    outgoing,
    result,
    started,
    suspended,
)

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.commit import Commit
    from actors._kernel.runtime.log_entry import RunLogEntry
    from tests.conformance.bed import Bed

CLERK = AgentId("clerk", "7")


async def log_of(bed: Bed, run_id: RunId) -> list[RunLogEntry]:
    """The run's whole log."""
    return [entry async for entry in bed.store.reads.entries(run_id)]


@pytest.mark.item(111, 112, 173, 176, 177, 178, 179, 180, 181)
async def test_append_puts_entries_in_order_behind_the_end(bed: Bed) -> None:
    """Entries are numbered from 0 without gaps and have run, kind, position, payload and time."""
    run = await bed.begin()

    last = await run.append(result("0", 1), result("1", 2))

    entries = await log_of(bed, run.run_id)
    assert last == 2
    assert [e.seq for e in entries] == [0, 1, 2]
    assert [(e.kind, e.position) for e in entries[1:]] == [
        (EntryKind.EFFECT_RESULT, "0"),
        (EntryKind.EFFECT_RESULT, "1"),
    ]
    assert {e.run_id for e in entries} == {run.run_id}
    assert all(e.ts.utcoffset() is not None for e in entries)


@pytest.mark.item(112, 173)
async def test_an_append_behind_a_wrong_end_is_refused(bed: Bed) -> None:
    """The error has the expected and the actual last seq of the log."""
    run = await bed.begin()

    with pytest.raises(ConcurrentAppendError) as caught:
        await bed.store.commits.append(run.lease, [result("0")], expected_seq=5)

    assert (caught.value.run_id, caught.value.expected, caught.value.actual) == (run.run_id, 5, 0)
    assert len(await log_of(bed, run.run_id)) == 1


async def test_a_queued_run_begins_behind_those_of_its_sender(bed: Bed) -> None:
    """By an append or a commit. A run that was asked to stop may end at any time and blocks no other."""
    runs = [await bed.submit(sender=sender) for sender in ("ext:a", "ext:b", "ext:a", "ext:a")]
    first, other, second, third = (Turns(bed, run.run_id) for run in runs)

    with pytest.raises(OutOfOrderError):
        await second.append(started(DESK))
    assert isinstance(await second.send(second.turn(started(DESK))), OutOfOrder)
    await other.append(started(DESK))
    await bed.store.arrivals.request_cancel(first.run_id, reason="no longer wanted")
    await bed.store.arrivals.request_cancel(third.run_id, reason="no longer wanted")
    await third.commit(
        third.turn(
            NewEntry(EntryKind.RUN_CANCELLED, "", {"reason": "no longer wanted"}),
            then=Finish(RunStatus.CANCELLED),
        )
    )
    await second.append(started(DESK))

    assert [len(await log_of(bed, run.run_id)) for run in runs] == [0, 1, 1, 1]


@pytest.mark.item(140)
async def test_of_two_appends_behind_one_end_exactly_one_is_written(bed: Bed) -> None:
    """Of two writers that read the same last seq one is written and the other is refused."""
    run = await bed.begin()

    outcomes = await asyncio.gather(
        bed.store.commits.append(run.lease, [result("0", "a")], expected_seq=0),
        bed.store.commits.append(run.lease, [result("0", "b")], expected_seq=0),
        return_exceptions=True,
    )

    assert {type(outcome) for outcome in outcomes} == {int, ConcurrentAppendError}
    assert len(await log_of(bed, run.run_id)) == 2


async def test_an_append_sent_again_doubles_nothing(bed: Bed) -> None:
    """The second copy conflicts with the log's last seq; the entries are written once."""
    run = await bed.begin()
    await bed.store.commits.append(run.lease, [result("0")], expected_seq=0)

    with pytest.raises(ConcurrentAppendError):
        await bed.store.commits.append(run.lease, [result("0")], expected_seq=0)

    assert len(await log_of(bed, run.run_id)) == 2


async def test_a_commit_after_a_lost_append_is_refused(bed: Bed) -> None:
    """A commit after entries that were not written would leave a gap. It is refused as a conflict."""
    run = await bed.begin()
    run.seq += 2

    outcome = await run.send(run.turn(result("2")))

    assert outcome == Conflict(0)
    assert len(await log_of(bed, run.run_id)) == 1


@pytest.mark.item(251)
async def test_an_unknown_kind_or_payload_is_refused_before_anything_is_written(bed: Bed) -> None:
    """One invalid entry refuses the whole append or commit."""
    run = await bed.begin()
    wrong = NewEntry(EntryKind.RUN_SUSPENDED, "", {"sleep": True})

    with pytest.raises(InvalidEntryError):
        await run.append(result("0"), wrong)
    with pytest.raises(InvalidEntryError):
        await run.send(run.turn(result("0"), wrong))

    assert len(await log_of(bed, run.run_id)) == 1


async def test_an_append_brings_a_waiting_run_back_to_running(bed: Bed) -> None:
    """An entry of executing code ends a suspension and clears the wake set."""
    run = await bed.begin()
    await run.suspend(WakeSet(signals=("go",)))

    await run.append(NewEntry(EntryKind.RUN_RESUMED, "", {"reason": "signal"}))

    row = await bed.store.reads.run(run.run_id)
    assert row is not None
    assert (row.status, row.wake, row.last_seq) == (RunStatus.RUNNING, None, 2)


JSON_VALUES: list[JsonValue] = [
    None,
    True,
    False,
    0,
    -1,
    2**63,
    10**30,
    1.0,
    -0.5,
    1e-9,
    1e300,
    0.1 + 0.2,
    "",
    'é\u2028🎭 \\ "quoted"',
    [],
    {},
    [1, [2, [3.0, None]], {"x": [False]}],
    {"b": 1, "a": {"d": 1, "c": 2}, "B": [{"z": 0, "y": 0}]},
]


@pytest.mark.item(180)
async def test_json_values_come_back_with_type_and_order_of_keys(bed: Bed) -> None:
    """Replay returns recorded values exactly: 1.0 stays a float, keys keep their order."""
    run = await bed.begin()

    await run.append(*(result(str(n), value) for n, value in enumerate(JSON_VALUES)))
    await run.commit(run.turn(state={"all": JSON_VALUES}))
    await run.complete(JSON_VALUES)

    recorded = [e.payload["value"] for e in (await log_of(bed, run.run_id))[1:-1]]
    row = await bed.store.reads.run(run.run_id)
    state = (await bed.store.reads.state(DESK))["all"]
    assert row is not None
    for value in (recorded, row.result, state):
        # repr tells 1 from 1.0 from True, and shows the order of keys.
        assert repr(value) == repr(JSON_VALUES)


async def test_what_a_caller_does_to_its_objects_later_changes_no_row(bed: Bed) -> None:
    """Values are copied at the call and returned as new objects."""
    value: dict[str, JsonValue] = {"n": [1]}
    run = await bed.begin()
    await run.append(result("0", value))
    await run.commit(run.turn(state={"k": value}, outgoing=(outgoing(value, to=CLERK, id="o"),)))

    value["n"] = "changed"
    (await log_of(bed, run.run_id))[1].payload["value"] = "changed"

    (mail,) = await bed.store.backlog.pending_mail(agent=CLERK)
    assert (await log_of(bed, run.run_id))[1].payload["value"] == {"n": [1]}
    assert await bed.store.reads.state(DESK) == {"k": {"n": [1]}}
    assert mail.message.payload == {"n": [1]}


async def test_a_small_state_is_read_at_once_and_a_large_one_by_its_keys(bed: Bed) -> None:
    """Many keys need few queries, and one key does not load all others."""
    run = await bed.begin()
    await run.commit(run.turn(state={f"k{n}": n for n in range(10)}))
    small, other = (
        await bed.store.reads.state_at(DESK, "k3"),
        await bed.store.reads.state_at(CLERK, "k3"),
    )
    await run.commit(run.turn(state={"large": os.urandom(20_000).hex()}))
    large = [await bed.store.reads.state_at(DESK, key) for key in ("k3", "large", "none")]
    await run.commit(run.turn(state={"large": DELETED, **{f"n{n}": n for n in range(95)}}))
    many = await bed.store.reads.state_at(DESK, "n94")

    assert (small.values, small.is_whole) == ({f"k{n}": n for n in range(10)}, True)
    assert (other.values, other.is_whole) == ({}, True)
    assert [[*part.values] for part in large] == [["k3"], ["large"], []]
    assert (many.values, many.is_whole) == ({"n94": 94}, False)
    assert not any(part.is_whole for part in large)


async def test_a_commit_writes_all_of_its_parts(bed: Bed) -> None:
    """Entries, bound and sent messages, state, children and status become visible together."""
    await bed.store.arrivals.deliver([message(id="in")])
    (mail,) = await bed.store.backlog.pending_mail(agent=DESK)
    run = await bed.begin()
    await bed.store.arrivals.signal(run.run_id, "go", 1, message_id="s", sender="client:x")
    (signal,) = await bed.store.reads.signals(run.run_id)
    child = run.child("1", CLERK)
    wake = WakeSet(runs=(child.run.run_id,))

    outcome = await run.suspend(
        wake,
        bind=(mail_key(mail.sender, mail.message.id),),
        outgoing=(outgoing(to=CLERK, id="out"),),
        take_signals=(SignalKey(signal.name, signal.n),),
        state={"k": "v"},
        spawned=(child,),
    )

    row, child_row = (
        await bed.store.reads.run(run.run_id),
        await bed.store.reads.run(child.run.run_id),
    )
    assert row is not None
    assert child_row is not None
    assert outcome.last_seq == 1
    assert [(a.message.id, a.agent_id) for a in outcome.routed] == [("out", CLERK)]
    assert (row.status, row.wake, row.last_seq) == (RunStatus.SUSPENDED, wake, 1)
    assert (child_row.status, child_row.parent) == (RunStatus.PENDING, run.run_id)
    assert await bed.store.backlog.pending_mail(agent=DESK) == []
    assert await bed.store.reads.signals(run.run_id) == []
    assert await bed.store.reads.state(DESK) == {"k": "v"}


def mail_key(sender: str, id: str, agent: AgentId = DESK) -> MessageKey:  # noqa: A002
    """Return the key of a message."""
    return MessageKey(agent, sender, id)


async def test_a_refused_commit_writes_none_of_its_parts(bed: Bed) -> None:
    """A commit with a missing message leaves log, messages, state, signals and children as they were."""
    await bed.store.arrivals.deliver([message(id="here")])
    run = await bed.begin()
    child = run.child("1", CLERK)

    outcome = await run.send(
        run.turn(
            result("0"),
            bind=(mail_key("client:tests", "here"), mail_key("client:tests", "gone")),
            outgoing=(outgoing(to=CLERK, id="out"),),
            state={"k": "v"},
            spawned=(child,),
        )
    )

    assert isinstance(outcome, Missing)
    assert [m.message.id for m in await bed.store.backlog.pending_mail(agent=DESK)] == ["here"]
    assert await bed.store.backlog.pending_mail(agent=CLERK) == []
    assert await bed.store.reads.state(DESK) == {}
    assert await bed.store.reads.run(child.run.run_id) is None
    assert len(await log_of(bed, run.run_id)) == 1


async def test_a_stale_commit_does_not_harm_the_good_ones_beside_it(bed: Bed) -> None:
    """Of concurrent commits only those with a wrong end, a missing message or no lease are refused."""
    runs = [await bed.begin(agent=AgentId("desk", str(n))) for n in range(6)]
    runs[1].seq = 7
    turns = [run.turn(result("0"), state={"n": n}) for n, run in enumerate(runs)]
    turns[3] = replace(turns[3], bind=(mail_key("client:tests", "gone", runs[3].agent),))
    turns[4] = replace(turns[4], lease=replace(turns[4].lease, epoch=turns[4].lease.epoch + 1))

    outcomes = await asyncio.gather(*(bed.store.commits.commit(turn) for turn in turns))

    assert [type(o) for o in outcomes] == [
        Committed,
        Conflict,
        Committed,
        Missing,
        LeaseLost,
        Committed,
    ]
    written = [n for n, run in enumerate(runs) if len(await log_of(bed, run.run_id)) == 2]
    assert written == [0, 2, 5]


@pytest.mark.parametrize("end", ["continue", "suspend", "finish"])
async def test_a_commit_sent_again_doubles_nothing(bed: Bed, end: str) -> None:
    """A second copy is refused in each case; messages, child and entries are written once."""
    run = await bed.begin()
    child = run.child("1", CLERK)
    parts = {"outgoing": (outgoing(to=CLERK, id="out"),), "spawned": (child,)}
    turn = {
        "continue": lambda: run.turn(result("0"), **parts),  # type: ignore[arg-type]
        "suspend": lambda: run.turn(
            suspended(WakeSet(message=True)),
            then=Suspend(WakeSet(message=True)),
            **parts,  # type: ignore[arg-type]
        ),
        "finish": lambda: run.turn(
            completed(),
            then=Finish(RunStatus.COMPLETED),
            **parts,  # type: ignore[arg-type]
        ),
    }[end]()

    first, second = await bed.store.commits.commit(turn), await bed.store.commits.commit(turn)

    assert isinstance(first, Committed)
    assert isinstance(second, Conflict | Missing)
    assert len(await log_of(bed, run.run_id)) == 2
    assert len(await bed.store.backlog.pending_mail(agent=CLERK)) == 1
    assert len(await bed.store.lists.runs(agent=CLERK)) == 1


async def test_a_refused_commit_sent_again_is_refused_again(bed: Bed) -> None:
    """The second copy gets the same conflict or lost lease and writes nothing."""
    run = await bed.begin()
    stale = replace(run.turn(result("0")), expected_seq=9)
    foreign = replace(run.turn(result("0")), lease=replace(run.lease, epoch=99))

    outcomes = [await bed.store.commits.commit(turn) for turn in (stale, stale, foreign, foreign)]

    assert outcomes == [Conflict(0), Conflict(0), LeaseLost(), LeaseLost()]
    assert len(await log_of(bed, run.run_id)) == 1


async def test_an_append_and_a_commit_of_one_run_sent_at_once_are_both_written(bed: Bed) -> None:
    """A flush that holds both merges them: the commit's entries follow the append's."""
    bed.needs("merging")
    run = await bed.begin()
    turn = replace(run.turn(result("1")), expected_seq=1)

    async with asyncio.TaskGroup() as group:
        append = group.create_task(
            bed.store.commits.append(run.lease, [result("0")], expected_seq=0), name="append"
        )
        commit = group.create_task(bed.store.commits.commit(turn), name="turn")

    assert append.result() == 1
    assert commit.result() == Committed(2)
    assert [e.position for e in await log_of(bed, run.run_id)] == ["", "0", "1"]


async def test_a_commit_may_create_its_run_from_waiting_messages(bed: Bed) -> None:
    """Run row, first entries and binding are one commit. The run has the arrival of its message."""
    await bed.store.arrivals.deliver([message("a", id="1"), message("b", id="2")])
    first, second = await bed.store.backlog.pending_mail(agent=DESK)
    keys = tuple(mail_key(m.sender, m.message.id) for m in (first, second))
    run, new = bed.turns_of_mail(keys[0])

    await run.commit(run.turn(started(), create=new, bind=keys))

    row = await bed.store.reads.run(run.run_id)
    assert row is not None
    assert (row.status, row.attempt, row.arrival) == (RunStatus.RUNNING, 1, first.arrival)
    assert await bed.store.backlog.pending_mail(agent=DESK) == []
    assert await bed.store.lists.pending_count(DESK) == 2


async def test_a_message_is_bound_to_one_run_only(bed: Bed) -> None:
    """The commit of a second run is refused whole, and its row is not created."""
    await bed.store.arrivals.deliver([message(id="1")])
    key = mail_key("client:tests", "1")
    run, new = bed.turns_of_mail(key)
    await run.commit(run.turn(started(), create=new, bind=(key,)))
    other = Turns(bed, RunId("f" * 32))

    outcome = await other.send(
        other.turn(started(), create=NewRun(other.run_id, DESK), bind=(key,))
    )

    assert isinstance(outcome, Missing)
    assert await bed.store.reads.run(other.run_id) is None


async def test_a_commit_of_a_run_that_does_not_exist_is_missing(bed: Bed) -> None:
    """Without `create` the commit is refused."""
    ghost = Turns(bed, RunId("0" * 32))

    outcome = await ghost.send(ghost.turn(started()))

    assert isinstance(outcome, Missing)


async def test_state_is_written_replaced_and_removed_by_commits(bed: Bed) -> None:
    """State belongs to the agent and outlives the run, key by key."""
    run = await bed.begin()
    await run.commit(run.turn(result("0"), state={"a": 1, "b": [1], "c": None}))

    await run.commit(run.turn(result("1"), state={"a": 2, "b": DELETED, "never": DELETED}))
    await run.complete()

    assert await bed.store.reads.state(DESK) == {"a": 2, "c": None}
    assert await bed.store.reads.state(CLERK) == {}


@pytest.mark.item(160, 165)
@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED])
async def test_a_run_that_ended_refuses_everything(bed: Bed, status: RunStatus) -> None:
    """No append, commit or signal changes a run after its terminal entry."""
    run = await bed.begin()
    await run.commit(end_turn(run, status))
    before = await bed.store.reads.run(run.run_id)

    with pytest.raises((IllegalTransitionError, ConflictError)):
        await run.append(result("9"))
    outcome = await run.send(run.turn(result("9")))
    signalled = await bed.store.arrivals.signal(
        run.run_id, "go", 1, message_id="s", sender="client:x"
    )

    assert isinstance(outcome, Missing)
    assert signalled.accepted is False
    assert await bed.store.reads.run(run.run_id) == before
    assert len(await log_of(bed, run.run_id)) == 2


def end_turn(run: Turns, status: RunStatus) -> Commit:
    """Return the commit that ends the run with this outcome."""
    error: dict[str, JsonValue] = {"type": "ValueError", "message": "no"}
    match status:
        case RunStatus.COMPLETED:
            return run.turn(completed("out"), then=Finish(status, "out"))
        case RunStatus.FAILED:
            entry = NewEntry(EntryKind.RUN_FAILED, "", {"status": "failed", "error": error})
            return run.turn(entry, then=Finish(status, error=error))
        case _:
            entry = NewEntry(EntryKind.RUN_CANCELLED, "", {"reason": "no more"})
            return run.turn(entry, then=Finish(status))
