"""Whose turn it is: branches of one run on a scheduler, without a log or a store, in virtual time.

What branches do here is what `ctx` does for them: wait for the turn of a recorded entry, begin something
new, consume what is there, wait for something from outside.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from actors._runtime.replay.branch_scheduler import STALL_S, BranchScheduler
from actors._runtime.replay.branches import Branch, BranchState, Gather, Group, Select
from actors.errors import EffectOutsideScopeError, ForeignCancellationError
from tests.harness.simloop import SimLoop, simulate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine


class SuspendedError(Exception):
    """Unwinds a run."""


class Stage:
    """A run whose root is the test; `done` is what happened, in order."""

    def __init__(self, durable: int = -1) -> None:
        self.done: list[str] = []
        self.idle = 0
        self.scheduler = BranchScheduler(
            durable=durable,
            on_idle=self._on_idle,
            on_move=lambda: None,
            on_closed=lambda branch: self.say(f"closed {branch.prefix}"),
        )
        self.root = self.scheduler.adopt_root("")

    def _on_idle(self) -> None:
        self.idle += 1

    def say(self, what: str) -> None:
        """It happened."""
        self.done.append(what)

    def branch(self) -> Branch:
        """The branch that asks."""
        return self.scheduler.enter("test")

    async def recorded(self, seq: int, name: str) -> None:
        """An effect whose result is the entry `seq`."""
        await self.scheduler.resume_at(self.branch(), seq, "step")
        self.say(name)

    async def new(self, name: str, then: Callable[[Branch], Awaitable[None]] | None = None) -> None:
        """Something that the log does not have; `then` is the work."""
        branch = self.branch()
        await self.scheduler.begin(branch, "step", lambda: self.say(f"begin {name}"))
        if then is not None:
            await then(branch)
        self.scheduler.live.interrupted(branch, "step", ValueError())

    async def take(self, name: str, *, together: bool = False) -> None:
        """Consume something that is there."""

        async def work(branch: Branch) -> None:
            def on_turn() -> None:
                self.say(f"take {name}")

            await self.scheduler.take(branch, "receive", on_turn, together=together)

        await self.new(name, work)

    async def stay(self) -> None:
        """Wait without end."""
        await self.scheduler.stay(self.branch(), "sleep")

    async def opened(self, group: Group, *codes: Coroutine[Any, Any, Any]) -> None:
        """Let the parent wait for these branches, named by their letters."""
        self.scheduler.open_group(group)
        for letter, code in zip("abcdefgh", codes, strict=False):
            self.scheduler.add(group, Branch(letter, code))
        try:
            await self.scheduler.group(group, "gather")
        finally:
            self.scheduler.groups.close(group)

    async def gather(self, *codes: Coroutine[Any, Any, Any]) -> None:
        """Let the root wait for all of these."""
        await self.opened(Gather(self.root), *codes)


def played(
    act: Callable[[Stage], Coroutine[Any, Any, Any]], *, durable: int = -1, seed: int = 1
) -> Stage:
    """What was done on the stage, when `act` was the code of its root."""

    async def main(_: SimLoop) -> Stage:
        stage = Stage(durable)
        await act(stage)
        stage.scheduler.end_root()
        stage.scheduler.detach()
        return stage

    return simulate(main, seed=seed)[0]


def later(delay_s: float, act: Callable[..., object], *args: object) -> None:
    """Let the world outside do something."""
    asyncio.get_running_loop().call_later(delay_s, act, *args)


@pytest.mark.parametrize("seed", range(4))
def test_recorded_entries_go_on_in_the_order_of_the_log(seed: int) -> None:
    """Whatever order their branches ask in, and whatever order the event loop has."""

    async def act(stage: Stage) -> None:
        await stage.gather(*(stage.recorded(seq, str(seq)) for seq in (5, 2, 7, 3)))

    assert played(act, durable=9, seed=seed).done == ["2", "3", "5", "7"]


def test_a_branch_goes_on_to_its_next_entry_before_another_has_its_turn() -> None:
    """One at a time: b's entry 2 stands before a's entry 3, though a is the one that runs."""

    async def two(stage: Stage, *seqs: int) -> None:
        for seq in seqs:
            await stage.recorded(seq, str(seq))

    async def act(stage: Stage) -> None:
        await stage.gather(two(stage, 1, 3), two(stage, 2, 4))

    assert played(act, durable=4).done == ["1", "2", "3", "4"]


def test_an_entry_that_is_not_durable_yet_is_waited_for() -> None:
    """Also when a later one waits, too; what is new begins meanwhile, what is there is not consumed."""

    async def act(stage: Stage) -> None:
        later(1, stage.say, "durable 1")
        later(1, stage.scheduler.durable_upto, 1)
        later(2, stage.scheduler.durable_upto, 2)
        await stage.gather(
            stage.recorded(1, "1"), stage.recorded(2, "2"), stage.new("x"), stage.take("m")
        )

    done = played(act, durable=0).done
    assert done[:4] == ["begin x", "begin m", "durable 1", "1"]
    assert done[4:] == ["2", "take m"]


def test_a_run_that_is_alone_with_a_durable_entry_goes_on_at_once() -> None:
    """So goes most of a replay: without one step of the event loop. It is a move all the same."""

    async def act(stage: Stage) -> None:
        before = stage.scheduler.live.moves
        turn = stage.scheduler.resume_at(stage.root, 0, "step")
        with pytest.raises(StopIteration):
            turn.send(None)
        assert stage.scheduler.live.moves == before + 1

        later(3, stage.scheduler.durable_upto, 1)
        await stage.scheduler.resume_at(stage.root, 1, "step")
        assert asyncio.get_running_loop().time() == 3

    played(act, durable=0)


def test_what_is_new_begins_in_the_order_asked_when_all_have_asked() -> None:
    """A branch that still runs may be the one that consumes or ends first."""

    async def late(stage: Stage) -> None:
        await stage.recorded(0, "0")
        await stage.new("c")

    async def act(stage: Stage) -> None:
        await stage.gather(stage.new("a"), stage.new("b"), late(stage))

    assert played(act, durable=0).done == ["0", "begin a", "begin b", "begin c"]


def test_who_consumes_does_so_alone_and_goes_on_first() -> None:
    """The next one takes when the first has had its say: it may have been closed by then."""

    async def take(stage: Stage, name: str) -> None:
        await stage.take(name)
        stage.say(f"{name} has it")

    async def act(stage: Stage) -> None:
        await stage.gather(take(stage, "a"), take(stage, "b"))

    takes = played(act).done[2:]
    assert sorted(takes[::2]) == ["take a", "take b"]
    assert takes[1::2] == [f"{take.removeprefix('take ')} has it" for take in takes[::2]]


def test_who_consumes_what_nobody_else_could_want_does_so_in_one_go() -> None:
    """Before those who want the same; so what they record is one flush."""

    async def act(stage: Stage) -> None:
        later(1, stage.scheduler.durable_upto, 0)  # all have asked by then
        await stage.gather(
            stage.recorded(0, "0"),
            stage.take("m"),
            stage.take("a", together=True),
            stage.take("b", together=True),
        )

    for seed in range(4):
        takes = played(act, seed=seed).done[4:]
        assert sorted(takes[:2]) == ["take a", "take b"]
        assert takes[2] == "take m"


def test_a_wait_ends_when_what_it_waits_for_is_there() -> None:
    """The branch works on it; one that is at something else is not disturbed."""

    async def wait(stage: Stage, name: str) -> None:
        async def work(branch: Branch) -> None:
            later(1, stage.scheduler.woken, branch)
            later(1, stage.scheduler.woken, branch)
            await stage.scheduler.wake(branch, "signal")
            stage.say(f"{name} at {asyncio.get_running_loop().time():g}")

        await stage.new(name, work)

    async def act(stage: Stage) -> None:
        await stage.gather(wait(stage, "a"), wait(stage, "b"))
        assert stage.scheduler.live.working == 0

    stage = played(act)
    assert sorted(stage.done[2:]) == ["a at 1", "b at 1"]
    assert stage.idle > 0


def test_a_run_is_idle_only_when_every_branch_waits_for_something_outside() -> None:
    """While one works it is not, and while nobody knows what comes next it is told."""

    async def work(_: Branch) -> None:
        await asyncio.sleep(5)

    async def act(stage: Stage) -> None:
        looks: list[tuple[int, bool]] = []

        def look() -> None:
            looks.append((stage.idle, stage.scheduler.is_idle))

        later(2, look)
        later(7, look)
        later(8, stage.scheduler.durable_upto, 0)
        await stage.gather(stage.recorded(0, "0"), stage.new("x", work))
        assert looks == [(0, False), (0, True)], "an entry on its way is no reason to leave memory"

    played(act)

    async def only_stays(stage: Stage) -> None:
        later(2, stage.scheduler.unwind, SuspendedError())
        with pytest.raises(SuspendedError):
            await stage.stay()

    assert played(only_stays).idle == 1


def test_the_first_to_end_lets_the_others_be_closed_before_the_parent_goes_on() -> None:
    """A loser sees that it is cancelled, in its wait and at each call afterwards."""

    async def loser(stage: Stage) -> None:
        try:
            await stage.stay()
        finally:
            with pytest.raises(asyncio.CancelledError):
                await stage.recorded(0, "never")
            stage.say("cleaned up")

    async def act(stage: Stage) -> None:
        group = Select(stage.root)
        assert not stage.scheduler.groups.is_selecting
        await stage.opened(group, loser(stage), stage.recorded(0, "won"))
        stage.say("went on")
        assert group.winner is group.children[1]
        assert not stage.scheduler.groups.is_selecting

    assert played(act, durable=0).done == ["won", "cleaned up", "closed a", "went on"]


@pytest.mark.parametrize("took_s", [1.5, 5.0])
def test_a_branch_that_flushes_is_not_cut_off(took_s: float) -> None:
    """It is closed when its write is over, however long that takes: what is written may be durable."""

    async def flush(stage: Stage) -> None:
        async def work(branch: Branch) -> None:
            branch.flushing = True
            await asyncio.sleep(took_s)
            branch.flushing = False
            stage.say(f"written at {asyncio.get_running_loop().time():g}")
            stage.scheduler.raise_if_interrupted(branch)

        await stage.new("a", work)

    async def act(stage: Stage) -> None:
        later(1, stage.scheduler.durable_upto, 0)
        await stage.opened(Select(stage.root), flush(stage), stage.recorded(0, "won"))

    assert played(act).done == ["begin a", "won", f"written at {took_s:g}", "closed a"]


def test_a_branch_takes_its_place_in_the_queue_back_unless_it_was_interrupted() -> None:
    """It queued before its flush was over; nothing was written, so it works again."""

    async def work(stage: Stage, branch: Branch) -> None:
        stage.scheduler.queue_resume(branch, 4)
        assert stage.scheduler.go_on_working(branch)
        stage.scheduler.queue_resume(branch, 0)
        await stage.scheduler.await_resume(branch, "step")
        stage.say("its turn")
        assert not stage.scheduler.go_on_working(branch)
        branch.state = BranchState.WORK
        stage.scheduler.live.working += 1

    async def act(stage: Stage) -> None:
        await stage.new("x", lambda branch: work(stage, branch))

    assert played(act, durable=0).done == ["begin x", "its turn"]


def test_a_run_that_unwinds_ends_the_innermost_branches_first() -> None:
    """All see the same signal, and every call raises it from then on."""
    signal = SuspendedError("stop")

    async def leaf(stage: Stage, name: str) -> None:
        with pytest.raises(SuspendedError) as caught:
            await stage.stay()
        assert caught.value is signal
        stage.say(name)
        raise signal

    async def nested(stage: Stage) -> None:
        group = Gather(stage.branch())
        try:
            await stage.opened(group, leaf(stage, "inner"))
        finally:
            stage.say("outer")

    async def act(stage: Stage) -> None:
        later(1, stage.scheduler.unwind, signal)
        later(1, stage.scheduler.unwind, SuspendedError("another"))
        with pytest.raises(SuspendedError, match="stop"):
            await stage.gather(nested(stage), leaf(stage, "other"))
        with pytest.raises(SuspendedError, match="stop"):
            stage.branch()
        assert not stage.scheduler.is_idle

    assert played(act).done == ["inner", "outer", "other"]


def test_who_holds_the_turn_while_it_writes_is_alone() -> None:
    """Nobody else runs agent code until the write is over, whatever is durable by then."""

    async def holder(stage: Stage) -> None:
        await stage.recorded(0, "first")
        await stage.scheduler.live.hold(stage.branch(), asyncio.sleep(3))
        stage.say("held")
        await stage.recorded(2, "last")

    async def act(stage: Stage) -> None:
        later(1, stage.scheduler.durable_upto, 2)
        await stage.gather(holder(stage), stage.recorded(1, "other"))

    assert played(act, durable=0).done == ["first", "held", "other", "last"]


def test_a_branch_that_awaits_something_of_its_own_is_not_waited_for_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a second the others go on, and a warning says so, once; it comes back as one of them."""

    async def astray(stage: Stage) -> None:
        await asyncio.sleep(5)
        stage.say(f"back at {asyncio.get_running_loop().time():g}")
        await stage.recorded(1, "1")

    async def act(stage: Stage) -> None:
        later(0.5, lambda: stage.say("still" if not stage.done else "too early"))
        await stage.gather(astray(stage), stage.recorded(0, "0"))

    with caplog.at_level(logging.WARNING, "callboard.replay"):
        stage = played(act, durable=1)

    assert STALL_S == 1.0
    assert stage.done == ["still", "0", "back at 5", "1"]
    assert [record.__dict__["branch"] for record in caplog.records] == ["a"]


def test_a_call_that_is_cancelled_from_outside_says_so() -> None:
    """Replay could not repeat what `asyncio.timeout` does; the branch can go on."""

    async def act(stage: Stage) -> None:
        with pytest.raises(ForeignCancellationError, match="sleep"):
            async with asyncio.timeout(1):
                await stage.stay()
        await stage.recorded(0, "goes on")

    assert played(act, durable=0).done == ["goes on"]


def test_a_call_of_a_task_that_is_no_branch_is_refused() -> None:
    """Also of the root's task when its code has ended."""

    async def act(stage: Stage) -> None:
        with pytest.raises(EffectOutsideScopeError, match="test"):
            await asyncio.ensure_future(stage.new("x"))
        stage.scheduler.end_root()
        with pytest.raises(EffectOutsideScopeError):
            stage.branch()

    played(act)


def test_what_a_run_leaves_is_cancelled_but_not_who_cancels() -> None:
    """Code that awaits something of its own, and effects that execute; a flush is not."""

    async def act(stage: Stage) -> None:
        async def effect(_: Branch) -> None:
            await asyncio.sleep(9)

        async def own() -> None:
            try:
                await asyncio.sleep(9)
            except asyncio.CancelledError:
                stage.say("own")
                raise

        def stop() -> None:
            stage.scheduler.cancel_running()
            stage.scheduler.unwind(SuspendedError())

        later(2, stop)  # by then the one astray is not waited for
        with pytest.raises(SuspendedError):
            await stage.gather(own(), stage.new("x", effect))
        assert asyncio.get_running_loop().time() == 2

    assert "own" in played(act).done
