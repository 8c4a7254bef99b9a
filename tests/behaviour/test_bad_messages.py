"""A run that got several messages and fails on one of them: the others are handled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RunStatus
from actors.errors import MiddlewareTermination, RetryAfter, TerminalError
from tests.behaviour.bed import LIMIT_S
from tests.behaviour.outside import all_done

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors._kernel.runtime.ids import AgentId
    from actors._kernel.runtime.rows import DeadLetter, RunRow
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

SENDERS = 3


async def batch(
    bed: Bed,
    act: Callable[[RunContext, list[Message]], Awaitable[object]],
    payloads: list[str],
    **attributes: object,
) -> AgentId:
    """Serve an agent whose first run gets all of these messages, from several senders in turn."""
    agent = await bed.serve(act, **attributes)
    await bed.crash()
    bed.agents, served = {}, bed.agents
    await bed.start()
    for n, payload in enumerate(payloads):
        await bed.runtime.send(agent, payload, sender=f"client:s{n % SENDERS}")
    bed.agents = served
    for served_agent in served.values():
        await bed.runtime.register(served_agent)
    return agent


async def all_over(bed: Bed, agent: AgentId, count: int) -> list[RunRow]:
    """Return the agent's runs in order of arrival, once this many have ended and no message waits."""
    store = bed.runtime.store
    async with asyncio.timeout(LIMIT_S):
        while (  # noqa: ASYNC110 - there is no event to wait for
            len(await begun(bed, agent)) < count or await store.lists.pending_count(agent)
        ):
            await asyncio.sleep(0.005)
    return sorted(await begun(bed, agent), key=lambda row: row.arrival)


async def begun(bed: Bed, agent: AgentId) -> list[RunRow]:
    """Return the agent's runs so far."""
    return await bed.runtime.store.lists.runs(agent=agent, limit=200)


async def first_run(bed: Bed, agent: AgentId) -> RunRow:
    """Return the agent's first run as soon as it has written anything."""
    async with asyncio.timeout(LIMIT_S):
        while not (rows := await begun(bed, agent)):  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.005)
    return rows[0]


async def letters(bed: Bed, agent: AgentId) -> list[DeadLetter]:
    """Return the agent's dead letters, oldest first."""
    return sorted(
        await bed.runtime.store.lists.dead_letters(agent=agent), key=lambda letter: letter.id
    )


PAYLOADS = [f"m{n}" for n in range(12)]


@pytest.mark.parametrize("index", [0, 5, 11], ids=["first", "middle", "last"])
async def test_one_bad_message_is_given_up_alone(bed: Bed, index: int) -> None:
    """Only the bad message counts its retries.

    The others are handled once each; its sender's wait for it.
    """
    order = bed.world.order
    bad = f"m{index}"

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        payloads = [str(message.payload) for message in inbox]
        if bad in payloads:
            order.append(f"{bad} fails with {len(payloads)}")
            raise RetryAfter(0.01, f"{bad} is bad")
        await ctx.step("see", order.extend, payloads)

    agent = await batch(bed, act, PAYLOADS)
    rows = await all_over(bed, agent, len(PAYLOADS))

    assert order.count(f"{bad} fails with 12") == 1
    assert order.count(f"{bad} fails with 1") == 4
    handled = [entry for entry in order if "fails" not in entry]
    assert handled == [payload for payload in PAYLOADS if payload != bad]
    behind = PAYLOADS[index + SENDERS :: SENDERS]
    last_failure = len(order) - 1 - order[::-1].index(f"{bad} fails with 1")
    assert all(order.index(payload) > last_failure for payload in behind)
    [letter] = await letters(bed, agent)
    assert (letter.message.payload, letter.reason) == (bad, "max_retries")
    assert letter.last_error.endswith(f"{bad} is bad")
    assert letter.attempts == (5 if index == 0 else 4)
    assert [row.attempt for row in rows if row.status is RunStatus.COMPLETED] == [
        2 if index and n == 0 else 1 for n in range(11)
    ]


@pytest.mark.parametrize("error", [TerminalError, MiddlewareTermination], ids=str)
async def test_an_error_that_is_final_at_once_ends_one_message_only(
    bed: Bed, error: type[Exception]
) -> None:
    """The messages are split into runs before any of them is given up, or counted as handled."""
    order = bed.world.order

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        payloads = [str(message.payload) for message in inbox]
        if "m4" in payloads:
            raise error("m4 is bad")
        await ctx.step("see", order.extend, payloads)

    agent = await batch(bed, act, PAYLOADS)
    rows = await all_over(bed, agent, len(PAYLOADS))

    assert order == [payload for payload in PAYLOADS if payload != "m4"]
    [failed] = [row for row in rows if row.status is not RunStatus.COMPLETED]
    assert failed.attempt == 1
    dead_letters = [(letter.message.payload, letter.reason) for letter in await letters(bed, agent)]
    assert dead_letters == ([("m4", "explicit")] if error is TerminalError else [])


async def test_what_the_failed_attempt_had_not_committed_is_dropped(bed: Bed) -> None:
    """The sends and state changes of that attempt are dropped: each message's own run makes them once."""
    got: list[object] = []

    async def sink(ctx: RunContext, inbox: list[Message]) -> None:
        await ctx.step("got", got.extend, [message.payload for message in inbox])

    target = await bed.serve(sink)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        for message in inbox:
            await ctx.send(target, message.payload)
            await ctx.state.set(str(message.payload), len(inbox))
            if message.payload == "m4":
                raise TerminalError("m4 is bad")

    agent = await batch(bed, act, PAYLOADS)
    await all_over(bed, agent, len(PAYLOADS))
    await bed.until(lambda: len(got) >= len(PAYLOADS))

    assert sorted(map(str, got)) == sorted(PAYLOADS)
    assert await bed.runtime.store.reads.state(agent) == dict.fromkeys(PAYLOADS, 1)


async def test_a_child_that_the_failed_attempt_had_not_committed_is_dropped(bed: Bed) -> None:
    """A spawn that is not written stops no split: each message's own run spawns its child."""
    got: list[object] = []

    async def child(ctx: RunContext, inbox: list[Message]) -> None:
        await ctx.step("got", got.extend, [message.payload for message in inbox])

    served = await bed.serve(child)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        handles = [await ctx.spawn(served, message.payload) for message in inbox]
        if any(message.payload == "m4" for message in inbox):
            raise TerminalError("m4 is bad")
        for handle in handles:
            await ctx.join(handle)

    agent = await batch(bed, act, PAYLOADS)
    rows = await all_over(bed, agent, len(PAYLOADS))

    assert [row.status for row in rows].count(RunStatus.FAILED) == 1
    assert set(map(str, got)) - {"m4"} == set(PAYLOADS) - {"m4"}
    assert len(got) == len(set(map(str, got)))


async def test_a_crash_after_the_split_changes_nothing(bed: Bed) -> None:
    """The released messages are rows; the run that failed goes on with the message it kept."""
    order = bed.world.order

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        payloads = [str(message.payload) for message in inbox]
        if len(payloads) > 1:
            raise RetryAfter(0.2, "too many")
        await ctx.step("see", order.extend, payloads)

    agent = await batch(bed, act, PAYLOADS)
    row = await first_run(bed, agent)
    failed = await bed.seen(row.run_id, EntryKind.RUN_ATTEMPT_FAILED)
    waiting = await bed.runtime.store.backlog.pending_mail(agent=agent)
    await bed.restart()
    await all_over(bed, agent, len(PAYLOADS))

    assert failed.payload["kept"] == 1
    assert [item.message.payload for item in waiting if item.alone] == PAYLOADS[1:]
    assert order == PAYLOADS
    assert await bed.kinds(row.run_id) == [
        "run.started",
        *["msg.received"] * 12,
        "run.attempt_failed",
        "effect.intent",
        "effect.result",
        "run.completed",
    ]


async def test_a_run_that_started_an_effect_is_not_split(bed: Bed) -> None:
    """The effect may concern all its messages; their dead letters name the others."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        for message in inbox:
            await ctx.step("see", bed.world.do, message.payload)
            if message.payload == "m2":
                raise TerminalError("m2 is bad")

    agent = await batch(bed, act, PAYLOADS)
    [row] = await all_over(bed, agent, 1)

    assert row.status is RunStatus.FAILED
    assert bed.world.count == {"m0": 1, "m1": 1, "m2": 1}
    dead_letters = await letters(bed, agent)
    assert [letter.message.payload for letter in dead_letters] == PAYLOADS
    last_error = "m2 is bad (given up with 11 other message(s) of its run)"
    assert {letter.last_error for letter in dead_letters} == {last_error}


async def test_a_run_with_an_interrupted_effect_is_not_split(bed: Bed) -> None:
    """The effect may have happened for all messages, although its intent was not written yet."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        await ctx.step("hang", bed.world.hang, "hang", len(inbox))

    agent = await batch(bed, act, PAYLOADS, deadline_s=3)
    row = await first_run(bed, agent)
    failed = await bed.seen(row.run_id, EntryKind.RUN_ATTEMPT_FAILED)

    assert bed.world.count["hang"] == 1
    assert "kept" not in failed.payload
    assert await bed.runtime.store.backlog.pending_mail(agent=agent) == []


async def test_redriving_the_run_that_kept_the_bad_message_takes_that_one_only(bed: Bed) -> None:
    """The released messages were handled by other runs and are not handled again."""
    order, broken = bed.world.order, [True]

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        payloads = [str(message.payload) for message in inbox]
        if broken[0] and "m0" in payloads:
            raise TerminalError("m0 is bad")
        await ctx.step("see", order.extend, payloads)

    agent = await batch(bed, act, PAYLOADS)
    rows = await all_over(bed, agent, len(PAYLOADS))
    broken[0] = False
    again = await bed.runtime.redrive_run(rows[0].run_id)
    await bed.result(again)

    assert order == [*PAYLOADS[1:], "m0"]
    assert await letters(bed, agent) == []


async def test_an_asker_in_the_batch_gets_its_own_answer(bed: Bed) -> None:
    """The failure of another sender's message does not end its ask."""

    async def answers(ctx: RunContext, inbox: list[Message]) -> None:
        if any(message.payload == "bad" for message in inbox):
            raise TerminalError("bad")
        for message in inbox:
            await ctx.reply(message, f"re: {message.payload}")

    target = bed.name()

    async def asks(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        answer = await ctx.ask(target, "question", timeout=60)
        return [str(answer.kind), answer.result]

    run_id = await bed.submit(await bed.serve(asks))
    await bed.seen(run_id, EntryKind.ASK_SENT)
    await bed.runtime.send(target, "bad")
    await bed.runtime.register(_Named(target, answers))

    assert await bed.result(run_id) == ["replied", "re: question"]
    await all_done(bed, target)
    [letter] = await letters(bed, target)
    assert letter.message.payload == "bad"


class _Named:
    """An agent under an id that others sent to before it was served."""

    def __init__(
        self, agent_id: AgentId, act: Callable[[RunContext, list[Message]], Awaitable[object]]
    ) -> None:
        self.id, self._act = agent_id, act

    async def run(self, ctx: RunContext, inbox: list[Message]) -> object:
        """See `Agent.run`."""
        return await self._act(ctx, inbox)
