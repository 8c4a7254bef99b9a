"""Asks between agents: their four outcomes, cycles, crashes and late answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.commit import Commit
from actors._kernel.runtime.communication import AskKind, AskOutcome
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors._kernel.runtime.waits import WaitCycle
from actors.errors import ContractError, OtherTenantError, TerminalError, WaitCycleError
from tests.behaviour.agents import Acting
from tests.harness.faulty_store import Faults, Manner

if TYPE_CHECKING:
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

ONCE = RetryPolicy(max_retries=0)


async def echo(ctx: RunContext, inbox: list[Message]) -> Any:
    """Return a target that replies."""
    for message in inbox:
        await ctx.reply(message, {"echo": message.payload})


def _seen(outcome: AskOutcome) -> list[Any]:
    return [outcome.kind.value, outcome.result, outcome.handle is not None]


@pytest.mark.item(32, 85, 86, 87, 88, 89, 92, 244)
async def test_a_question_is_replied_to(bed: Bed) -> None:
    """The target sees the asker. The answer comes with the target's run and the end of its log."""
    questions: list[Message] = []

    async def answer(ctx: RunContext, inbox: list[Message]) -> None:
        questions.extend(inbox)
        await echo(ctx, inbox)

    target = await bed.serve(answer)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        outcome = await ctx.ask(target, {"q": 1}, timeout=15)
        return outcome.model_dump(mode="json")

    run_id = await bed.submit(await bed.serve(act))
    outcome = AskOutcome.model_validate(await bed.result(run_id))
    assert (outcome.kind, outcome.result) == (AskKind.REPLIED, {"echo": {"q": 1}})
    assert outcome.handle is not None
    assert (await bed.row(outcome.handle)).agent_id == target  # type: ignore[arg-type]
    assert outcome.last_seq >= 1
    assert questions[0].reply_to == run_id
    assert questions[0].correlation_id == questions[0].id
    kinds = await bed.kinds(run_id)
    assert (kinds.count(K.ASK_SENT), kinds.count(K.ASK_REPLIED)) == (1, 1)


@pytest.mark.item(90, 91, 244, 245, 246, 247, 248)
@pytest.mark.parametrize("by_handle", [False, True], ids=["agent", "handle"])
@pytest.mark.parametrize("end", ["replies", "returns", "fails", "is cancelled", "is slow"])
async def test_an_ask_has_one_of_four_outcomes(bed: Bed, end: str, by_handle: bool) -> None:
    """Each ask of an agent or a run has exactly one of them. A slow target is alive and named."""

    async def work(ctx: RunContext, inbox: list[Message]) -> object:
        question = next((m for m in inbox if m.reply_to), None) or await ctx.receive(timeout=15)
        assert question is not None
        if end == "replies":
            await ctx.reply(question, "answer")
        if end == "fails":
            raise TerminalError("broken")
        if end == "is cancelled":
            await ctx.cancel(ctx.run_id, reason="stopped")
            await ctx.sleep(30)
        if end == "is slow":
            await ctx.sleep_until_signal("go")
        return "output"

    target = await bed.serve(work)
    slow_s = 1 if by_handle or bed.backend == "memory" else 4  # its run has to have started by then

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        handle = await ctx.spawn(target, "boot") if by_handle else None
        outcome = await ctx.ask(handle or target, "q", timeout=slow_s if end == "is slow" else 15)
        return outcome.model_dump(mode="json")

    run_id = await bed.submit(await bed.serve(act), retry_policy=ONCE)
    outcome = AskOutcome.model_validate(await bed.result(run_id))
    expected = {
        "replies": AskKind.REPLIED,
        "returns": AskKind.REPLIED,
        "fails": AskKind.TARGET_FAILED,
        "is cancelled": AskKind.TARGET_CANCELLED,
        "is slow": AskKind.TIMED_OUT,
    }
    assert outcome.kind is expected[end]
    assert outcome.handle is not None
    row = await bed.row(outcome.handle)  # type: ignore[arg-type]
    assert row.agent_id == target
    if end in {"replies", "returns"}:
        assert outcome.result == ("answer" if end == "replies" else "output")
    if end == "is slow" and not by_handle:  # a child is cancelled at its parent's end
        assert not row.status.is_terminal
        await bed.runtime.cancel(row.run_id)


@pytest.mark.item(88, 92)
async def test_a_reply_before_the_asker_waits_is_kept(bed: Bed) -> None:
    """The reply is a row: neither a crash between reply and wait nor a second one changes anything."""

    async def answer(ctx: RunContext, inbox: list[Message]) -> str:
        await echo(ctx, inbox)
        await ctx.step("replied", bed.world.do, ctx.run_id)
        return ctx.run_id

    target = await bed.serve(answer)

    async def asking(ctx: RunContext) -> object:
        return (await ctx.ask(target, 1, timeout=15)).result

    async def blocked(ctx: RunContext) -> object:
        return await ctx.step("gate", bed.world.wait, "gate")

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return await ctx.gather(blocked(ctx), asking(ctx))

    run_id = await bed.submit(await bed.serve(act))
    await bed.until(lambda: bed.world.order)
    await bed.ended(RunId(bed.world.order[0]))
    await bed.restart()
    bed.world.gates["gate"].set()
    assert await bed.result(run_id) == [True, {"echo": 1}]
    assert len(await bed.log(run_id, K.ASK_SENT)) == 1


@pytest.mark.item(90, 91, 245)
async def test_a_late_reply_changes_nothing(bed: Bed) -> None:
    """The outcome stays timed_out, live and on each replay; the answer is stored beside it."""

    async def slow(ctx: RunContext, inbox: list[Message]) -> None:
        await ctx.sleep_until_signal("go")
        await ctx.reply(inbox[0], "late")

    target = await bed.serve(slow)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        outcome = await ctx.ask(target, 1, timeout=1)
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("again")
        return outcome.kind.value

    run_id = await bed.submit(await bed.serve(act))
    await bed.seen(run_id, K.EFFECT_RESULT, name="mark")
    async with asyncio.timeout(20):
        while not (rows := await bed.runtime.store.lists.runs(agent=target)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await bed.runtime.signal(rows[0].run_id, "go")
    await bed.ended(rows[0].run_id)
    [answer] = await bed.runtime.store.reads.answers(run_id)
    assert (answer.status, answer.result) == ("replied", "late")
    await bed.restart()
    await bed.runtime.signal(run_id, "again")
    assert await bed.result(run_id) == "timed_out"


@pytest.mark.item(87, 89, 92, 244)
async def test_crashes_of_asker_and_target_change_no_answer(bed: Bed) -> None:
    """One ask gets one answer, in each order of the crashes."""

    async def answer(ctx: RunContext, inbox: list[Message]) -> None:
        await ctx.step("target", bed.world.wait, "target")
        await echo(ctx, inbox)

    target = await bed.serve(answer)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        outcome = await ctx.ask(target, 1, timeout=18)
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.step("asker", bed.world.wait, "asker")
        return _seen(outcome)

    run_id = await bed.submit(await bed.serve(act))
    await bed.seen(run_id, K.ASK_SENT)
    await bed.restart()
    bed.world.gates["target"].set()
    await bed.seen(run_id, K.EFFECT_RESULT, name="mark")
    await bed.restart()
    bed.world.gates["asker"].set()
    assert await bed.result(run_id) == ["replied", {"echo": 1}, True]
    assert len(await bed.log(run_id, K.ASK_SENT)) == 1


@pytest.mark.item(87)
async def test_an_ask_waits_until_its_target_is_registered(bed: Bed) -> None:
    """The ask waits until the type is registered."""
    target = bed.name()

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return _seen(await ctx.ask(target, "early", timeout=15))

    async def gather(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return _seen(await ctx.ask(target, "early", timeout=0.3))

    early = await bed.submit(await bed.serve(gather))
    assert await bed.result(early) == ["timed_out", None, False]
    agent = Acting(target, echo)
    bed.agents[target] = agent
    await bed.runtime.register(agent)
    assert await bed.play(act) == ["replied", {"echo": "early"}, True]


@pytest.mark.item(32, 92)
async def test_a_reply_to_no_question(bed: Bed) -> None:
    """Nothing is sent and nothing raised."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        await ctx.reply(inbox[0], "why?")
        await ctx.reply(Message.of(ctx.agent_id, 1, id="forged"), "why?")
        return "fine"

    assert await bed.play(act) == "fine"


@pytest.mark.item(85)
async def test_bad_questions(bed: Bed) -> None:
    """No time limit, a too long one, another tenant: refused at the call."""
    target = await bed.serve(echo)

    async def body(ctx: RunContext) -> list[str]:
        problems: list[str] = []
        for agent, what, limit in (
            (target, 1, 0.0),
            (target, "x" * 300_000, 5.0),
            (AgentId("x", "1", "elsewhere"), 1, 5.0),
        ):
            try:
                await ctx.ask(agent, what, timeout=limit)
            except ContractError as exc:
                problems.append(type(exc).__name__)
        return problems

    for value in await bed.live_and_replayed(body):
        assert value == ["ContractError", "MessageTooLargeError", OtherTenantError.__name__]


@pytest.mark.item(85)
async def test_one_question_with_one_key(bed: Bed) -> None:
    """The target gets the repeated ask once, and both asks get its answer."""
    message_ids: list[str] = []

    async def answer(ctx: RunContext, inbox: list[Message]) -> None:
        message_ids.extend(message.id for message in inbox)
        await echo(ctx, inbox)

    target = await bed.serve(answer)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        first = await ctx.ask(target, 1, timeout=15, idempotency_key="k")
        second = await ctx.ask(target, 1, timeout=15, idempotency_key="k")
        return [first.result, second.result]

    assert await bed.play(act) == [{"echo": 1}, {"echo": 1}]
    assert len(set(message_ids)) == 1


@pytest.mark.item(85)
@pytest.mark.parametrize("size", [1, 2])
async def test_a_cycle_of_questions_fails_at_once(bed: Bed, size: int) -> None:
    """The ask that closes the cycle fails with the agents' names.

    If caught, its agent can go on and answer.
    """
    agents = [bed.name() for _ in range(size)]

    def acting(index: int) -> Any:
        async def act(ctx: RunContext, inbox: list[Message]) -> object:
            try:
                outcome = await ctx.ask(agents[(index + 1) % size], "q", timeout=15)
            except WaitCycleError as exc:
                for message in inbox:
                    await ctx.reply(message, "closed")
                return sorted(exc.agents)
            for message in inbox:
                await ctx.reply(message, outcome.result)
            return outcome.kind.value

        return act

    for index, agent_id in enumerate(agents):
        agent = Acting(agent_id, acting(index))
        bed.agents[agent_id] = agent
        await bed.runtime.register(agent)
    run_id = await bed.submit(agents[0])
    output = await bed.result(run_id)
    names = sorted(map(str, agents))
    assert output == (names if size == 1 else "replied")
    refused = [
        entry
        for row in await bed.runtime.store.lists.runs(status=[RunStatus.COMPLETED])
        if row.agent_id in agents
        for entry in await bed.log(row.run_id, K.EFFECT_RESULT)
        if entry.payload.get("status") == "error"
    ]
    assert len(refused) == 1


@pytest.mark.item(85)
async def test_a_cycle_of_independent_runs_fails(bed: Bed) -> None:
    """Two runs that started independently ask each other: one of them fails, naming both agents."""
    agents = [bed.name(), bed.name()]
    problems: list[list[str]] = []

    def acting(index: int) -> Any:
        async def act(ctx: RunContext, inbox: list[Message]) -> object:
            await ctx.step("gate", bed.world.wait, "gate")
            try:
                return _seen(await ctx.ask(agents[1 - index], "q", timeout=15))
            except WaitCycleError as exc:
                problems.append(sorted(exc.agents))
                raise

        return act

    for index, agent_id in enumerate(agents):
        agent = Acting(agent_id, acting(index))
        bed.agents[agent_id] = agent
        await bed.runtime.register(agent)
    runs = [await bed.submit(agent_id) for agent_id in agents]
    for run_id in runs:
        await bed.seen(run_id, K.EFFECT_INTENT)
    bed.world.gates["gate"].set()
    rows = [await bed.ended(run_id) for run_id in runs]
    assert RunStatus.FAILED in {row.status for row in rows}
    assert problems
    assert all(problem == sorted(map(str, agents)) for problem in problems)


@pytest.mark.item(85)
async def test_a_cycle_that_a_scan_finds(bed: Bed) -> None:
    """In memory or evicted, the wait that the scan names fails, and the log keeps the reason."""
    target = bed.name()

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        try:
            outcome = await ctx.ask(target, "q", timeout=600)
        except WaitCycleError as exc:
            return exc.agents
        return outcome.kind.value

    agent = await bed.serve(act)
    run_id = await bed.submit(agent)
    await bed.seen(run_id, K.ASK_SENT)
    if bed.drops:
        await bed.seen(run_id, K.RUN_SUSPENDED)
    result = asyncio.ensure_future(bed.result(run_id))
    cycle = WaitCycle(run_id, agent, "0", (agent, target))

    def scanned() -> (
        bool
    ):  # a hint may come while the host has just lost the shard: a scan repeats it
        if not result.done():
            bed.runtime._host.worker.intake.fail_cycle(cycle)
        return result.done()

    await bed.until(scanned)
    assert await result == [str(agent), str(target)]
    [entry] = await bed.log(run_id, K.EFFECT_RESULT)
    assert (entry.position, entry.payload["status"]) == ("0", "error")


@pytest.mark.item(85, 244)
async def test_an_ask_is_sent_while_another_branch_executes(bed: Bed) -> None:
    """A long effect of one branch delays neither another branch's ask nor its answer."""
    target = await bed.serve(echo)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox

        async def ask() -> Any:
            await ctx.sleep(0.01)
            outcome = await ctx.ask(target, 1, timeout=15)
            bed.world.gates["answered"].set()
            return outcome.result

        return await ctx.gather(ctx.step("gate", bed.world.wait, "answered"), ask())

    assert await bed.result(await bed.submit(await bed.serve(act))) == [True, {"echo": 1}]


def _ends_unanswered(commit: Commit) -> bool:
    """Return whether a commit ends an ask, or an approval, without an answer."""
    return any(entry.kind == K.ASK_TIMEOUT for entry in commit.entries)


@pytest.mark.parametrize("by_handle", [False, True], ids=["agent", "handle"])
@pytest.mark.parametrize("fails", [False, True], ids=["completes", "fails"])
@pytest.mark.parametrize("at", ["look", "commit"])
async def test_a_reply_before_the_time_limit_is_recorded_is_the_answer(
    bed: Bed, at: str, fails: bool, by_handle: bool
) -> None:
    """However late it comes between the asker's polls, and however the target's run ends after it."""
    faults = Faults(method="run" if by_handle else "run_of_message", manner=Manner.HOLD)
    if at == "commit":
        faults = Faults(method="commit", manner=Manner.HOLD, wanted=_ends_unanswered, nth=0)
    bed.go_wrong(faults)
    await bed.restart()
    running: list[RunId] = []

    async def answer(ctx: RunContext, inbox: list[Message]) -> object:
        question = next((m for m in inbox if m.reply_to), None) or await ctx.receive(timeout=60)
        assert question is not None
        running.append(ctx.run_id)
        await ctx.step("gate", bed.world.wait, "gate")
        await ctx.reply(question, "the reply")
        if fails:
            raise TerminalError("behind the reply")
        return "the end"

    target = await bed.serve(answer)
    limit_s = 1.0 if bed.backend == "memory" else 3.0

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        handle = await ctx.spawn(target, "boot") if by_handle else None
        outcome = await ctx.ask(handle or target, "q", timeout=limit_s)
        return [outcome.kind.value, outcome.result, outcome.handle]

    asker = await bed.submit(await bed.serve(act), retry_policy=ONCE)
    await bed.seen(asker, K.ASK_SENT)
    await bed.until(lambda: running)
    if at == "look":
        faults.nth = len(faults.calls)
    async with asyncio.timeout(30):
        await faults.held.wait()
    bed.world.gates["gate"].set()
    async with bed.client() as client:
        status = (await client.wait(running[0])).status
    faults.release.set()

    assert status is (RunStatus.FAILED if fails else RunStatus.COMPLETED)
    assert await bed.result(asker) == ["replied", "the reply", running[0]]
    assert K.ASK_TIMEOUT not in await bed.kinds(asker)
    answers = await bed.runtime.store.reads.answers(asker)  # the end of a child is recorded, too
    assert "replied" not in [answer.status for answer in answers]


async def test_of_a_run_that_replied_and_ended_the_reply_is_asked_for_again(bed: Bed) -> None:
    """By handle and with the same key after the first ask timed out: the run's end is not the answer."""

    async def answer(ctx: RunContext, inbox: list[Message]) -> object:
        question = await ctx.receive(timeout=60)
        assert question is not None
        await ctx.step("gate", bed.world.wait, "gate")
        await ctx.reply(question, "the reply")
        return "the end"

    target = await bed.serve(answer)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        handle = await ctx.spawn(target, "boot")
        first = await ctx.ask(handle, "q", timeout=1, idempotency_key="k")
        await ctx.step("open", _open)
        await ctx.join(handle)
        second = await ctx.ask(handle, "q", timeout=1, idempotency_key="k")
        return [first.kind.value, second.kind.value, second.result]

    async def _open() -> None:
        bed.world.gates["gate"].set()

    asker = await bed.submit(await bed.serve(act))
    assert await bed.result(asker) == ["timed_out", "replied", "the reply"]


async def test_limits_that_fall_near_the_reply(bed: Bed) -> None:
    """Sixty asks of a slowly polled target: each ends with its reply or timed out, never otherwise."""
    bed.go_wrong(Faults(method="run_of_message", manner=Manner.DELAY, always=True, delay_s=0.05))
    await bed.restart()
    limit_s = 0.5

    async def answer(ctx: RunContext, inbox: list[Message]) -> str:
        await ctx.step("work", asyncio.sleep, float(str(inbox[0].payload)))
        await ctx.reply(inbox[0], "the reply")
        return "the end"

    async def asking(ctx: RunContext, n: int) -> list[Any]:
        pause_s = limit_s - 0.03 + 0.002 * n
        outcome = await ctx.ask(targets[n], pause_s, timeout=limit_s)
        return [outcome.kind.value, outcome.result]

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return await ctx.gather(*(asking(ctx, n) for n in range(60)))

    targets = [await bed.serve(answer) for _ in range(60)]
    outcomes = await bed.result(await bed.submit(await bed.serve(act)))

    assert all(outcome in (["replied", "the reply"], ["timed_out", None]) for outcome in outcomes)
