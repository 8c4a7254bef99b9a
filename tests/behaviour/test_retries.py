"""Failures and retries: each run has one counter."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.errors import RetryAfter, RunFailedError, TerminalError

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


@pytest.mark.item(25, 45, 63, 124, 163, 164, 182)
@pytest.mark.parametrize("retries", [0, 2])
async def test_an_agent_that_raises_has_max_retries_more_attempts(bed: Bed, retries: int) -> None:
    """max_retries=n is n + 1 attempts, one run.started, and one run.failed at the end."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        bed.world.order.append(str(ctx.meta.attempt))
        raise ValueError("broken for good")

    policy = RetryPolicy(max_retries=retries, backoff_s=0.01, jitter=0)
    run_id = await bed.submit(await bed.serve(act), priority=3, retry_policy=policy)
    with pytest.raises(RunFailedError, match="broken for good") as caught:
        await bed.result(run_id)
    assert caught.value.status == RunStatus.FAILED
    assert bed.world.order == [str(n) for n in range(1, retries + 2)]
    kinds = await bed.kinds(run_id)
    assert kinds == ["run.started", "msg.received", *["run.attempt_failed"] * retries, "run.failed"]
    row = await bed.row(run_id)
    assert (row.status, row.attempt, row.priority) == (RunStatus.FAILED, retries + 1, 3)
    assert row.error is not None
    assert row.error["type"] == "builtins:ValueError"
    assert row.error["status"] == "agent_crashed"


@pytest.mark.item(124, 163, 166)
async def test_the_back_off_doubles_after_each_attempt(bed: Bed) -> None:
    """0.2 s, then 0.4 s; between attempts the run is PENDING."""
    times: list[float] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx, inbox
        times.append(asyncio.get_running_loop().time())
        raise ValueError

    agent = await bed.serve(act)
    policy = RetryPolicy(max_retries=2, backoff_s=0.2, factor=2, jitter=0)
    waiting = await bed.submit(agent, retry_policy=policy.model_copy(update={"backoff_s": 200.0}))
    await bed.seen(waiting, EntryKind.RUN_ATTEMPT_FAILED)
    assert (await bed.row(waiting)).status is RunStatus.PENDING
    await bed.runtime.cancel(waiting)
    await bed.ended(waiting)
    times.clear()
    await bed.ended(await bed.submit(agent, retry_policy=policy))
    first, second = times[1] - times[0], times[2] - times[1]
    assert 0.2 <= first < 0.35 + bed.slack_s
    assert 0.4 <= second < 0.6 + bed.slack_s


@pytest.mark.item(163)
async def test_a_back_off_survives_a_crash(bed: Bed) -> None:
    """The next host starts the next attempt when it is due."""

    async def act(ctx: RunContext, inbox: list[Message]) -> int:
        del inbox
        if ctx.meta.attempt == 1:
            raise ValueError
        return ctx.meta.attempt

    policy = RetryPolicy(max_retries=2, backoff_s=0.3, jitter=0)
    run_id = await bed.submit(await bed.serve(act), retry_policy=policy)
    await bed.seen(run_id, EntryKind.RUN_ATTEMPT_FAILED)
    await bed.restart()
    assert await bed.result(run_id) == 2


@pytest.mark.item(71)
async def test_a_new_attempt_executes_only_the_failed_step_again(bed: Bed) -> None:
    """The error that ended an attempt is not replayed in the next one."""

    async def flaky() -> str:
        bed.world.count["flaky"] += 1
        if bed.world.count["flaky"] == 1:
            raise ConnectionError("once")
        return "fine"

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        first = await ctx.step("first", bed.world.do, "first", 1)
        return [first, await ctx.step("flaky", flaky)]

    assert await bed.play(act) == [1, "fine"]
    assert bed.world.count == {"first": 1, "flaky": 2}


@pytest.mark.item(63, 119, 202)
@pytest.mark.parametrize(
    ("error", "reason"),
    [(ValueError("no"), "max_retries"), (TerminalError("never"), "explicit")],
    ids=["exhausted", "terminal"],
)
async def test_a_run_that_fails_for_good_leaves_a_dead_letter(
    bed: Bed, error: Exception, reason: str
) -> None:
    """Its message is there with reason and error, and redriving it starts a new run."""
    broken = [True]

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del ctx
        if broken[0]:
            raise error
        bed.world.order.append(str(inbox[0].payload))
        return inbox[0].payload

    agent = await bed.serve(act)
    policy = RetryPolicy(max_retries=1, backoff_s=0.01)
    run_id = await bed.submit(agent, "precious", retry_policy=policy)
    assert (await bed.ended(run_id)).status is RunStatus.FAILED
    assert await bed.runtime.store.lists.pending_count(agent) == 0
    [letter] = await bed.runtime.store.lists.dead_letters(agent=agent)
    assert (letter.reason, letter.run_id, letter.message.payload) == (reason, run_id, "precious")
    assert str(error) in letter.last_error
    broken[0] = False
    redriven = await bed.runtime.store.operators.redrive([letter.id])
    bed.runtime._host.worker.intake.routed(tuple(redriven))
    await bed.result(await bed.submit(agent, "last"))
    assert bed.world.order == ["precious", "last"]
    assert await bed.runtime.store.lists.dead_letters(agent=agent) == []
    assert await bed.runtime.store.operators.redrive([letter.id]) == []


@pytest.mark.item(63)
async def test_terminal_error_is_not_retried(bed: Bed) -> None:
    """The run has one attempt, and is failed with the error's text."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx, inbox
        bed.world.count["attempt"] += 1
        raise TerminalError("the order does not exist")

    run_id = await bed.submit(await bed.serve(act))
    with pytest.raises(RunFailedError, match="the order does not exist"):
        await bed.result(run_id)
    assert bed.world.count["attempt"] == 1
    [failed] = await bed.log(run_id, EntryKind.RUN_FAILED)
    assert failed.payload["status"] == "terminal"


@pytest.mark.item(63, 166)
async def test_retry_after_sets_the_delay_of_the_next_attempt(bed: Bed) -> None:
    """The next attempt starts after the author's delay, whatever the policy is."""
    times: list[float] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        times.append(asyncio.get_running_loop().time())
        if ctx.meta.attempt == 1:
            raise RetryAfter(0.3, "rate limit")
        return "done"

    policy = RetryPolicy(max_retries=1, backoff_s=100)
    run_id = await bed.submit(await bed.serve(act), retry_policy=policy)
    assert await bed.result(run_id) == "done"
    assert 0.3 <= times[1] - times[0] < 0.5 + bed.slack_s


@pytest.mark.item(63, 166)
async def test_non_retryable_classes_end_the_run_at_once(bed: Bed) -> None:
    """An error class named by the policy is as final as TerminalError."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx, inbox
        await bed.world.fail("attempt", KeyError)

    policy = RetryPolicy(max_retries=5, backoff_s=0.01, non_retryable=("KeyError",))
    run_id = await bed.submit(await bed.serve(act), retry_policy=policy)
    assert (await bed.ended(run_id)).status is RunStatus.FAILED
    assert bed.world.count["attempt"] == 1


@pytest.mark.item(166)
async def test_on_exhausted_pause_parks_the_run_until_it_is_resumed(bed: Bed) -> None:
    """The operator's `~retry` starts it again, and it can succeed."""
    broken = [True]

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        await ctx.step("before", bed.world.do, "before")
        if broken[0]:
            raise ValueError("not yet")
        return "at last"

    policy = RetryPolicy(max_retries=1, backoff_s=0.01, on_exhausted="pause")
    run_id = await bed.submit(await bed.serve(act), retry_policy=policy)
    parked = await bed.seen(run_id, EntryKind.RUN_PARKED)
    assert parked.payload["reason"] == "retries"
    row = await bed.row(run_id)
    assert (row.status, row.parked) == (RunStatus.SUSPENDED, "retries")
    broken[0] = False
    await bed.runtime.resolve(run_id)
    assert await bed.result(run_id) == "at last"
    assert bed.world.count["before"] == 1


@pytest.mark.item(104)
async def test_an_agent_that_hangs_past_its_deadline_fails_the_attempt(bed: Bed) -> None:
    """Inside a step, and outside of ctx; the run does not occupy its agent for ever."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        async def hang() -> None:
            if ctx.meta.attempt == 1:
                await asyncio.Event().wait()

        acting.deadline_s = 20.0  # of the next attempt
        if inbox[0].payload == "step":
            await ctx.step("hang", hang)
        else:
            await hang()
        return ctx.meta.attempt

    agent = await bed.serve(act)
    acting: Any = bed.agents[agent]
    for where in ("step", "outside"):
        acting.deadline_s = 0.2
        run_id = await bed.submit(agent, where)
        assert await bed.result(run_id) == 2
        [failed] = await bed.log(run_id, EntryKind.RUN_ATTEMPT_FAILED)
        error: Any = failed.payload["error"]
        assert error["type"] == "actors.errors:DeadlineExceededError"
        assert "did not finish within 0.2 s" in error["message"]


@pytest.mark.item(58)
async def test_waiters_see_failed_only_when_no_retry_is_left(bed: Bed) -> None:
    """A result requested before the first attempt comes from the attempt that succeeds."""

    async def act(ctx: RunContext, inbox: list[Message]) -> int:
        del inbox
        if ctx.meta.attempt < 3:
            raise ValueError
        return ctx.meta.attempt

    run_id = await bed.submit(await bed.serve(act))
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(bed.result(run_id)) for _ in range(3)]
    assert [task.result() for task in waiting] == [3, 3, 3]
