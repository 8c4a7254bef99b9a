"""Values: the live return value of a primitive equals the replayed one exactly."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.scheduler import RunStatus
from actors.errors import NotSerializableError, RecordedError, RunFailedError

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**53,
    2**63 - 1,
    0.1,
    -0.0,
    1e22,
    1e-300,
    1.0,
    "",
    "text",
    'Ünïcödé ☃ 🎭 \u2028 \\ " \n',
    [],
    {},
    {"b": 1, "a": 2, "": None},
    {"z": {"y": [1, {"x": None}], "a": []}},
    [[[]]],
    {"status": "error", "error": {"type": "builtins:ValueError"}},
]


def _exact(value: object) -> str:
    """Return the value with types, signs and the order of keys."""
    return repr(value)


@pytest.mark.item(74, 255)
async def test_every_json_value_is_returned_unchanged(bed: Bed) -> None:
    """From steps, state, signals, messages and as output."""

    async def body(ctx: RunContext) -> list[str]:
        got: list[Any] = []
        for n, value in enumerate(VALUES):
            got.append(await ctx.step(f"s{n}", lambda v=value: v))
            await ctx.state.set(f"k{n}", value)
            got.append(await ctx.state.get(f"k{n}"))
        return [_exact(value) for value in got]

    expected_values = [_exact(value) for value in VALUES for _ in range(2)]
    for value in await bed.live_and_replayed(body):
        assert value == expected_values


@pytest.mark.item(74, 255)
async def test_payloads_and_output_keep_their_values(bed: Bed) -> None:
    """Submitted payloads, signals and outputs arrive unchanged."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        return [inbox[0].payload, await ctx.sleep_until_signal("go")]

    agent = await bed.serve(act)
    run_id = await bed.submit(agent, VALUES)
    await bed.runtime.signal(run_id, "go", VALUES)
    output = await bed.result(run_id)
    assert _exact(output) == _exact([VALUES, VALUES])
    assert _exact((await bed.row(run_id)).result) == _exact([VALUES, VALUES])
    assert json.loads(json.dumps(output)) == output


@pytest.mark.item(74)
async def test_other_values_are_returned_as_json_also_live(bed: Bed) -> None:
    """A tuple is a list both times."""

    async def body(ctx: RunContext) -> str:
        return _exact(await ctx.step("tuple", lambda: (1, (2, {"a": ()}))))

    assert {*await bed.live_and_replayed(body)} == {"[1, [2, {'a': []}]]"}


@pytest.mark.item(100, 101, 102)
async def test_now_random_and_uuid_are_the_same_on_replay(bed: Bed) -> None:
    """An aware instant, a float in [0, 1), and ids that differ from each other."""

    async def body(ctx: RunContext) -> Any:
        return (
            [await ctx.now() for _ in range(2)],
            [await ctx.random() for _ in range(2)],
            [await ctx.uuid() for _ in range(2)],
        )

    values = await bed.live_and_replayed(body)
    assert all(value == values[0] for value in values)
    instants, floats, ids = values[0]
    assert all(instant.tzinfo is UTC for instant in instants)
    assert abs(instants[0] - bed.clock.now()) < timedelta(minutes=5)
    assert all(isinstance(number, float) and 0 <= number < 1 for number in floats)
    assert floats[0] != floats[1]
    assert len({*ids}) == 2
    assert all(len(text) == 32 for text in ids)


@pytest.mark.item(42, 74)
async def test_state_survives_the_run_and_ctx_does_not(bed: Bed) -> None:
    """Two runs get two ctx objects and share only the durable state."""
    contexts: list[RunContext] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        contexts.append(ctx)
        count = int(str(await ctx.state.get("count", 0))) + 1
        await ctx.state.set("count", count)
        await ctx.state.set("gone", 1)
        await ctx.state.clear("gone")
        return [count, await ctx.state.get("gone", "default"), await ctx.state.get("never")]

    agent = await bed.serve(act)
    assert await bed.result(await bed.submit(agent)) == [1, "default", None]
    await bed.restart()
    assert await bed.result(await bed.submit(agent)) == [2, "default", None]
    assert contexts[0] is not contexts[-1]
    assert contexts[0].run_id != contexts[-1].run_id
    assert await bed.runtime.store.reads.state(agent) == {"count": 2}


@pytest.mark.item(74)
async def test_state_is_read_the_same_on_replay(bed: Bed) -> None:
    """A get before a set returns the old value on replay, too; a default is returned again."""

    async def body(ctx: RunContext) -> list[object]:
        before = await ctx.state.get("key", "nothing")
        await ctx.state.set("key", {"b": 1, "a": None})
        return [before, await ctx.state.get("key"), await ctx.state.get("other", 7)]

    for value in await bed.live_and_replayed(body):
        assert _exact(value) == "['nothing', {'b': 1, 'a': None}, 7]"


@pytest.mark.item(74)
async def test_patched_is_true_for_new_runs_and_false_for_old_ones(bed: Bed) -> None:
    """The changed code executes only in runs whose old code has not executed."""
    new_code = [False]

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        path = "old"
        if new_code[0] and await ctx.patched("tax"):
            path = await ctx.step("new", bed.world.do, "new", "new")
        else:
            await ctx.step("old", bed.world.do, "old")
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("go")
        return path

    agent = await bed.serve(act)
    old = await bed.submit(agent)
    await bed.marked(old)
    new_code[0] = True
    await bed.restart()
    await bed.runtime.signal(old, "go")
    assert await bed.result(old) == "old"
    new = await bed.submit(agent)
    await bed.marked(new)
    await bed.restart()
    await bed.runtime.signal(new, "go")
    assert await bed.result(new) == "new"
    assert bed.world.count == {"old": 1, "new": 1, "mark": 2}


@pytest.mark.item(74)
async def test_continue_as_new_starts_again_with_its_input(bed: Bed) -> None:
    """Same run id, one message with the input, positions with a generation, state kept."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        n = int(str(inbox[0].payload))
        await ctx.step("do", bed.world.do, f"round {n}")
        await ctx.state.set("rounds", n)
        if n < 3:
            await ctx.continue_as_new(n + 1)
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("go")
        return [n, len(inbox), ctx.run_id]

    run_id = await bed.submit(await bed.serve(act), 1)
    await bed.marked(run_id)
    await bed.restart()
    await bed.runtime.signal(run_id, "go")
    assert await bed.result(run_id) == [3, 1, run_id]
    assert bed.world.count == {"round 1": 1, "round 2": 1, "round 3": 1, "mark": 1}
    positions = [e.position for e in await bed.log(run_id, "effect.result")]
    assert positions == ["0", "1:0", "2:0", "2:2"]
    assert len(await bed.log(run_id, "run.continued")) == 2


@pytest.mark.item(74)
async def test_an_output_that_is_not_json_fails_the_run(bed: Bed) -> None:
    """The error names type and remedy, and the run is not retried."""
    odd = [object(), {1: "a"}, float("nan"), float("inf"), b"bytes", {1, 2}, "\ud800", "\x00"]
    values = iter(odd)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del ctx, inbox
        return next(values)

    agent = await bed.serve(act)
    for _ in odd:
        run_id = await bed.submit(agent)
        with pytest.raises(RunFailedError, match="cannot be recorded"):
            await bed.result(run_id)


async def test_a_waiter_of_a_failed_run_gets_no_output(bed: Bed) -> None:
    """Neither on its host nor on another one: the returned value is not stored."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del ctx, inbox
        return {1: "secret"}

    run_id = await bed.submit(await bed.serve(act))
    here = await bed.ended(run_id)

    assert (here.status, here.result) == (RunStatus.FAILED, None)
    assert (await bed.row(run_id)).result is None


async def test_each_key_of_a_large_state_is_unchanged(bed: Bed) -> None:
    """By the run that set it and by a later one; unset keys have no value."""
    keys = [f"k{n}" for n in range(5)]

    async def act(ctx: RunContext, inbox: list[Message]) -> list[object]:
        if inbox[0].payload == "set":
            for key in keys:
                await ctx.state.set(key, os.urandom(8_000).hex() + key)
        values = [await ctx.state.get(key, "") for key in [*keys, "other", *keys]]
        return [str(value)[-2:] for value in values]

    agent = await bed.serve(act)
    first = await bed.result(await bed.submit(agent, "set"))
    later = await bed.result(await bed.submit(agent, "get"))

    assert first == later == [*keys, "", *keys]


@pytest.mark.item(74)
async def test_a_step_value_that_is_not_json_is_an_error_at_the_step(bed: Bed) -> None:
    """The author's code may catch it, live and on replay."""

    async def body(ctx: RunContext) -> str:
        try:
            await ctx.step("odd", lambda: datetime.now(UTC))
        except NotSerializableError as exc:
            return str(exc)
        return "no error"

    values = await bed.live_and_replayed(body)
    assert len({*values}) == 1
    assert "step 'odd' at 0" in values[0]
    assert "datetime" in values[0]


class StatusError(Exception):
    """An error with attributes that its arguments do not have."""

    def __init__(self, text: str, status: int = 0, answer: object = None) -> None:
        super().__init__(text)
        self.status, self.answer = status, answer


@pytest.mark.item(74, 255)
async def test_errors_carry_the_same_live_and_on_replay(bed: Bed) -> None:
    """Attributes and arguments of the original, or the facts of an error that cannot be made again."""
    errors = [
        StatusError("gone", 410),
        FileNotFoundError(2, "none", "/x"),
        StatusError("gone", 410, bed),
    ]

    async def body(ctx: RunContext) -> list[Any]:
        async def fail(n: int) -> None:
            raise errors[n]

        details: list[Any] = []
        for n in range(len(errors)):
            try:
                await ctx.step("fail", fail, n)
            except StatusError as exc:
                details.append(exc.status)
            except OSError as exc:
                details.append([exc.errno, exc.filename])
            except RecordedError as exc:
                details.append(exc.attributes)
        return details

    for value in await bed.live_and_replayed(body):
        assert value == [410, [2, "/x"], {"status": 410}]
