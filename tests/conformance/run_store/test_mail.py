"""The contract of every `RunStore`, second part: submits, messages, dead letters."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import MessageKey
from actors._kernel.runtime.commit import Committed, Finish, OutOfOrder, Retry
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.errors import RunConflictError
from tests.conformance.bed import DESK, EPOCH, message, outgoing, result, started

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.rows import Arrived
    from tests.conformance.bed import Bed, Turns

CLERK = AgentId("clerk", "7")
UNDECLARED = AgentId("nobody", "1")


def ids_of(mail: list[Arrived]) -> list[str]:
    """Return the message ids, in order."""
    return [item.message.id for item in mail]


def mail_key(sender: str, message_id: str) -> MessageKey:
    """Return the key of a message to the desk."""
    return MessageKey(DESK, sender, message_id)


def failed() -> NewEntry:
    """Return the entry of a failed attempt that bound the first message of its run."""
    error: JsonValue = {"type": "ValueError", "message": "no"}
    return NewEntry(
        EntryKind.RUN_ATTEMPT_FAILED,
        "",
        {"attempt": 1, "error": error, "retry_from": 0, "at": EPOCH.isoformat(), "kept": 1},
    )


async def bury(run: Turns, *, reason: str = "max_retries") -> None:
    """Fail the run and give its messages up."""
    error: dict[str, JsonValue] = {"type": "ValueError", "message": "cannot"}
    entry = NewEntry(EntryKind.RUN_FAILED, "", {"status": "failed", "error": error})
    finish = Finish(RunStatus.FAILED, error=error, dead_letter=reason)
    await run.commit(run.turn(entry, then=finish))


@pytest.mark.item(150, 156)
async def test_submit_makes_a_pending_run_that_holds_its_message(bed: Bed) -> None:
    """The run is PENDING with its policy and priority. The worker loads it with its message."""
    policy = RetryPolicy(max_retries=7)

    submitted = await bed.submit({"q": 1}, id="m", policy=policy, priority=2)

    (loaded,) = await bed.store.reads.load([submitted.run_id])
    assert submitted.arrived is not None
    assert submitted.arrived.run_id == submitted.run_id
    assert (loaded.row.status, loaded.row.attempt, loaded.row.last_seq) == (
        RunStatus.PENDING,
        0,
        -1,
    )
    assert (loaded.row.agent_id, loaded.row.priority, loaded.row.retry_policy) == (DESK, 2, policy)
    assert (loaded.row.parent, loaded.row.root) == (None, submitted.run_id)
    assert loaded.entries == ()
    assert [m.message.payload for m in loaded.messages] == [{"q": 1}]
    assert await bed.store.backlog.pending_mail(agent=DESK) == []
    assert await bed.store.lists.pending_count(DESK) == 1


@pytest.mark.item(199)
async def test_submitting_a_known_message_returns_the_first_run(bed: Bed) -> None:
    """Also for concurrent calls and after the run ended. No second run is queued."""
    both = await asyncio.gather(bed.submit(id="m"), bed.submit(id="m"))
    (row,) = await bed.store.lists.runs(agent=DESK)
    run = await bed.begin(id="m")
    await run.complete()

    again = await bed.submit(id="m")

    assert {s.run_id for s in (*both, again)} == {row.run_id}
    assert [s.arrived is None for s in both].count(True) == 1
    assert again.arrived is None
    assert len(await bed.store.lists.runs(agent=DESK)) == 1
    assert await bed.store.lists.pending_count(DESK) == 0


async def test_queued_runs_of_an_agent_stand_in_the_order_they_came(bed: Bed) -> None:
    """`queue` creates a run per message. The oldest is next, regardless of its id."""
    runs = [(await bed.submit(n)).run_id for n in range(5)]

    rows = sorted(await bed.store.backlog.open_runs(bed.shards), key=lambda row: row.arrival)
    first = await bed.store.lists.find_run_for_agent(DESK)

    assert [row.run_id for row in rows] == runs
    assert first is not None
    assert first.run_id == runs[0]


async def test_submit_with_reject_refuses_a_busy_agent(bed: Bed) -> None:
    """The error names the run. The refused message is accepted once the agent is free."""
    run = await bed.begin()

    with pytest.raises(RunConflictError) as caught:
        await bed.submit(id="second", on_conflict="reject")
    await run.complete()
    accepted = await bed.submit(id="second", on_conflict="reject")

    assert caught.value.run_id == run.run_id
    assert accepted.arrived is not None


async def test_submit_with_reject_finds_its_own_earlier_run(bed: Bed) -> None:
    """A resent message is known and not a conflict."""
    first = await bed.submit(id="m", on_conflict="reject")

    assert (await bed.submit(id="m", on_conflict="reject")).run_id == first.run_id


async def test_submit_with_join_returns_the_open_run_and_keeps_the_message(bed: Bed) -> None:
    """No second run starts, and the message is kept."""
    first = await bed.submit(id="1")

    joined = await bed.submit(id="2", on_conflict="join")
    again = await bed.submit(id="2", on_conflict="join")

    assert joined.run_id == again.run_id == first.run_id
    assert len(await bed.store.lists.runs(agent=DESK)) == 1
    assert await bed.store.lists.pending_count(DESK) == 2


async def test_submit_with_join_starts_a_run_for_a_free_agent(bed: Bed) -> None:
    """Without an open run, join acts like a plain submit."""
    joined = await bed.submit(id="2", on_conflict="join")

    row = await bed.store.reads.run(joined.run_id)
    assert row is not None
    assert row.status is RunStatus.PENDING


async def test_submit_with_interrupt_stops_the_open_run_and_queues(bed: Bed) -> None:
    """The open run is asked to stop; the new one waits for it."""
    run = await bed.begin()

    submitted = await bed.submit(id="urgent", on_conflict="interrupt")

    old, new = await bed.store.reads.run(run.run_id), await bed.store.reads.run(submitted.run_id)
    assert old is not None
    assert new is not None
    assert old.cancel_requested
    assert (new.status, new.cancel_requested) == (RunStatus.PENDING, None)


@pytest.mark.item(117, 199)
async def test_a_known_message_is_not_delivered_again(bed: Bed) -> None:
    """The key is agent, sender and id: in one call, in two, from runs, and after the message was processed."""
    first = await bed.store.arrivals.deliver([message("a", id="1"), message("b", id="1")])
    second = await bed.store.arrivals.deliver([message(id="1"), message(id="2")])
    keys = tuple(
        MessageKey(DESK, m.sender, m.message.id)
        for m in await bed.store.backlog.pending_mail(agent=DESK)
    )
    run, new = bed.turns_of_mail(keys[0])
    await run.commit(run.turn(started(), create=new, bind=keys))
    await run.complete()

    late = await bed.store.arrivals.deliver([message(id="1"), message(id="2")])

    assert [m.message.payload for m in first] == ["a"]
    assert ids_of(second) == ["2"]
    assert late == []
    assert await bed.store.lists.pending_count(DESK) == 0


async def test_one_id_from_two_senders_or_to_two_agents_is_two_messages(bed: Bed) -> None:
    """Only agent, sender and id together make a message known."""
    mail = [
        message(id="1"),
        message(id="1", sender="ext:shop"),
        message(id="1", to=CLERK),
        message(id="1", to=replace(DESK, tenant="acme")),
    ]

    assert len(await bed.store.arrivals.deliver(mail)) == len(mail)


async def test_messages_for_an_undeclared_type_are_kept(bed: Bed) -> None:
    """The messages wait as rows until a host serves the type."""
    arrived = await bed.store.arrivals.deliver([message(id="1", to=UNDECLARED)])

    assert ids_of(arrived) == ["1"]
    assert ids_of(await bed.store.backlog.pending_mail(agent=UNDECLARED)) == ["1"]


@pytest.mark.item(118, 201)
async def test_the_order_of_each_sender_is_kept(bed: Bed) -> None:
    """Ten senders send at once. Each sender's order is the order of arrival."""

    async def send(sender: str) -> None:
        for n in range(0, 30, 3):
            await bed.store.arrivals.deliver(
                [message(n + i, id=f"{n + i}", sender=sender) for i in range(3)]
            )

    await asyncio.gather(*(send(f"client:c{c}") for c in range(10)))

    mail = await bed.store.backlog.pending_mail(agent=DESK)
    assert [m.arrival for m in mail] == sorted(m.arrival for m in mail)
    for c in range(10):
        assert [m.message.payload for m in mail if m.sender == f"client:c{c}"] == list(range(30))


async def test_a_commit_takes_no_message_before_an_older_one_of_its_sender(bed: Bed) -> None:
    """The whole commit is refused and names the early message, at the start of a run and at a receive."""
    await bed.store.arrivals.deliver([message(id=f"a{n}", sender="client:a") for n in range(3)])
    await bed.store.arrivals.deliver([message(id=f"b{n}", sender="client:b") for n in range(3)])
    a, b = ([mail_key(f"client:{x}", f"{x}{n}") for n in range(3)] for x in "ab")
    run, new = bed.turns_of_mail(a[1])

    begins = await run.send(run.turn(started(), create=new, bind=(a[1], a[2], b[0])))
    row = await bed.store.reads.run(run.run_id)
    run, new = bed.turns_of_mail(b[0])
    await run.commit(run.turn(started(), create=new, bind=(b[0], a[0])))
    receives = await run.send(run.turn(result("0"), bind=(b[2],)))
    rest = await run.send(run.turn(result("0"), bind=(a[1], b[1], b[2])))

    assert begins == OutOfOrder((a[1], a[2]))
    assert row is None
    assert receives == OutOfOrder((b[2],))
    assert isinstance(rest, Committed)
    assert ids_of(await bed.store.backlog.pending_mail(agent=DESK)) == ["a2"]


async def test_messages_of_others_and_what_a_run_has_already_hold_nothing_back(bed: Bed) -> None:
    """Only older messages of the same sender to the same agent come first.

    A bound message may be bound again.
    """
    await bed.store.arrivals.deliver([message(id="1"), message(id="2", to=CLERK), message(id="3")])
    await bed.store.arrivals.deliver([message(id="4", sender="client:other"), message(id="5")])
    first, third, fifth = (mail_key("client:tests", n) for n in "135")
    run, new = bed.turns_of_mail(first)
    await run.commit(run.turn(started(), create=new, bind=(first,)))

    again = await run.send(run.turn(result("0"), bind=(first, third)))
    last = await run.send(run.turn(result("1"), bind=(fifth,)))

    assert isinstance(again, Committed)
    assert isinstance(last, Committed)
    assert ids_of(await bed.store.backlog.pending_mail(agent=DESK)) == ["4"]


async def test_a_failed_run_gives_messages_back_at_their_places(bed: Bed) -> None:
    """Bound and not yet bound messages are released.

    Each waits for a run of its own, before younger messages.
    """
    await bed.store.arrivals.deliver([message(n, id=f"{n}") for n in range(4)])
    keys = [mail_key("client:tests", f"{n}") for n in range(4)]
    run, new = bed.turns_of_mail(keys[0])
    await run.commit(run.turn(started(), create=new, bind=(keys[0], keys[1])))
    bound = await bed.store.backlog.pending_mail(agent=DESK)

    await run.commit(
        run.turn(failed(), then=Retry(EPOCH, {"message": "no"}, 0, (keys[1], keys[2])))
    )
    waiting = await bed.store.backlog.pending_mail(agent=DESK)
    await bury(run)
    other, new = bed.turns_of_mail(keys[1])
    await other.commit(other.turn(started(), create=new, bind=(keys[1],)))

    assert [(item.message.payload, item.alone) for item in bound] == [(2, False), (3, False)]
    assert [(item.message.payload, item.alone) for item in waiting] == [
        (1, True),
        (2, True),
        (3, False),
    ]
    assert [item.arrival for item in waiting[1:]] == [item.arrival for item in bound]
    assert [
        letter.message.payload for letter in await bed.store.lists.dead_letters(agent=DESK)
    ] == [0]
    assert await bed.store.lists.pending_count(DESK) == 3
    assert other.run_id != run.run_id


async def test_a_run_gives_back_nothing_that_another_one_has(bed: Bed) -> None:
    """A message that is bound to another run, or was processed, stays as it is."""
    await bed.store.arrivals.deliver([message(n, id=f"{n}") for n in range(3)])
    keys = tuple(mail_key("client:tests", f"{n}") for n in range(3))
    first, new = bed.turns_of_mail(keys[0])
    await first.commit(first.turn(started(), create=new, bind=(keys[0],)))
    await first.complete()
    second, new = bed.turns_of_mail(keys[1])
    await second.commit(second.turn(started(), create=new, bind=(keys[1],)))
    third, new = bed.turns_of_mail(keys[2])
    await third.commit(third.turn(started(), create=new, bind=(keys[2],)))

    await third.commit(third.turn(failed(), then=Retry(EPOCH, {"message": "no"}, 0, keys[:2])))

    assert await bed.store.backlog.pending_mail(agent=DESK) == []
    assert await bed.store.lists.pending_count(DESK) == 2


async def test_dead_letters_of_one_run_say_that_they_went_together(bed: Bed) -> None:
    """Each says how many messages its run had. The dead letter of a single message has its error only."""
    await bed.store.arrivals.deliver([message(n, id=f"{n}") for n in range(3)])
    keys = tuple(mail_key("client:tests", f"{n}") for n in range(3))
    for mine in (keys[:2], keys[2:]):
        run, new = bed.turns_of_mail(mine[0])
        await run.commit(run.turn(started(), create=new, bind=mine))
        await bury(run)

    letters = await bed.store.lists.dead_letters(agent=DESK)

    assert {letter.message.payload: letter.last_error for letter in letters} == {
        0: "cannot (given up with 1 other message(s) of its run)",
        1: "cannot (given up with 1 other message(s) of its run)",
        2: "cannot",
    }


async def test_a_commit_may_take_messages_of_a_sender_in_any_order(bed: Bed) -> None:
    """A commit marked `any_order` may skip older messages of the same sender."""
    await bed.store.arrivals.deliver([message(id="1"), message(id="2")])
    key = mail_key("client:tests", "2")
    run, new = bed.turns_of_mail(key)

    outcome = await run.send(run.turn(started(), create=new, bind=(key,), any_order=True))

    assert isinstance(outcome, Committed)
    assert ids_of(await bed.store.backlog.pending_mail(agent=DESK)) == ["1"]


@pytest.mark.item(118)
async def test_messages_of_a_run_arrive_in_the_order_it_sent_them(bed: Bed) -> None:
    """Within a commit and over several commits."""
    run = await bed.begin()
    for turn in range(3):
        sent = tuple(outgoing(turn * 3 + i, to=CLERK, id=f"{turn}.{i}") for i in range(3))
        await run.commit(run.turn(result(str(turn)), outgoing=sent))

    mail = await bed.store.backlog.pending_mail(agent=CLERK)

    assert [m.message.payload for m in mail] == list(range(9))
    assert {m.sender for m in mail} == {f"agent:{DESK}"}


async def test_a_commit_that_sends_a_known_message_routes_nothing(bed: Bed) -> None:
    """The id of a sent message stays known: the same id in a later commit changes nothing."""
    run = await bed.begin()
    first = await run.commit(run.turn(outgoing=(outgoing("a", to=CLERK, id="o"),)))

    second = await run.commit(run.turn(outgoing=(outgoing("b", to=CLERK, id="o"),)))

    assert ids_of(list(first.routed)) == ["o"]
    assert second.routed == ()
    assert [m.message.payload for m in await bed.store.backlog.pending_mail(agent=CLERK)] == ["a"]


async def test_a_message_comes_back_whole(bed: Bed) -> None:
    """Each field of a delivered message equals the sender's."""
    sent = replace(
        message({"b": 1, "a": [1.0]}, id="1", sender="ext:shop"),
        reply_to=RunId("a" * 32),
        correlation_id="c",
        causation_id="d",
        metadata={"traceparent": "00-x"},
    )

    await bed.store.arrivals.deliver([sent])

    (mail,) = await bed.store.backlog.pending_mail(agent=DESK)
    assert mail.message == sent
    assert (mail.sender, mail.agent_id, mail.run_id) == ("ext:shop", DESK, None)


async def test_a_message_of_an_open_run_is_still_counted(bed: Bed) -> None:
    """Pending and bound messages are counted until the run ends."""
    run = await bed.begin()
    await bed.store.arrivals.deliver([message(id="1")])
    while_open = await bed.store.lists.pending_count(DESK)
    await run.complete()

    assert (while_open, await bed.store.lists.pending_count(DESK)) == (2, 1)


@pytest.mark.item(142, 202)
async def test_a_failed_run_may_give_its_messages_up(bed: Bed) -> None:
    """The messages become dead letters with reason, attempts and error. They are not delivered again."""
    run = await bed.begin(text={"q": 1}, id="m")
    run.attempt = 4
    await run.append(NewEntry(EntryKind.RUN_RESUMED, "", {"reason": "retry"}))
    await bury(run)

    (letter,) = await bed.store.lists.dead_letters()

    assert (letter.agent_id, letter.message.id, letter.message.payload) == (DESK, "m", {"q": 1})
    assert (letter.reason, letter.attempts, letter.last_error) == ("max_retries", 4, "cannot")
    assert letter.run_id == run.run_id
    assert await bed.store.lists.pending_count(DESK) == 0
    assert (await bed.submit(id="m")).arrived is None


async def test_a_run_that_ends_without_giving_up_leaves_no_dead_letter(bed: Bed) -> None:
    """The messages that it processed are done."""
    run = await bed.begin()
    await run.complete()

    assert await bed.store.lists.dead_letters() == []


async def test_dead_letters_are_listed_newest_first_and_by_agent(bed: Bed) -> None:
    """The list respects its limit."""
    for n, agent in enumerate([DESK, CLERK, DESK]):
        await bury(await bed.begin(agent=agent, id=f"m{n}"))

    newest = await bed.store.lists.dead_letters(limit=2)

    assert [letter.message.id for letter in newest] == ["m2", "m1"]
    assert [x.message.id for x in await bed.store.lists.dead_letters(agent=DESK)] == ["m2", "m0"]


@pytest.mark.item(488)
async def test_a_dead_letter_is_redriven_once(bed: Bed) -> None:
    """It becomes a new message with a derived id and the same content. The dead letter is deleted."""
    await bury(await bed.begin(text="again", id="m"))
    (letter,) = await bed.store.lists.dead_letters()

    both = await asyncio.gather(
        bed.store.operators.redrive([letter.id]), bed.store.operators.redrive([letter.id])
    )
    unknown = await bed.store.operators.redrive([letter.id, 999_999])

    (arrived,) = [*both[0], *both[1]]
    assert arrived.message.payload == "again"
    assert arrived.message.id != "m"
    assert arrived.run_id is None
    assert unknown == []
    assert await bed.store.lists.dead_letters() == []
    assert ids_of(await bed.store.backlog.pending_mail(agent=DESK)) == [arrived.message.id]
