"""The contract of every `RunStore`: answers from replies, ends of runs and persons, at any time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import pytest

from actors._kernel.agent.message import MessageKey
from actors._kernel.runtime.commit import Answered, Committed, Conflict, Finish, Missing
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import Answer, Wait, WakeSet
from actors.errors import UnknownRunError
from tests.conformance.bed import DESK, completed, message, result
from tests.conformance.talk import (
    CLERK,
    answers,
    ask_wait,
    asked,
    join_wait,
    question,
    reply,
    rest,
    row,
    without_place,
)

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue
    from tests.conformance.bed import Bed, Turns

OTHER = AgentId("clerk", "8")


@pytest.mark.item(88)
async def test_a_reply_is_there_before_anybody_waits(bed: Bed) -> None:
    """The reply is stored with its value and its author. A later suspension ends at once."""
    asker = await bed.begin()
    target = await asked(asker)

    outcome = await target.commit(target.turn(result("0"), answers=(reply(asker, {"n": [1]}),)))
    stored = await answers(bed, asker)
    suspension = await rest(asker, ask_wait("ask-1"))

    assert stored == [
        Answer(asker.run_id, "ask-1", "replied", {"n": [1]}, by=target.run_id, last_seq=1)
    ]
    assert Nudge("signal", DESK, asker.run_id) in outcome.nudges
    assert suspension.wake_now
    assert suspension.cycles == ()


async def test_of_several_answers_the_first_counts(bed: Bed) -> None:
    """A second reply, the end of the target's run and a person's decision change nothing."""
    asker = await bed.begin()
    target = await asked(asker)
    await target.commit(
        target.turn(result("0"), answers=(reply(asker, "first"), reply(asker, "second")))
    )

    await target.commit(target.turn(result("1"), answers=(reply(asker, "third"),)))
    await target.complete("the end", answers=(reply(asker, "fourth"),))
    await rest(asker, ask_wait("ask-1"))
    late = await bed.store.arrivals.answer(Answer(asker.run_id, "ask-1", "denied"))

    assert [(a.status, a.result) for a in await answers(bed, asker)] == [("replied", "first")]
    assert not late.accepted


async def test_a_reply_in_the_last_commit_comes_before_the_end(bed: Bed) -> None:
    """A run that replies and ends in one commit has replied."""
    asker = await bed.begin()
    target = await asked(asker)

    await target.complete("the end", answers=(reply(asker, "said"),))

    assert [(a.status, a.result) for a in await answers(bed, asker)] == [("replied", "said")]


async def test_a_late_reply_is_kept(bed: Bed) -> None:
    """Also after the asker's end. It can be read, and no host is notified."""
    asker = await bed.begin()
    target = await asked(asker)
    await asker.complete()

    outcome = await target.commit(target.turn(result("0"), answers=(reply(asker, "late"),)))

    assert [a.result for a in await answers(bed, asker)] == ["late"]
    assert outcome.nudges == ()


async def test_a_reply_to_what_was_never_asked_is_ignored(bed: Bed) -> None:
    """A wrong key or agent, an unknown run and a plain message give no answer. The commit is written."""
    asker, bystander = await bed.begin(), await bed.begin(agent=OTHER)
    target = await asked(asker)
    await bed.store.arrivals.deliver([message(to=CLERK, id="mail")])

    await target.commit(
        target.turn(
            result("0"),
            answers=(
                reply(asker, 1, id="other"),
                reply(asker, 2, id="mail"),
                Answer(RunId("0" * 32), "ask-1", "replied", 3),
            ),
        )
    )
    await bystander.commit(bystander.turn(result("0"), answers=(reply(asker, 4),)))

    assert await answers(bed, asker) == []
    assert target.seq == 1


async def test_a_reply_does_not_cross_tenants(bed: Bed) -> None:
    """A run of another tenant cannot answer, even if it has the message."""
    asker = await bed.begin()
    stranger_id = AgentId("clerk", "7", "acme")
    sent = question(asker, stranger_id)
    forged = replace(sent.message, target=stranger_id)
    await bed.store.arrivals.deliver([forged])
    stranger = await bed.begin(agent=stranger_id)
    (mail,) = await bed.store.backlog.pending_mail(agent=stranger_id)

    await stranger.complete(
        "no", bind=(MessageKey(stranger_id, mail.sender, "ask-1"),), answers=(reply(asker, "no"),)
    )

    assert await answers(bed, asker) == []


async def test_an_answer_is_taken_once(bed: Bed) -> None:
    """By the commit that names it. A commit that names a missing answer is refused whole."""
    asker = await bed.begin()
    target = await asked(asker)
    early = await asker.send(asker.turn(result("0"), take_answers=("ask-1",)))
    await target.commit(target.turn(answers=(reply(asker, 1),)))

    await asker.commit(asker.turn(result("0"), take_answers=("ask-1",)))
    again = await asker.send(asker.turn(result("1"), take_answers=("ask-1",)))
    more = await target.commit(target.turn(answers=(reply(asker, 2),)))

    assert isinstance(early, Missing)
    assert isinstance(again, Missing)
    assert more.nudges == ()
    assert await answers(bed, asker) == []


async def test_a_commit_that_is_sent_again_answers_once(bed: Bed) -> None:
    """The second copy conflicts with the log's last entry and changes nothing."""
    asker = await bed.begin()
    target = await asked(asker)
    turn = target.turn(result("0"), answers=(reply(asker, 1),))
    await target.commit(turn)
    await asker.commit(asker.turn(result("0"), take_answers=("ask-1",)))

    again = await bed.store.commits.commit(turn)

    assert again == Conflict(1)
    assert await answers(bed, asker) == []


class End(Protocol):
    """Ends a run."""

    async def __call__(self, run: Turns) -> None:
        """Write its terminal entry."""
        ...


async def _complete(run: Turns) -> None:
    await run.complete({"done": True})


async def _fail(run: Turns) -> None:
    await run.fail("boom")


async def _cancel(run: Turns) -> None:
    await run.bed.store.arrivals.request_cancel(run.run_id, reason="enough")
    await run.cancel("enough")


ERROR: dict[str, JsonValue] = {"type": "builtins:ValueError", "message": "boom"}
ENDS = pytest.mark.parametrize(
    ("end", "expected"),
    [
        (_complete, Answer(RunId(""), "", "completed", {"done": True})),
        (_fail, Answer(RunId(""), "", "failed", error=ERROR)),
        (_cancel, Answer(RunId(""), "", "cancelled", error={"message": "enough"})),
    ],
    ids=["completed", "failed", "cancelled"],
)


@ENDS
async def test_a_target_that_ends_answers_what_it_was_asked(
    bed: Bed, end: End, expected: Answer
) -> None:
    """The answer is the outcome, also if the run's code did not reply. The waiting run is notified."""
    asker = await bed.begin()
    target = await asked(asker)
    await rest(asker, ask_wait("ask-1"))

    await end(target)

    (answer,) = await answers(bed, asker)
    assert without_place(answer) == replace(expected, run_id=asker.run_id, key="ask-1")
    assert (answer.by, answer.last_seq) == (target.run_id, 1)


@pytest.mark.item(129, 232)
@ENDS
async def test_a_child_that_ends_answers_its_parent(bed: Bed, end: End, expected: Answer) -> None:
    """The key is the child's run id, whether the parent joins it or not."""
    parent = await bed.begin()
    child = await parent.spawn("c", CLERK)
    await child.start()

    await end(child)

    (answer,) = await answers(bed, parent)
    assert without_place(answer) == replace(expected, run_id=parent.run_id, key=child.run_id)
    assert (await rest(parent, join_wait(child))).wake_now


@ENDS
async def test_an_end_answers_everybody_who_joins_or_asked_by_handle(
    bed: Bed, end: End, expected: Answer
) -> None:
    """Each run gets the answer under the key of its own wait, also without a question."""
    target = await bed.begin(agent=CLERK)
    joiner, asker = await bed.begin(), await bed.begin(agent=OTHER)
    await rest(joiner, join_wait(target))
    await rest(asker, join_wait(target, key="ask-9"))

    await end(target)

    for run, key in [(joiner, target.run_id), (asker, "ask-9")]:
        (answer,) = await answers(bed, run)
        assert without_place(answer) == replace(expected, run_id=run.run_id, key=key)


async def test_an_end_names_those_it_wakes(bed: Bed) -> None:
    """Parent, joiner and asker are nudged once each. An ended run is not."""
    parent = await bed.begin()
    child = await parent.spawn("c", CLERK)
    joiner, ended_joiner = await bed.begin(agent=OTHER), await bed.begin(agent=AgentId("desk", "9"))
    await rest(parent, join_wait(child))
    await rest(joiner, join_wait(child))
    await rest(ended_joiner, join_wait(child))
    await ended_joiner.complete()
    await child.start()

    outcome = await child.complete()

    assert {nudge for nudge in outcome.nudges if nudge.kind == "signal"} == {
        Nudge("signal", DESK, parent.run_id),
        Nudge("signal", OTHER, joiner.run_id),
    }
    assert len(outcome.nudges) == len(set(outcome.nudges))


async def test_a_question_that_waits_is_not_answered_by_another_run(bed: Bed) -> None:
    """The end of a run that did not take the message does not answer the question."""
    busy = await bed.begin(agent=CLERK)
    asker = await bed.begin()
    await asker.commit(asker.turn(outgoing=(question(asker, CLERK),)))

    await busy.complete()

    assert await answers(bed, asker) == []
    assert len(await bed.store.backlog.pending_mail(agent=CLERK)) == 1


async def test_a_message_that_only_looks_like_a_question_answers_nobody(bed: Bed) -> None:
    """An external client's message may name a run to reply to, but that run's agent did not send it."""
    victim = await bed.begin()
    forged = replace(message(to=CLERK, id="ask-1", sender="ext:mallory"), reply_to=victim.run_id)
    await bed.store.arrivals.deliver([forged])
    target = await bed.begin(agent=CLERK)

    await target.complete(bind=(MessageKey(CLERK, "ext:mallory", "ask-1"),))

    assert await answers(bed, victim) == []


@pytest.mark.item(129, 233)
@ENDS
async def test_a_join_of_an_ended_run_is_answered_at_once(
    bed: Bed, end: End, expected: Answer
) -> None:
    """The commit that starts the wait stores the result, also for a run that is not the parent."""
    target, joiner = await bed.begin(agent=CLERK), await bed.begin()
    await end(target)
    before = await answers(bed, joiner)

    outcome = await rest(joiner, join_wait(target))

    (answer,) = await answers(bed, joiner)
    assert before == []
    assert without_place(answer) == replace(expected, run_id=joiner.run_id, key=target.run_id)
    assert outcome.wake_now


async def test_a_hot_join_of_an_ended_run_is_told(bed: Bed) -> None:
    """A run that executes while it waits is notified of the answer by a nudge."""
    target, joiner = await bed.begin(agent=CLERK), await bed.begin()
    await target.complete("done")

    outcome = await joiner.commit(joiner.turn(result("0"), waits=(join_wait(target),)))

    assert Nudge("signal", DESK, joiner.run_id) in outcome.nudges
    assert [a.result for a in await answers(bed, joiner)] == ["done"]


async def test_a_join_does_not_cross_tenants(bed: Bed) -> None:
    """Runs of other tenants give no answer, before or after their end."""
    foreign = AgentId("clerk", "7", "acme")
    target, joiner = await bed.begin(agent=foreign), await bed.begin()

    await rest(joiner, join_wait(target))
    await target.complete("secret")
    outcome = await rest(joiner, join_wait(target))

    assert not outcome.wake_now
    assert await answers(bed, joiner) == []


async def test_of_an_end_and_a_join_at_once_one_sees_the_other(bed: Bed) -> None:
    """In any grouping the answer is stored and the waiting run is notified."""
    pairs = [
        (
            await bed.begin(agent=AgentId("desk", f"{n}")),
            await bed.begin(agent=AgentId("clerk", f"{n}")),
        )
        for n in range(12)
    ]

    outcomes = await asyncio.gather(
        *(rest(joiner, join_wait(target)) for joiner, target in pairs),
        *(target.complete(n) for n, (_, target) in enumerate(pairs)),
    )

    for n, (joiner, _) in enumerate(pairs):
        assert [a.result for a in await answers(bed, joiner)] == [n]
        is_notified = (
            Nudge("signal", joiner.agent, joiner.run_id) in outcomes[len(pairs) + n].nudges
        )
        assert outcomes[n].wake_now or is_notified


async def test_a_run_may_be_joined_again(bed: Bed) -> None:
    """A later wait for a taken answer gets it again."""
    target, joiner = await bed.begin(agent=CLERK), await bed.begin()
    await target.complete("done")
    await rest(joiner, join_wait(target))
    await joiner.commit(joiner.turn(result("0"), take_answers=(target.run_id,), waits=()))

    outcome = await rest(joiner, join_wait(target))

    assert outcome.wake_now
    assert [a.result for a in await answers(bed, joiner)] == ["done"]


async def test_an_answer_that_nobody_takes_stays(bed: Bed) -> None:
    """A later or repeated wait gets it at once. Other waits change nothing."""
    asker = await bed.begin()
    target = await asked(asker)
    await target.complete(answers=(reply(asker, "yes"),))
    await rest(asker, ask_wait("ask-1"))
    await asker.commit(asker.turn(result("0"), waits=()))

    outcome = await rest(asker, ask_wait("ask-1"))

    assert outcome.wake_now
    assert [a.result for a in await answers(bed, asker)] == ["yes"]


async def test_a_person_answers_once(bed: Bed) -> None:
    """The first decision is stored with its values. The second is refused as late."""
    run = await bed.begin()
    wait = Wait("1", "approval", "appr-1", request={"amount": 5})
    await rest(run, wait)
    decision = Answer(run.run_id, "appr-1", "approved", {"by": "ada"})

    both = [await bed.store.arrivals.answer(decision), await bed.store.arrivals.answer(decision)]

    assert [outcome.accepted for outcome in both] == [True, False]
    assert {outcome.agent_id for outcome in both} <= {DESK, None}
    assert await answers(bed, run) == [decision]


async def test_answers_that_come_together_count_each_for_itself(bed: Bed) -> None:
    """The first answer of each wait is stored. Early decisions and unknown runs do not affect the others."""
    run, other = await bed.begin(), await bed.begin(agent=AgentId("desk", "2"))
    await run.commit(run.turn(waits=(Wait("1", "approval", "appr-1", request={}),)))
    batch = [
        Answer(run.run_id, "early", "approved"),
        Answer(run.run_id, "early", "replied", 1),
        Answer(run.run_id, "appr-1", "denied", "first"),
        Answer(RunId("0" * 32), "k", "replied"),
        Answer(run.run_id, "appr-1", "approved", "second"),
        Answer(run.run_id, "appr-1", "denied", "first"),
        Answer(other.run_id, "k", "failed", error={"message": "x"}),
    ]

    outcomes = await asyncio.gather(*map(bed.store.arrivals.answer, batch), return_exceptions=True)

    assert isinstance(outcomes.pop(3), UnknownRunError)
    accepted = [outcome.accepted for outcome in outcomes if not isinstance(outcome, BaseException)]
    assert accepted == [False, True, True, False, False, True]
    assert sorted(await answers(bed, run), key=lambda answer: answer.key) == [batch[2], batch[1]]
    assert await answers(bed, other) == [batch[-1]]


async def test_an_answer_needs_a_run(bed: Bed) -> None:
    """For an unknown run an error is raised."""
    with pytest.raises(UnknownRunError):
        await bed.store.arrivals.answer(Answer(RunId("0" * 32), "k", "approved"))


async def test_of_a_person_and_an_end_at_once_one_counts(bed: Bed) -> None:
    """The stored answer is entirely that of the first writer."""
    pairs = []
    for n in range(10):
        asker = await bed.begin(agent=AgentId("desk", f"{n}"))
        pairs.append((asker, await asked(asker, AgentId("clerk", f"{n}"))))
        await rest(asker, ask_wait("ask-1", AgentId("clerk", f"{n}")))

    await asyncio.gather(
        *(target.complete("end") for _, target in pairs),
        *(
            bed.store.arrivals.answer(Answer(asker.run_id, "ask-1", "denied", "person"))
            for asker, _ in pairs
        ),
    )

    for asker, _ in pairs:
        (answer,) = await answers(bed, asker)
        assert (answer.status, answer.result) in [("completed", "end"), ("denied", "person")]


@pytest.mark.item(195)
async def test_an_answer_by_another_process_nudges_the_owner(bed: Bed) -> None:
    """The owner of the waiting run is notified of a decision made in another process."""
    bed.needs("nudges")
    run = await bed.begin()
    await run.commit(run.turn(waits=(Wait("1", "approval", "appr-1", request={}),)))
    seen: asyncio.Queue[Nudge] = asyncio.Queue()
    bed.store.set_nudge_hook(seen.put_nowait)

    async with bed.rival() as rival, asyncio.timeout(20):
        await rival.store.arrivals.answer(Answer(run.run_id, "appr-1", "approved"))
        while (nudge := await seen.get()).kind != "signal":
            pass
    bed.store.set_nudge_hook(None)

    assert (nudge.agent_id, nudge.run_id) == (DESK, run.run_id)


async def test_a_suspension_waits_for_the_answers_it_names(bed: Bed) -> None:
    """Answers with other keys and taken answers do not wake it."""
    asker = await bed.begin()
    target = await asked(asker)
    await target.complete(1)
    other = await asker.suspend(WakeSet(runs=("ask-2",)))
    waiting_outcome = await asker.suspend(WakeSet(runs=("ask-2", "ask-1")))
    taking_outcome = await asker.suspend(WakeSet(runs=("ask-1",)), take_answers=("ask-1",))

    assert [o.wake_now for o in (other, waiting_outcome, taking_outcome)] == [False, True, False]


async def test_an_ended_run_is_as_its_log_says(bed: Bed) -> None:
    """Answers, waits and children do not change the row that the log folds to."""
    parent = await bed.begin()
    child = await parent.spawn("c", CLERK, boot="go")
    await child.start()
    await rest(parent, join_wait(child))
    await child.complete("done")
    await parent.commit(
        parent.turn(
            completed("all"), then=Finish(RunStatus.COMPLETED, "all"), take_answers=(child.run_id,)
        )
    )

    for run in (parent, child):
        assert await bed.store.operators.refold(run.run_id) == await row(bed, run)


async def test_a_wait_does_not_end_unanswered_behind_its_answer(bed: Bed) -> None:
    """Of an answer and a commit that ends the wait without one the first is written. A commit is whole."""
    run = await bed.begin()
    target = await asked(run)
    await target.commit(target.turn(result("0"), answers=(reply(run, "yes"),)))
    ends = run.turn(result("0"), unless_answered=("ask-1", "ask-2"), state={"k": 1})

    late = await run.send(ends)
    assert late == Answered(("ask-1",))
    assert await bed.store.reads.state(run.agent) == {}
    await run.commit(run.turn(result("0"), unless_answered=("ask-2",), take_answers=("ask-1",)))

    outcome = await run.send(run.turn(result("1"), unless_answered=("ask-1",)))
    assert isinstance(outcome, Committed)  # as for one that asks again with the same key


@pytest.mark.parametrize("n", range(5))
async def test_of_an_answer_and_the_end_of_its_wait_at_once_one_is_first(bed: Bed, n: int) -> None:
    """Never both: a person's decision is either accepted or refused because the wait is over."""
    del n
    run = await bed.begin()
    await run.commit(run.turn(waits=(Wait("1", "approval", "appr", request={}),)))
    answer = Answer(run.run_id, "appr", "approved", {"by": "Kim"})

    ended, answer_outcome = await asyncio.gather(
        run.send(run.turn(result("1"), unless_answered=("appr",), waits=())),
        bed.store.arrivals.answer(answer),
    )

    assert answer_outcome.accepted == isinstance(ended, Answered)
    assert not (await bed.store.arrivals.answer(answer)).accepted
    keys = ["appr"] if answer_outcome.accepted else []
    assert [row.key for row in await bed.store.reads.answers(run.run_id)] == keys
