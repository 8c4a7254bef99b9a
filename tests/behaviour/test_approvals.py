"""`ctx.approval`: a wait that a person ends, once, for exactly what was asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.communication import ApprovalStatus
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.errors import ContractError, UnknownApprovalError
from tests.behaviour.agents import Acting
from tests.harness.faulty_store import Faults, Manner

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.commit import Commit
    from actors._kernel.runtime.communication import ApprovalRequest
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import RunContext, Runtime
    from tests.behaviour.bed import Bed

ORDER = {"to": "Robin", "amount": 9000}


async def cashier(ctx: RunContext, inbox: list[Message]) -> object:
    """Return an agent function that requests an approval to pay its first message."""
    approval = await ctx.approval("pay", inbox[0].payload)
    return approval.model_dump(mode="json")


async def opened(runtime: Runtime, run_id: RunId, *, count: int = 1) -> list[ApprovalRequest]:
    """Return the open requests of a run once there are this many.

    Other tests leave requests in the schema.
    """
    async with asyncio.timeout(20):
        while len(requests := await runtime.approvals.open(run_id=run_id)) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return requests


@pytest.mark.parametrize("is_approved", [True, False], ids=["approved", "denied"])
async def test_a_person_decides(bed: Bed, is_approved: bool) -> None:
    """The request shows action and arguments. The run gets the decision, the person and the reason."""
    run_id = await bed.submit(await bed.serve(cashier), ORDER)
    (request,) = await opened(bed.runtime, run_id)

    await bed.runtime.approvals.decide(request.id, approve=is_approved, by="Alex", comment="ok")

    decided = await bed.result(run_id)
    assert (request.what, request.args, request.run_id) == ("pay", ORDER, run_id)
    assert request.agent_id == str((await bed.row(run_id)).agent_id)
    status = "approved" if is_approved else "denied"
    assert decided == {"status": status, "by": "Alex", "comment": "ok"}
    assert await bed.runtime.approvals.open(run_id=run_id) == []
    assert await bed.kinds(run_id) == [
        K.RUN_STARTED,
        K.MSG_RECEIVED,
        K.ASK_SENT,
        K.ASK_REPLIED,
        K.RUN_COMPLETED,
    ]


async def test_a_request_expires_at_its_time_limit(bed: Bed) -> None:
    """The run continues with `expired`, never early. A later decision is refused as too late."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        began = await ctx.now()
        approval = await ctx.approval("pay", timeout=0.2)
        return [approval.status.value, approval.by, (await ctx.now() - began).total_seconds()]

    run_id = await bed.submit(await bed.serve(act))
    sent = await bed.seen(run_id, K.ASK_SENT)
    status, by, waited = await bed.result(run_id)

    assert (status, by) == (ApprovalStatus.EXPIRED, None)
    assert waited >= 0.2
    assert [e.payload["outcome"] for e in await bed.log(run_id, K.ASK_TIMEOUT)] == ["expired"]
    with pytest.raises(UnknownApprovalError):
        await bed.runtime.approvals.decide(str(sent.payload["message_id"]), approve=True, by="A")


async def test_a_request_shows_its_time_limit(bed: Bed) -> None:
    """The person sees the time limit; a decision before it counts."""

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        return (await ctx.approval("pay", timeout=3600)).status.value

    run_id = await bed.submit(await bed.serve(act))
    (request,) = await opened(bed.runtime, run_id)
    assert request.expires_at is not None
    assert 3590 < (request.expires_at - request.since).total_seconds() <= 3600
    await bed.runtime.approvals.decide(request.id, approve=True, by="Alex")
    assert await bed.result(run_id) == "approved"


async def test_a_decision_counts_once(bed: Bed) -> None:
    """The second one is refused, before and after the run has read the first."""
    run_id = await bed.submit(await bed.serve(cashier), ORDER)
    (request,) = await opened(bed.runtime, run_id)
    await bed.crash()
    async with bed.client() as client:
        await client.approvals.decide(request.id, approve=False, by="Alex")
        assert await client.approvals.open(run_id=run_id) == []
        with pytest.raises(UnknownApprovalError):
            await client.approvals.decide(request.id, approve=True, by="Robin")

    await bed.start()

    assert (await bed.result(run_id))["by"] == "Alex"
    with pytest.raises(UnknownApprovalError):
        await bed.runtime.approvals.decide(request.id, approve=True, by="Robin")


async def test_a_decision_before_the_end_of_the_time_is_recorded_counts(bed: Bed) -> None:
    """An accepted decision counts, even if it comes close to the time limit."""

    def ends(commit: Commit) -> bool:
        return any(entry.kind == K.ASK_TIMEOUT for entry in commit.entries)

    faults = Faults(method="commit", manner=Manner.HOLD, wanted=ends, nth=0)
    bed.go_wrong(faults)
    await bed.restart()

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return (await ctx.approval("pay", timeout=0.5)).model_dump(mode="json")

    run_id = await bed.submit(await bed.serve(act))
    async with asyncio.timeout(30):
        await faults.held.wait()
    async with bed.client() as client:
        (request,) = await client.approvals.open(run_id=run_id)
        await client.approvals.decide(request.id, approve=True, by="Alex")
    faults.release.set()

    decided = await bed.result(run_id)
    assert (decided["status"], decided["by"]) == ("approved", "Alex")
    assert K.ASK_TIMEOUT not in await bed.kinds(run_id)


async def test_another_process_decides(bed: Bed) -> None:
    """The run's host is notified, whether the run is in memory or suspended."""
    run_id = await bed.submit(await bed.serve(cashier), ORDER)
    await opened(bed.runtime, run_id)
    async with bed.client() as client:
        (request,) = await client.approvals.open(run_id=run_id)
        await client.approvals.decide(request.id, approve=True, by="Alex")

    assert (await bed.result(run_id))["status"] == "approved"


async def test_a_decision_comes_before_the_run_is_idle(bed: Bed) -> None:
    """Another branch still executes. The decision is kept, also over a crash."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox

        async def ask() -> str:
            return (await ctx.approval("pay", ORDER)).status.value

        return await ctx.gather(ctx.step("gate", bed.world.wait, "gate"), ask())

    run_id = await bed.submit(await bed.serve(act))
    (request,) = await opened(bed.runtime, run_id)
    await bed.runtime.approvals.decide(request.id, approve=True, by="Alex")
    await bed.restart()
    bed.world.gates["gate"].set()

    assert await bed.result(run_id) == [True, "approved"]
    assert len(await bed.log(run_id, K.ASK_REPLIED)) == 1


async def test_a_decision_is_the_same_on_replay(bed: Bed) -> None:
    """The decision is recorded once; a replay makes no new request."""
    run_ids: list[RunId] = []

    async def body(ctx: RunContext) -> object:
        run_ids.append(ctx.run_id)
        return (await ctx.approval("pay", ORDER)).model_dump(mode="json")

    async def decide() -> None:
        await bed.until(lambda: run_ids)
        (request,) = await opened(bed.runtime, run_ids[0])
        await bed.runtime.approvals.decide(request.id, approve=True, by="Alex")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(decide())
        values = await bed.live_and_replayed(body)

    assert values[0] == {"status": "approved", "by": "Alex", "comment": ""}
    assert all(value == values[0] for value in values)
    assert len(await bed.log(run_ids[0], K.ASK_SENT)) == 1


async def test_a_decision_counts_for_its_arguments_only(bed: Bed) -> None:
    """An attempt with other arguments makes a new request; an earlier decision does not count for it."""
    first: list[str] = []

    async def price() -> int:
        bed.world.count["price"] += 1
        if bed.world.count["price"] == 1:
            raise ValueError("no price yet")
        return 20

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        failed: Exception | None = None
        try:
            amount = await ctx.step("price", price)
        except ValueError as exc:
            failed, amount = exc, 9000
        approval = await ctx.approval("pay", {"amount": amount})
        if failed is not None:
            first.append(approval.status.value)
            raise failed
        return approval.model_dump(mode="json")

    run_id = await bed.submit(await bed.serve(act))
    (large,) = await opened(bed.runtime, run_id)
    await bed.runtime.approvals.decide(large.id, approve=True, by="Alex")
    await bed.seen(run_id, K.RUN_ATTEMPT_FAILED)
    await bed.seen(run_id, K.ASK_SENT, times=2)
    (small,) = await opened(bed.runtime, run_id)
    with pytest.raises(UnknownApprovalError):
        await bed.runtime.approvals.decide(large.id, approve=True, by="Alex")
    await bed.runtime.approvals.decide(small.id, approve=False, by="Robin")

    assert (await bed.result(run_id))["by"] == "Robin"
    assert set(first) == {"approved"}
    assert (large.args, small.args) == ({"amount": 9000}, {"amount": 20})
    assert large.id != small.id


async def test_an_attempt_that_asks_the_same_again_has_its_decision(bed: Bed) -> None:
    """A retry for another reason makes no second request."""

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        status = (await ctx.approval("pay", ORDER)).status.value
        bed.world.count["attempts"] += 1
        if ctx.meta.attempt == 1:
            raise ValueError("once")
        return status

    run_id = await bed.submit(await bed.serve(act))
    (request,) = await opened(bed.runtime, run_id)
    await bed.runtime.approvals.decide(request.id, approve=True, by="Alex")

    assert await bed.result(run_id) == "approved"
    assert len(await bed.log(run_id, K.ASK_SENT)) == 1


async def test_the_oldest_request_is_listed_first(bed: Bed) -> None:
    """The list spans all runs, and has no more entries than the limit."""
    agents = [await bed.serve(cashier) for _ in range(3)]
    runs = []
    for n, agent in enumerate(agents):
        runs.append(await bed.submit(agent, n))
        await opened(bed.runtime, runs[-1])

    requests = await bed.runtime.approvals.open(limit=10_000)
    mine = [request for request in requests if request.run_id in runs]

    assert [request.run_id for request in mine] == runs
    assert [request.since for request in requests] == sorted(request.since for request in requests)
    assert len(await bed.runtime.approvals.open(limit=2)) == 2
    for request in mine:
        await bed.runtime.cancel(request.run_id)  # type: ignore[arg-type]


async def test_several_requests_of_one_run(bed: Bed) -> None:
    """Each has its own decision, in any order."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox

        async def ask(n: int) -> str:
            return (await ctx.approval("pay", n)).status.value

        return await ctx.gather(*(ask(n) for n in range(3)))

    run_id = await bed.submit(await bed.serve(act))
    requests = await opened(bed.runtime, run_id, count=3)
    for request in reversed(requests):
        is_approved = request.args != 1
        await bed.runtime.approvals.decide(request.id, approve=is_approved, by="Alex")

    assert await bed.result(run_id) == ["approved", "denied", "approved"]


async def test_a_race_with_an_approval_has_one_winner(bed: Bed) -> None:
    """The request of the losing branch is removed from the list."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        won = await ctx.select(ctx.approval("pay", ORDER), ctx.sleep_until_signal("instead"))
        await ctx.sleep_until_signal("go")
        return won.index

    run_id = await bed.submit(await bed.serve(act))
    (request,) = await opened(bed.runtime, run_id)
    await bed.runtime.signal(run_id, "instead")
    await bed.seen(run_id, K.SELECT_WON)
    assert await opened(bed.runtime, run_id, count=0) == []
    with pytest.raises(UnknownApprovalError):
        await bed.runtime.approvals.decide(request.id, approve=True, by="Alex")
    await bed.runtime.signal(run_id, "go")
    assert await bed.result(run_id) == 1


async def test_the_request_of_a_cancelled_run_is_removed(bed: Bed) -> None:
    """Its request is removed from the list, and a decision is refused."""
    run_id = await bed.submit(await bed.serve(cashier), ORDER)
    (request,) = await opened(bed.runtime, run_id)

    await bed.runtime.cancel(run_id, reason="no")

    assert (await bed.ended(run_id)).status is RunStatus.CANCELLED
    assert await bed.runtime.approvals.open(run_id=run_id) == []
    with pytest.raises(UnknownApprovalError):
        await bed.runtime.approvals.decide(request.id, approve=True, by="Alex")


async def test_waiting_for_a_person_is_no_cycle(bed: Bed) -> None:
    """Two agents wait for each other, and one of them also for a person: no cycle is reported."""
    left_agent, right_agent = bed.name(), bed.name()
    asking: list[RunId] = []

    async def first(ctx: RunContext, inbox: list[Message]) -> object:
        if inbox[0].reply_to is not None:
            return "too late to ask"
        return (await ctx.ask(right_agent, "q", timeout=15)).kind.value

    async def second(ctx: RunContext, inbox: list[Message]) -> object:
        asking.append(ctx.run_id)

        async def decided() -> None:
            if not (await ctx.approval("wait on")).is_approved:
                await ctx.reply(inbox[0], "denied")
                raise ValueError("denied")

        try:
            await ctx.gather(ctx.ask(left_agent, "q", timeout=60), decided())
        except ValueError:
            return "told"
        return "never"

    for agent in (Acting(left_agent, first), Acting(right_agent, second)):
        bed.agents[agent.id] = agent
        await bed.runtime.register(agent)
    run_id = await bed.submit(left_agent, retry_policy=RetryPolicy(max_retries=0))
    await bed.until(lambda: asking)
    (request,) = await opened(bed.runtime, asking[0])
    await bed.runtime.approvals.decide(request.id, approve=False, by="Alex")

    assert await bed.result(run_id) == "replied"


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan"), 1e12])
async def test_an_invalid_time_limit_is_refused(bed: Bed, timeout: float) -> None:
    """The call is refused, and no request is made."""

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        try:
            await ctx.approval("pay", timeout=timeout)
        except ContractError as exc:
            return str(exc)
        return "asked"

    run_id = await bed.submit(await bed.serve(act))
    assert "no time in seconds" in await bed.result(run_id)
    assert await bed.log(run_id, K.ASK_SENT) == []


async def test_a_prefix_of_an_id_has_to_match_one_request(bed: Bed) -> None:
    """A prefix of an id is accepted if no other id has it; an empty one is refused."""
    runs = [await bed.submit(await bed.serve(cashier), n) for n in range(2)]
    requests: dict[Any, ApprovalRequest] = {}
    for run_id in runs:
        (requests[run_id],) = await opened(bed.runtime, run_id)
    for short in ("", "no such id"):
        with pytest.raises(UnknownApprovalError):
            await bed.runtime.approvals.decide(short, approve=True, by="Alex")
    for run_id in runs:
        short = requests[run_id].id[:12]
        decided = await bed.runtime.approvals.decide(short, approve=True, by="Alex")
        assert decided.run_id == run_id
        assert (await bed.result(run_id))["status"] == "approved"
