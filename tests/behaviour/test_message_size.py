"""The size limit of messages: the same on every backend, checked at the call; an accepted message arrives."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_core import to_json

from actors._kernel.agent import message as limits
from actors._kernel.agent.message import MAX_METADATA_BYTES, MAX_PAYLOAD_BYTES, Message
from actors._kernel.runtime.ids import TopicId
from actors._kernel.runtime.log_entry import EntryKind
from actors.errors import MessageTooLargeError
from tests.behaviour.agents import Acting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors._kernel.json import JsonValue
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

NEWS = TopicId("news", "large")
LARGEST = "x" * (MAX_PAYLOAD_BYTES - 2)
"""With its quotes it has the maximum size in bytes of JSON."""
TOO_LARGE = LARGEST + "x"

SHAPES: dict[str, JsonValue] = {
    "text": "",
    "text that is no ASCII": "\N{CAT FACE}é" * 20_000,
    "text that JSON escapes": '\x01\n"\\' * 15_000,
    "floats, which are longer as msgpack": [0.5] * 60_000,
    "short floats and long ones": [1e-5, 1e300, -0.0, 123456.789] * 5_000,
    "integers beyond 64 bits": [2**80, -(2**63), 255, -1] * 4_000,
    "many keys": {f"k{n}": None for n in range(15_000)},
    "empty ones": [[], {}, "", None, True, False] * 8_000,
    "deep": [[[["x"] * 50]]] * 1000,
}


def exactly(shape: JsonValue, size: int) -> JsonValue:
    """Return a value of this shape with this many bytes as JSON."""
    empty = len(to_json([shape, ""]))
    return [shape, "x" * (size - empty)]


def size_of(value: JsonValue) -> int:
    """Return the size as JSON in bytes."""
    return len(to_json(value))


async def outcome(call: Callable[[], Awaitable[object]]) -> str:
    """Return the outcome: ``sent``, or the error's text."""
    try:
        await call()
    except MessageTooLargeError as exc:
        return str(exc)
    return "sent"


def is_refusal(words: str) -> bool:
    """Return whether the error names the size, the limit and the remedy."""
    return all(part in words for part in ("262145", "262144", "store of yours", "key or URL"))


async def test_messages_of_a_run_have_one_size_limit(bed: Bed) -> None:
    """send, ask, reply, emit and spawn accept 256 KiB; with one byte more nothing is sent or recorded."""
    came: list[tuple[str, Any]] = []

    async def hear(ctx: RunContext, inbox: list[Message]) -> str:
        for message in inbox:
            came.append((ctx.agent_id.key, message.payload))
            if message.payload == "reply":
                refused = await outcome(lambda: ctx.reply(message, TOO_LARGE))  # noqa: B023
                assert is_refusal(refused)
                await ctx.reply(message, LARGEST)
        return "heard"

    hearer = await bed.serve(hear)

    async def tell(ctx: RunContext, inbox: list[Message]) -> list[Any]:
        outcomes: list[Any] = []
        for payload in (TOO_LARGE, LARGEST):
            verbs: list[Callable[[], Awaitable[object]]] = [
                lambda p=payload: ctx.send(hearer, p),  # type: ignore[misc]
                lambda p=payload: ctx.ask(hearer, p, timeout=60),  # type: ignore[misc]
                lambda p=payload: ctx.emit(NEWS, p),  # type: ignore[misc]
                lambda p=payload: ctx.spawn(hearer, boot=p),  # type: ignore[misc]
            ]
            outcomes += [await outcome(verb) for verb in verbs]
        answer = await ctx.ask(hearer, "reply", timeout=60)
        return [*outcomes, answer.result == LARGEST]

    run_id = await bed.submit(await bed.serve(tell))
    outcomes = await bed.result(run_id)

    assert [is_refusal(words) for words in outcomes[:4]] == [True] * 4
    assert outcomes[4:] == ["sent"] * 4 + [True]
    assert len(await bed.log(run_id, EntryKind.MSG_SENT)) == 2
    assert len(await bed.log(run_id, EntryKind.ASK_SENT)) == 2
    assert len(await bed.log(run_id, EntryKind.CHILD_SPAWNED)) == 1
    await bed.until(lambda: len(came) == 4)
    assert [payload for _, payload in came].count(LARGEST) == 3


async def test_messages_of_a_client_have_the_same_limit(bed: Bed) -> None:
    """submit, send, publish, signal and schedules, with JSON data or with a whole message."""
    came: list[Any] = []

    async def hear(ctx: RunContext, inbox: list[Message]) -> object:
        if inbox[0].payload == "wait":
            return await ctx.sleep_until_signal("go") == LARGEST
        came.extend(message.payload for message in inbox)
        return None

    hearer = await bed.serve(hear)
    runtime = bed.runtime
    waiting = await bed.submit(hearer, "wait")

    def calls(payload: str) -> list[Callable[[], Awaitable[object]]]:
        message = Message(f"m{len(payload)}", hearer, payload)
        return [
            lambda: runtime.submit(hearer, payload),
            lambda: runtime.submit(hearer, message),
            lambda: runtime.send(hearer, payload),
            lambda: runtime.send(hearer, message),
            lambda: runtime.publish(NEWS.type, NEWS.source, payload),
            lambda: runtime.publish(NEWS.type, NEWS.source, message),
            lambda: runtime.signal(waiting, "go", payload),
            lambda: runtime.schedules.create(hearer.type, hearer, payload, delay_s=3600),
        ]

    refused = [await outcome(call) for call in calls(TOO_LARGE)]
    assert all(map(is_refusal, refused)), [words[:200] for words in refused]
    assert hearer not in {schedule.agent_id for schedule in await runtime.schedules.list()}
    assert [await outcome(call) for call in calls(LARGEST)] == ["sent"] * 8
    assert await bed.result(waiting) is True
    await bed.until(lambda: len(came) == 4)
    assert came == [LARGEST] * 4


async def test_metadata_and_ids_of_a_message_are_limited(bed: Bed) -> None:
    """Metadata and ids: else a message with a small payload could be too large for a broker."""
    target = bed.name()
    large = {"k": "x" * MAX_METADATA_BYTES}
    for message in (
        Message("m", target, None, metadata=large),
        Message("m" * 257, target, None),
        Message("m", target, None, correlation_id="c" * 257),
    ):
        with pytest.raises(MessageTooLargeError):
            await bed.runtime.submit(target, message)
        with pytest.raises(MessageTooLargeError):
            await bed.runtime.send(target, message)
        with pytest.raises(MessageTooLargeError):
            await bed.runtime.publish(NEWS.type, NEWS.source, message)
    assert await bed.runtime.store.lists.pending_count(target) == 0


async def test_a_message_above_the_limit_in_a_log_is_replayed(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is for new messages: a run whose log holds a larger one continues."""

    async def tell(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        await ctx.send(nobody, TOO_LARGE)
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("again")
        return "went on"

    nobody = bed.name()
    monkeypatch.setattr(limits, "MAX_PAYLOAD_BYTES", 2 * MAX_PAYLOAD_BYTES)
    run_id = await bed.submit(await bed.serve(tell))
    await bed.marked(run_id)
    monkeypatch.undo()
    await bed.restart()
    await bed.runtime.signal(run_id, "again")

    assert await bed.result(run_id) == "went on"


@pytest.mark.nats
async def test_each_accepted_message_arrives_at_another_host(bed: Bed) -> None:
    """JSON data of each shape, at the size limit, in order; none is a dead letter."""
    payloads = [exactly(shape, MAX_PAYLOAD_BYTES) for shape in SHAPES.values()]
    assert {size_of(payload) for payload in payloads} == {MAX_PAYLOAD_BYTES}
    came: list[JsonValue] = []
    got_all = asyncio.Event()

    async def hear(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx
        came.extend(message.payload for message in inbox)
        if len(came) == len(payloads):
            got_all.set()

    hearer = Acting(bed.name(), hear)

    async def tell(ctx: RunContext, inbox: list[Message]) -> int:
        del inbox
        refused = 0
        for payload in payloads:
            await ctx.send(hearer.id, payload)
            assert isinstance(payload, list)
            over = await outcome(lambda p=payload: ctx.send(hearer.id, [p[0], f"{p[1]}x"]))  # type: ignore[misc]
            refused += is_refusal(over)
        return refused

    async with bed.rival() as rival:
        await rival.register(hearer)
        assert await bed.result(await bed.submit(await bed.serve(tell))) == len(payloads)
        async with asyncio.timeout(20 + bed.slack_s):
            await got_all.wait()
        letters = await bed.runtime.store.lists.dead_letters(agent=hearer.id)

    assert letters == []
    assert came == payloads
