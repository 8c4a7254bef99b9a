"""Forks: a run continues from an entry of another run's log, and no earlier effect is repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.agent import HistoryRetention, SpawnBudget
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.errors import ContractError, UnknownRunError
from tests.behaviour.test_approvals import opened

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


async def three_steps(bed: Bed) -> AgentId:
    """Return an agent that executes a, b and c and returns its message with the number of each."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        numbers = [await ctx.step(name, bed.world.do, name) for name in ("a", "b", "c")]
        return [inbox[0].payload, len(numbers)]

    return await bed.serve(act)


async def behind(bed: Bed, run_id: RunId, step: str) -> int:
    """Return the seq of the step's result."""
    (seq,) = [
        e.seq for e in await bed.log(run_id, K.EFFECT_RESULT) if e.payload.get("name") == step
    ]
    return seq


async def test_a_fork_replays_the_entries_and_continues_live(bed: Bed) -> None:
    """Steps up to the entry are not executed again, later ones are; the other run is untouched."""
    agent = await three_steps(bed)
    run_id = await bed.submit(agent, "work")
    await bed.result(run_id)
    before = await bed.log(run_id)

    fork = await bed.runtime.fork_run(run_id, at_seq=await behind(bed, run_id, "b"))

    assert await bed.result(fork) == ["work", 3]
    assert dict(bed.world.count) == {"a": 1, "b": 1, "c": 2}
    assert await bed.log(run_id) == before
    assert (await bed.row(fork)).parent is None
    assert await bed.runtime.store.operators.refold(fork) == await bed.row(fork)


async def test_the_same_fork_again_is_the_same_run(bed: Bed) -> None:
    """Also by another process, and after its end; another fork id makes another run."""
    agent = await three_steps(bed)
    run_id = await bed.submit(agent, "work")
    await bed.result(run_id)
    seq = await behind(bed, run_id, "a")
    async with bed.client() as client:
        first = await client.fork_run(run_id, at_seq=seq)
        again = await bed.runtime.fork_run(run_id, at_seq=seq)
        await bed.result(first)
        later = await bed.runtime.fork_run(run_id, at_seq=seq)
        other = await client.fork_run(run_id, at_seq=seq, copy=1)
        await bed.result(other)

    assert first == again == later
    assert other not in (first, run_id)
    assert bed.world.count["c"] == 3


async def test_a_fork_waits_for_its_turn(bed: Bed) -> None:
    """It is queued while another run occupies the agent, also over a crash; then it starts."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        if inbox[0].payload == "hold":
            await ctx.step("mark", bed.world.do, "mark")
            return await ctx.sleep_until_signal("go")
        await ctx.step("a", bed.world.do, "a")
        return await ctx.step("b", bed.world.do, "b", inbox[0].payload)

    agent = await bed.serve(act)
    old = await bed.submit(agent, "work")
    await bed.result(old)
    holding = await bed.submit(agent, "hold")
    await bed.marked(holding)

    fork = await bed.runtime.fork_run(old, at_seq=await behind(bed, old, "a"))
    await bed.restart()
    queued = await bed.row(fork)
    await bed.runtime.signal(holding, "go", "on")

    assert (queued.status, queued.last_seq) == (RunStatus.PENDING, -1)
    assert await bed.result(holding) == "on"
    assert await bed.result(fork) == "work"
    assert dict(bed.world.count) == {"a": 1, "b": 2, "mark": 1}


async def test_a_fork_that_would_repeat_an_effect_is_refused(bed: Bed) -> None:
    """The end of a run, an entry inside of an ask, an open child, an unknown entry or run."""

    async def answer(ctx: RunContext, inbox: list[Message]) -> object:
        await ctx.sleep_until_signal("go")
        return inbox[0].payload

    other = await bed.serve(answer)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        child = await ctx.spawn(other, "job")
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.join(child)
        outcome = await ctx.ask(other, "what?", timeout=60)
        return outcome.kind

    run_id = await bed.submit(await bed.serve(act))
    spawned = await bed.seen(run_id, K.CHILD_SPAWNED)
    mark = await bed.seen(run_id, K.EFFECT_RESULT)
    child = RunId(str(spawned.payload["child"]))
    with pytest.raises(ContractError, match=f"{child}.*fork at {spawned.seq - 1}"):
        await bed.runtime.fork_run(run_id, at_seq=mark.seq)
    await bed.seen(child, K.RUN_STARTED)
    await bed.runtime.signal(child, "go")
    question = await bed.seen(run_id, K.ASK_SENT)
    with pytest.raises(ContractError, match=f"question.*{other}.*entry {question.seq}"):
        await bed.runtime.fork_run(run_id, at_seq=question.seq)
    with pytest.raises(ContractError, match="entries 0 to"):
        await bed.runtime.fork_run(run_id, at_seq=999)
    with pytest.raises(UnknownRunError):
        await bed.runtime.fork_run(RunId("0" * 32), at_seq=0)
    await bed.runtime.cancel(run_id, reason="enough")
    await bed.ended(run_id)
    end = (await bed.row(run_id)).last_seq
    with pytest.raises(ContractError, match=f"fork at {end - 1} or before"):
        await bed.runtime.fork_run(run_id, at_seq=end)


async def test_a_fork_keeps_results_of_children_and_decisions(bed: Bed) -> None:
    """The result of an ended child is joined again; a decision counts once it is recorded."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        child = await ctx.spawn(other, "job")
        await ctx.step("mark", bed.world.do, "mark")
        joined = await ctx.join(child)
        decided = await ctx.approval("pay", {"amount": 1})
        await ctx.step("pay", bed.world.do, "pay")
        return [joined.output, decided.is_approved]

    async def work(ctx: RunContext, inbox: list[Message]) -> object:
        return await ctx.step("job", bed.world.do, "job", inbox[0].payload)

    other = await bed.serve(work)
    budgets = {"spawn_budget": SpawnBudget(max_runs=1)}
    run_id = await bed.submit(await bed.serve(act), **budgets)
    (request,) = await opened(bed.runtime, run_id)
    question = await bed.seen(run_id, K.ASK_SENT)
    with pytest.raises(ContractError, match=f"fork at {question.seq - 1}"):
        await bed.runtime.fork_run(run_id, at_seq=question.seq)
    await bed.runtime.approvals.decide(request.id, approve=True, by="Alex")
    await bed.result(run_id)
    before_join = await bed.runtime.fork_run(run_id, at_seq=await behind(bed, run_id, "mark"))
    (again,) = await opened(bed.runtime, before_join)
    await bed.runtime.approvals.decide(again.id, approve=False, by="Kim")
    decided = await bed.seen(run_id, K.ASK_REPLIED)
    behind_decision = await bed.runtime.fork_run(run_id, at_seq=decided.seq)

    assert request.id != again.id
    assert await bed.result(before_join) == ["job", False]
    assert await bed.result(behind_decision) == ["job", True]
    assert dict(bed.world.count) == {"job": 1, "mark": 1, "pay": 3}


async def test_a_fork_survives_a_crash_before_and_after_its_start(bed: Bed) -> None:
    """Without a host it stays queued. A crash after its log is written is recovered like any other."""
    agent = await three_steps(bed)
    run_id = await bed.submit(agent, "work")
    await bed.result(run_id)
    seq = await behind(bed, run_id, "a")
    async with bed.client() as client:
        await bed.crash()
        fork = await client.fork_run(run_id, at_seq=seq)
    await bed.start()
    await bed.seen(fork, K.RUN_RESUMED)
    await bed.restart()

    assert await bed.result(fork) == ["work", 3]
    assert bed.world.count["a"] == 1


async def test_a_fork_whose_source_is_swept_before_its_turn_fails(bed: Bed) -> None:
    """The error names the reason, and the agent continues with its queued runs."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        if inbox[0].payload == "hold":
            return await ctx.sleep_until_signal("go")
        return await ctx.step("a", bed.world.do, "a", inbox[0].payload)

    agent = await bed.serve(act)
    old = await bed.submit(agent, "work", retention=HistoryRetention.NONE)
    await bed.result(old)
    holding = await bed.submit(agent, "hold")
    await bed.seen(holding, K.RUN_STARTED)
    fork = await bed.runtime.fork_run(old, at_seq=await behind(bed, old, "a"))
    behind_it = await bed.submit(agent, "next")
    while not (await bed.row(old)).swept:
        await bed.runtime.store.retention.sweep(older_than_s=3600)
    await bed.runtime.signal(holding, "go")

    ended = await bed.ended(fork)
    assert ended.status is RunStatus.FAILED
    assert "was swept" in str((ended.error or {})["message"])
    assert await bed.result(behind_it) == "next"


async def test_a_run_that_backs_off_is_tried_at_once(bed: Bed) -> None:
    """An operator's retry shortens the back-off."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del ctx
        if not bed.world.count["repaired"]:
            raise ValueError("broken")
        return inbox[0].payload

    agent = await bed.serve(act)
    slow = RetryPolicy(max_retries=3, backoff_s=3600, max_backoff_s=3600)
    run_id = await bed.submit(agent, "work", retry_policy=slow)
    await bed.seen(run_id, K.RUN_ATTEMPT_FAILED)
    bed.world.count["repaired"] = 1

    async with bed.client() as client:
        await client.resolve(run_id)
        assert await bed.result(run_id) == "work"
