"""Live output of agents: delivered to current readers, not stored, and not repeated on replay."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.hints import MAX_DELTA_BYTES
from actors._kernel.runtime.log_entry import EntryKind
from actors.errors import EffectOutsideScopeError, MessageTooLargeError, NotSerializableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import RunId
    from actors._kernel.runtime.log_entry import RunLogEntry
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


class Watching:
    """The live events that a reader of the run got, from before `go` to the run's end."""

    def __init__(self, bed: Bed, run_id: RunId) -> None:
        self._tail: AsyncIterator[RunLogEntry] = bed.runtime.tail(run_id, live=True)
        self.all: list[RunLogEntry] = []
        self.began = asyncio.Event()

    async def run(self) -> None:
        """Read to the end."""
        async with aclosing(self._tail) as entries:  # type: ignore[type-var]
            async for entry in entries:
                self.all.append(entry)
                self.began.set()

    @property
    def deltas(self) -> list[tuple[Any, ...]]:
        """Return position, number and content of the live events."""
        return [
            (event.position, event.payload["n"], event.payload.get("data", event.payload["text"]))
            for event in self.all
            if event.kind == "custom.delta"
        ]


async def watched(bed: Bed, run_id: RunId) -> Watching:
    """Signal `go` to the run once a reader is subscribed, and return its events to the run's end."""
    watching = Watching(bed, run_id)
    async with asyncio.timeout(20 + bed.slack_s), asyncio.TaskGroup() as group:
        group.create_task(watching.run())
        await watching.began.wait()
        await bed.runtime.signal(run_id, "go")
    return watching


async def test_live_output_arrives_in_order_and_is_not_stored(bed: Bed) -> None:
    """Texts and other data come between the entries; the log has none of it."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.sleep_until_signal("go")
        await ctx.emit_delta("Hel")
        await ctx.step("one", bed.world.do, "one")
        await ctx.emit_delta("lo")
        await ctx.emit_delta({"done": 0.5, "of": ["a", None]})

    run_id = await bed.submit(await bed.serve(act))
    watching = await watched(bed, run_id)

    assert watching.deltas == [
        ("", 0, "Hel"),
        ("", 1, "lo"),
        ("", 2, {"done": 0.5, "of": ["a", None]}),
    ]
    custom = [event for event in watching.all if event.kind == "custom.delta"]
    assert {(event.seq, event.payload["attempt"]) for event in custom} == {(-1, 1)}
    order = [event.kind for event in watching.all]
    assert order.index("custom.delta") < order.index(EntryKind.EFFECT_RESULT)
    assert "custom.delta" not in await bed.kinds(run_id)


async def test_a_replay_emits_nothing_again_and_continues_the_numbers(bed: Bed) -> None:
    """After a crash only new output is delivered; its numbers count from the start of the run."""
    calls: list[int] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        calls.append(1)
        await ctx.emit_delta("before")
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.emit_delta("between")
        await ctx.sleep_until_signal("go")
        await ctx.emit_delta("after")

    run_id = await bed.submit(await bed.serve(act))
    await bed.marked(run_id)
    await bed.restart()
    watching = await watched(bed, run_id)

    assert len(calls) >= 2
    assert [delta for delta in watching.deltas if delta[2] == "before"] == []
    assert watching.deltas[-1] == ("", 2, "after")


async def test_code_may_add_and_remove_live_output_while_its_runs_wait(bed: Bed) -> None:
    """Live output takes no position: a run whose log was written without it replays with it."""
    shows = False

    async def act(ctx: RunContext, inbox: list[Message]) -> list[Any]:
        del inbox
        if shows:
            await ctx.emit_delta("new")
        first = await ctx.step("mark", bed.world.do, "mark", 1)
        if shows:
            await ctx.emit_delta("new")
        await ctx.sleep_until_signal("go")
        return [first, await ctx.step("two", bed.world.do, "two", 2)]

    run_id = await bed.submit(await bed.serve(act))
    await bed.marked(run_id)
    shows = True
    await bed.restart()
    await bed.runtime.signal(run_id, "go")

    assert await bed.result(run_id) == [1, 2]


async def test_a_step_emits_progress_at_its_own_position(bed: Bed) -> None:
    """Like the pieces of a model call; on replay the step is not executed and emits nothing."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox

        async def long() -> str:
            for percent in (0, 50):
                await ctx.emit_delta({"percent": percent})
            return "done"

        await ctx.sleep_until_signal("go")
        await ctx.emit_delta("starting")
        await ctx.step("long", long)
        await ctx.emit_delta("still here")
        await ctx.sleep(0.01)
        await ctx.emit_delta("ending")

    watching = await watched(bed, await bed.submit(await bed.serve(act)))

    assert watching.deltas == [
        ("", 0, "starting"),
        ("1", 0, {"percent": 0}),
        ("1", 1, {"percent": 50}),
        ("", 1, "still here"),
        ("", 2, "ending"),
    ]


async def test_branches_number_their_live_output_separately(bed: Bed) -> None:
    """Each branch numbers under its own position, so two texts at once can be told apart."""

    async def emit_parts(ctx: RunContext, name: str) -> None:
        for part in ("a", "b"):
            await ctx.emit_delta(f"{name}{part}")
            await ctx.step(name, bed.world.do, name)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.sleep_until_signal("go")
        await ctx.gather(emit_parts(ctx, "x"), emit_parts(ctx, "y"))

    watching = await watched(bed, await bed.submit(await bed.serve(act)))

    by_position: dict[str, list[tuple[int, str]]] = {}
    for position, n, text in watching.deltas:
        by_position.setdefault(position, []).append((n, text))
    assert sorted(by_position.values()) == [[(0, "xa"), (1, "xb")], [(0, "ya"), (1, "yb")]]


async def test_live_output_that_is_too_large_or_no_data_is_refused(bed: Bed) -> None:
    """The error has size and limit. A task that is no branch is refused, as by every method."""

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        await ctx.emit_delta("x" * (MAX_DELTA_BYTES - 2))
        with pytest.raises(MessageTooLargeError, match="65537 bytes as JSON, 65536"):
            await ctx.emit_delta("x" * (MAX_DELTA_BYTES - 1))
        with pytest.raises(NotSerializableError):
            await ctx.emit_delta(object())

        async def inside() -> None:
            await asyncio.create_task(ctx.emit_delta("no"))

        with pytest.raises(EffectOutsideScopeError):
            await inside()
        return "went on"

    assert await bed.play(act) == "went on"
