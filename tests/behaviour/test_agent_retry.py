"""An agent's `retry`: the policy of its runs for which no caller gave another one, however they started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors import agent
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.errors import RegistrationError
from tests.behaviour.agents import Acting

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId, RunId
    from actors._kernel.runtime.rows import RunRow
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

TWICE = RetryPolicy(max_retries=1, backoff_s=0.01, jitter=0, on_exhausted="fail")
THRICE = RetryPolicy(max_retries=2, backoff_s=0.01, jitter=0, on_exhausted="fail")


class Failing:
    """Fail each attempt, and count them by run."""

    def __init__(self) -> None:
        self.attempts: dict[RunId, int] = {}

    async def act(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Fail."""
        del inbox
        self.attempts[ctx.run_id] = self.attempts.get(ctx.run_id, 0) + 1
        raise ValueError("as ever")


async def ended(bed: Bed, run_id: RunId) -> tuple[int, RunRow]:
    """Return the number of attempts in the log once the run has failed, and its row."""
    row = await bed.ended(run_id)
    assert row.status is RunStatus.FAILED
    failed = await bed.log(run_id, EntryKind.RUN_ATTEMPT_FAILED, EntryKind.RUN_FAILED)
    return len(failed), row


async def first_run(bed: Bed, failing: Failing) -> RunId:
    """Return the agent's only run."""
    await bed.until(lambda: failing.attempts)
    (run_id,) = failing.attempts
    return run_id


async def test_a_submitted_run_has_its_agents_retry_policy(bed: Bed) -> None:
    """Its first entry has the policy. A policy of the call, in any form, takes precedence."""
    failing = Failing()
    target = await bed.serve(failing.act, retry=TWICE)

    run_id = await bed.runtime.submit(target, None)
    count, row = await ended(bed, run_id)
    [started] = await bed.log(run_id, EntryKind.RUN_STARTED)
    assert (count, row.retry_policy) == (2, None)
    assert RetryPolicy.model_validate(started.payload["retry"]) == TWICE

    run_with_policy = await bed.runtime.submit(target, None, retry_policy=THRICE)
    count, row = await ended(bed, run_with_policy)
    [started] = await bed.log(run_with_policy, EntryKind.RUN_STARTED)
    assert (count, row.retry_policy, "retry" in started.payload) == (3, THRICE, False)

    once = await bed.runtime.submit(target, None, max_retries=0)
    assert (await ended(bed, once))[0] == 1


async def test_a_policy_of_the_call_takes_precedence_even_if_it_is_the_default(bed: Bed) -> None:
    """`RetryPolicy()` has three retries, and the run gets them: its second attempt starts later."""
    failing = Failing()
    target = await bed.serve(failing.act, retry=TWICE)

    run_id = await bed.runtime.submit(target, None, retry_policy=RetryPolicy())
    await bed.seen(run_id, EntryKind.RUN_ATTEMPT_FAILED)
    row = await bed.row(run_id)
    await bed.runtime.cancel(run_id)

    assert row.retry_policy == RetryPolicy()
    [failed] = await bed.log(run_id, EntryKind.RUN_ATTEMPT_FAILED)
    assert row.wake_at is not None
    assert (row.wake_at - failed.ts).total_seconds() > 3


async def test_runs_of_messages_have_the_agents_retry_policy(bed: Bed) -> None:
    """A message carries no policy."""
    failing = Failing()
    target = await bed.serve(failing.act, retry=TWICE)
    await bed.runtime.send(target, "mail")

    assert (await ended(bed, await first_run(bed, failing)))[0] == 2


async def test_runs_of_schedules_have_the_agents_retry_policy(bed: Bed) -> None:
    """The messages of schedules carry no policy, either."""
    failing = Failing()
    target = await bed.serve(failing.act, retry=TWICE)
    await bed.runtime.schedules.create(target.type, target, None, delay_s=0)

    assert (await ended(bed, await first_run(bed, failing)))[0] == 2


async def test_a_child_has_its_own_agents_retry_policy(bed: Bed) -> None:
    """Spawned without a policy. The parent's policy is not used; the one of the call takes precedence."""
    failing = Failing()
    target = await bed.serve(failing.act, retry=TWICE)

    async def spawn(ctx: RunContext, inbox: list[Message]) -> list[str]:
        del inbox
        child = await ctx.spawn(target)
        await ctx.join(child)
        other = await ctx.spawn(target, retry_policy=THRICE)
        await ctx.join(other)
        return [child.run_id, other.run_id]

    runs = await bed.result(await bed.submit(await bed.serve(spawn, retry=THRICE)))
    assert [(await ended(bed, run))[0] for run in runs] == [2, 3]


async def test_the_policy_is_that_of_the_host_that_starts_the_run(bed: Bed) -> None:
    """A process that serves no agent submits; each key of a type registered as a whole has its own agent."""
    failing, type_ = Failing(), bed.name().type

    def make(agent_id: AgentId) -> Acting:
        return Acting(agent_id, failing.act, retry=THRICE if agent_id.key == "3" else TWICE)

    await bed.runtime.register_type(type_, make)
    async with bed.client() as client:
        runs = [await client.submit(type(bed.name())(type_, key), None) for key in ("2", "3")]

    assert [(await ended(bed, run))[0] for run in runs] == [2, 3]


async def test_a_run_keeps_the_policy_that_it_started_with(bed: Bed) -> None:
    """A host with other code takes it over: its agent's `retry` is for runs that start from then on."""
    failing = Failing()
    target = bed.name()
    bed.agents[target] = slow = Acting(
        target, failing.act, retry=THRICE.model_copy(update={"backoff_s": 0.5})
    )
    await bed.runtime.register(slow)
    run_id = await bed.runtime.submit(target, None)
    await bed.seen(run_id, EntryKind.RUN_ATTEMPT_FAILED)
    bed.agents[target] = Acting(target, failing.act, retry=RetryPolicy(max_retries=0))
    await bed.restart()

    assert (await ended(bed, run_id))[0] == 3
    later = await bed.runtime.submit(target, None)
    assert (await ended(bed, later))[0] == 1


async def test_a_run_that_continues_as_new_takes_the_newest_agents_policy(bed: Bed) -> None:
    """Its version is the newest one, too."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        if inbox[0].payload != "again":
            await ctx.sleep_until_signal("go")
            await ctx.continue_as_new("again")
        raise ValueError("as ever")

    target = bed.name()
    bed.agents[target] = Acting(target, act, retry=THRICE)
    await bed.runtime.register(bed.agents[target])
    run_id = await bed.runtime.submit(target, "first")
    await bed.seen(run_id, EntryKind.RUN_STARTED)
    bed.agents[target] = Acting(target, act, retry=TWICE)
    await bed.restart()
    await bed.runtime.signal(run_id, "go")

    assert (await ended(bed, run_id))[0] == 2
    [continued] = await bed.log(run_id, EntryKind.RUN_CONTINUED)
    assert RetryPolicy.model_validate(continued.payload["retry"]) == TWICE


async def test_the_decorator_accepts_a_policy_and_refuses_other_types(bed: Bed) -> None:
    """`@agent("type", retry=…)`; another type than RetryPolicy is refused at the registration."""
    type_ = bed.name().type

    @agent(type_, retry=TWICE)
    async def failing(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx, inbox
        raise ValueError("as ever")

    await bed.runtime.register(failing)
    run_id = await bed.runtime.submit(failing.id, None)
    assert (await ended(bed, run_id))[0] == 2

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        del ctx, inbox

    with pytest.raises(RegistrationError, match="`retry` is a int, not a RetryPolicy"):
        await bed.runtime.register(Acting(bed.name(), act, retry=3))
