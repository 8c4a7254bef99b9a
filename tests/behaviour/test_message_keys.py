"""Idempotency keys of a message's effects: the same in each run that handles the message."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from actors import idempotency_key
from actors._kernel.agent.message import Message
from actors._kernel.runtime.effects import key_of_message
from actors.errors import ContractError, EffectDidNotHappen, RegistrationError

if TYPE_CHECKING:
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

CLIENT = "client:local"


class Till:
    """An agent that charges for each message, and records the keys."""

    def __init__(self) -> None:
        self.runs: list[list[str]] = []
        self.keys: dict[str, list[str]] = defaultdict(list)
        self.gate = asyncio.Event()

    async def act(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Charge for all messages once the gate is open."""
        await self.gate.wait()
        for message in inbox:
            await ctx.step("charge", self.charge, message.id, key=message.id)
        self.runs.append([message.id for message in inbox])

    def charge(self, message_id: str) -> None:
        """Pass the key to the service."""
        self.keys[message_id].append(idempotency_key())


async def test_the_key_of_a_message_does_not_depend_on_its_run(bed: Bed) -> None:
    """A message that comes second in a run has the same key: agent, sender, id and step determine it."""
    till = Till()
    agent = await bed.serve(till.act)
    for n in range(3):
        await bed.runtime.send(agent, Message.of(agent, n, id=f"m{n}"))
    async with asyncio.timeout(20):
        # A broker delivers them one by one, without a notification.
        while await bed.runtime.store.lists.pending_count(agent) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    till.gate.set()
    await bed.until(lambda: sum(map(len, till.runs)) == 3)

    assert any(len(run) > 1 for run in till.runs)
    expected = {f"m{n}": [key_of_message(agent, CLIENT, f"m{n}", "charge")] for n in range(3)}
    assert till.keys == expected


async def test_an_effect_can_read_the_key_of_each_message(bed: Bed) -> None:
    """For the effect's name. Without a message it is the key given to the step, or the effect's own."""
    keys: list[Any] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        [message] = inbox
        await ctx.step("a", lambda: keys.append((idempotency_key(), idempotency_key(message))))
        await ctx.step(
            "b", lambda: keys.append((idempotency_key(), idempotency_key(message))), key=message
        )

    agent = await bed.serve(act)
    await bed.runtime.send(agent, Message.of(agent, 1, id="m"))
    await bed.until(lambda: len(keys) == 2)

    a, b = (key_of_message(agent, CLIENT, "m", name) for name in "ab")
    assert keys[0][1] == a
    assert keys[0][0] not in {a, b}
    assert keys[1] == (b, b)


async def test_an_id_that_names_no_single_message_is_refused(bed: Bed) -> None:
    """If two senders use one id, the message itself has to be passed. The same holds for a received one."""
    errors: list[str] = []
    keys: list[str] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        [first] = inbox
        second = await ctx.receive()
        assert second is not None
        for key in ("odd", first.id):
            try:
                await ctx.step("charge", bed.world.do, "charge", key=key)
            except ContractError as exc:
                errors.append(str(exc))
        for message in (first, second):
            await ctx.step("charge", lambda: keys.append(idempotency_key()), key=message)

    agent = await bed.serve(act, batch=1)
    for sender in ("client:crm", "client:shop"):
        await bed.runtime.send(agent, Message.of(agent, sender, id="1"), sender=sender)
    await bed.until(lambda: len(keys) == 2)

    assert "'odd' of 'charge' is the id of none of the run's messages" in errors[0]
    assert "'1' of 'charge' is the id of 2 with different senders" in errors[1]
    assert len(set(keys)) == 2
    assert bed.world.count["charge"] == 0


async def test_reconcile_gets_the_key_that_the_service_got(bed: Bed) -> None:
    """After a crash, by the host that finds the effect in doubt."""
    keys: list[str] = []

    async def did_it(key: str) -> None:
        keys.append(key)
        raise EffectDidNotHappen

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        return await ctx.step(
            "pay", bed.world.hang, "pay", effect="at_most_once", reconcile=did_it, key=inbox[0]
        )

    agent = await bed.serve(act)
    run_id = await bed.submit(agent)
    async with asyncio.timeout(20):
        await bed.world.entered.wait()
    await bed.restart()
    await bed.result(run_id)
    [received] = await bed.log(run_id, "msg.received")
    message: Any = received.payload["message"]

    assert keys == [key_of_message(agent, message["sender"], message["id"], "pay")]


async def test_with_a_batch_of_one_each_message_has_a_run_of_its_own(bed: Bed) -> None:
    """The run's id, and all that derives from it, depends on the message alone."""
    till = Till()
    agent = await bed.serve(till.act, batch=1)
    for n in range(3):
        await bed.runtime.send(agent, Message.of(agent, n, id=f"m{n}"))
    till.gate.set()
    await bed.until(lambda: len(till.runs) == 3)

    assert till.runs == [["m0"], ["m1"], ["m2"]]


@pytest.mark.parametrize("batch", [0, 101, True, "1"])
async def test_an_invalid_batch_size_is_refused(bed: Bed, batch: Any) -> None:
    """The error is raised at the registration of the agent."""
    with pytest.raises(RegistrationError, match=r"`batch` is .* give 1 to 100 messages"):
        await bed.serve(Till().act, batch=batch)
