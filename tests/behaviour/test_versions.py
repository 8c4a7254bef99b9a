"""Versions: a run continues with the code that started it; changed code calls `patched`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RunStatus
from tests.behaviour.agents import Acting

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId, RunId
    from actors._kernel.runtime.rows import RunRow
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


def desk(bed: Bed, agent_id: AgentId, version: str | None) -> Acting:
    """Return an agent that outputs its executing version, before and after a wait."""

    async def mark() -> str | None:
        bed.world.count["mark"] += 1
        return version

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        before = await ctx.step("mark", mark)
        await ctx.sleep_until_signal("go")
        return [before, version]

    return Acting(agent_id, act, **({} if version is None else {"version": version}))


async def serve(bed: Bed, *agents: Acting) -> AgentId:
    """Register versions of one agent, in this order; later hosts serve the last one."""
    for agent in agents:
        bed.agents[agent.id] = agent
        await bed.runtime.register(agent)
    return agents[-1].id


async def parked(bed: Bed, run_id: RunId) -> RunRow:
    """Return the row of a run once it is parked."""
    await bed.seen(run_id, K.RUN_PARKED)
    row = await bed.row(run_id)
    assert row == await bed.runtime.store.operators.refold(run_id)
    return row


@pytest.mark.item(489)
async def test_a_run_continues_with_the_version_that_started_it(bed: Bed) -> None:
    """Two versions are served at once; new runs get the one that was registered last."""
    agent_id = bed.name()
    old_code, new_code = desk(bed, agent_id, "1"), desk(bed, agent_id, "2")
    await serve(bed, old_code)
    old = await bed.submit(agent_id)
    await bed.marked(old)
    await bed.crash()
    bed.agents = {}
    await bed.start()
    await serve(bed, old_code, new_code)

    await bed.runtime.signal(old, "go")
    assert await bed.result(old) == ["1", "1"]
    new = await bed.submit(agent_id)
    await bed.runtime.signal(new, "go")
    assert await bed.result(new) == ["2", "2"]
    started = [(await bed.log(run_id, K.RUN_STARTED))[0] for run_id in (old, new)]
    assert [entry.payload["version"] for entry in started] == ["1", "2"]


@pytest.mark.item(489)
@pytest.mark.parametrize("other", ["2", None], ids=["another", "none"])
async def test_a_run_is_parked_on_a_host_without_its_version(bed: Bed, other: str | None) -> None:
    """No code of another version executes it; a host with its version continues it after a retry."""
    agent_id = bed.name()
    old_code, new_code = desk(bed, agent_id, "1"), desk(bed, agent_id, other)
    await serve(bed, old_code)
    run_id = await bed.submit(agent_id)
    await bed.marked(run_id)
    await bed.crash()
    bed.agents = {agent_id: new_code}
    await bed.start()
    await bed.runtime.signal(run_id, "go")

    row = await parked(bed, run_id)
    assert (row.status, row.parked) == (RunStatus.SUSPENDED, "version")
    detail = str((await bed.log(run_id, K.RUN_PARKED))[0].payload["detail"])
    assert "'1'" in detail
    assert (repr(other) if other else "without a version") in detail
    assert str(agent_id) in detail
    await bed.runtime.resolve(run_id)  # too early: it is parked again
    await bed.seen(run_id, K.RUN_PARKED, times=2)
    await bed.runtime.register(old_code)
    await bed.runtime.resolve(run_id)

    assert await bed.result(run_id) == ["1", "1"]
    assert bed.world.count["mark"] == 1
    assert (await bed.row(run_id)).status is RunStatus.COMPLETED


@pytest.mark.item(489)
async def test_a_retry_has_the_version_of_the_run(bed: Bed) -> None:
    """Also if the newer version was registered between two attempts."""
    agent_id, versions = bed.name(), []

    def version(name: str) -> Acting:
        async def act(ctx: RunContext, inbox: list[Message]) -> str:
            del inbox
            versions.append(name)
            if ctx.meta.attempt == 1:
                await bed.runtime.register(version("2"))
                raise ValueError("once")
            return name

        return Acting(agent_id, act, version=name)

    await bed.runtime.register(version("1"))
    run_id = await bed.submit(agent_id)

    assert await bed.result(run_id) == "1"
    assert versions == ["1", "1"]


@pytest.mark.item(489)
async def test_a_failed_attempt_is_parked_on_a_host_without_its_version(bed: Bed) -> None:
    """Before its next attempt starts; no attempt is counted."""
    agent_id = bed.name()

    async def fail(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx, inbox
        raise ValueError("always")

    await serve(bed, Acting(agent_id, fail, version="1"))
    run_id = await bed.submit(agent_id, max_retries=3)  # the next attempt is seconds away
    await bed.seen(run_id, K.RUN_ATTEMPT_FAILED)
    await bed.crash()
    bed.agents = {agent_id: desk(bed, agent_id, "2")}
    await bed.start()

    row = await parked(bed, run_id)
    assert (row.parked, row.attempt) == ("version", 1)
    await bed.runtime.cancel(run_id)
    assert (await bed.ended(run_id)).status is RunStatus.CANCELLED


@pytest.mark.item(489)
async def test_continue_as_new_gives_a_run_the_new_version(bed: Bed) -> None:
    """Its new generation starts with the version registered last, and is pinned to it."""
    agent_id = bed.name()

    def counter(name: str) -> Acting:
        async def act(ctx: RunContext, inbox: list[Message]) -> object:
            versions: Any = inbox[0].payload
            await ctx.step("mark", bed.world.do, "mark")
            await ctx.sleep_until_signal("go")
            versions = [*versions, name]
            if len(versions) < 3:
                await ctx.continue_as_new(versions)
            return versions

        return Acting(agent_id, act, version=name)

    await serve(bed, counter("1"))
    run_id = await bed.submit(agent_id, [])
    await bed.marked(run_id)
    await bed.runtime.register(counter("2"))
    await bed.runtime.signal(run_id, "go")
    await bed.seen(run_id, K.EFFECT_RESULT, times=2, name="mark")
    await bed.runtime.register(counter("3"))
    bed.agents = {agent_id: counter("2")}
    await bed.restart()
    await bed.runtime.signal(run_id, "go")
    await bed.seen(run_id, K.RUN_CONTINUED, times=2)
    await bed.runtime.signal(run_id, "go")

    assert await bed.result(run_id) == ["1", "2", "2"]
    continued = await bed.log(run_id, K.RUN_CONTINUED)
    assert [entry.payload["version"] for entry in continued] == ["2", "2"]


@pytest.mark.item(489)
async def test_without_versions_any_code_may_continue_a_run(bed: Bed) -> None:
    """Replay compares its calls with the log; a version that is added later is for new runs."""
    agent_id = bed.name()
    await serve(bed, desk(bed, agent_id, None))
    run_id = await bed.submit(agent_id)
    await bed.marked(run_id)
    await bed.crash()
    bed.agents = {agent_id: desk(bed, agent_id, "2")}
    await bed.start()
    await bed.runtime.signal(run_id, "go")

    assert await bed.result(run_id) == [None, "2"]
    assert "version" not in (await bed.log(run_id, K.RUN_STARTED))[0].payload


@pytest.mark.item(489)
async def test_types_have_versions_too(bed: Bed) -> None:
    """Versions of the agents that their factories make."""
    prefix = bed.name()
    agent_id = type(prefix)(prefix.type, "7")
    await bed.runtime.register_type(prefix.type, lambda agent_id: desk(bed, agent_id, "1"))
    run_id = await bed.submit(agent_id)
    await bed.marked(run_id)
    await bed.runtime.register_type(prefix.type, lambda agent_id: desk(bed, agent_id, "2"))
    other = await bed.submit(type(prefix)(prefix.type, "8"))
    for id_ in (run_id, other):
        await bed.runtime.signal(id_, "go")

    assert await bed.result(run_id) == ["1", "1"]
    assert await bed.result(other) == ["2", "2"]


@pytest.mark.item(74)
async def test_patched_stays_true_over_attempts(bed: Bed) -> None:
    """Also if the attempt that called it first failed with the value recorded before."""
    paths: list[bool] = []

    async def flaky() -> str:
        bed.world.count["flaky"] += 1
        if bed.world.count["flaky"] < 3:
            raise ValueError("not yet")
        return "done"

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        paths.append(await ctx.patched("tax"))
        return [await ctx.step("flaky", flaky), await ctx.patched("tax")]

    run_id = await bed.submit(await bed.serve(act))

    assert await bed.result(run_id) == ["done", True]
    assert paths == [True, True, True]


@pytest.mark.item(74)
async def test_patched_stays_false_over_attempts_of_an_old_run(bed: Bed) -> None:
    """Old code executed in an earlier attempt that counts: the next attempts take its path."""
    new_code, paths = [False], []

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        if new_code[0]:
            paths.append(await ctx.patched("tax"))
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("go")
        bed.world.count["tries"] += 1
        if bed.world.count["tries"] < 3:
            raise ValueError("not yet")
        return paths[-1]

    run_id = await bed.submit(await bed.serve(act))
    await bed.marked(run_id)
    new_code[0] = True
    await bed.restart()
    await bed.runtime.signal(run_id, "go")

    assert await bed.result(run_id) is False
    assert set(paths) == {False}
    assert bed.world.count["mark"] == 1


@pytest.mark.item(74)
async def test_patched_is_evaluated_in_each_generation(bed: Bed) -> None:
    """After `continue_as_new` no entry of the old code precedes it."""
    new_code = [False]

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        flags: Any = inbox[0].payload
        flags = [*flags, bool(new_code[0] and await ctx.patched("tax"))]
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("go")
        if len(flags) < 3:
            await ctx.continue_as_new(flags)
        return flags

    run_id = await bed.submit(await bed.serve(act), [])
    await bed.marked(run_id)
    new_code[0] = True
    await bed.restart()
    await bed.runtime.signal(run_id, "go")
    await bed.seen(run_id, K.RUN_CONTINUED, times=1)
    await bed.runtime.signal(run_id, "go")
    await bed.seen(run_id, K.RUN_CONTINUED, times=2)
    await bed.restart()
    await bed.runtime.signal(run_id, "go")

    assert await bed.result(run_id) == [False, True, True]


@pytest.mark.item(74)
async def test_code_without_the_patched_call_takes_the_new_path(bed: Bed) -> None:
    """The call may be removed once no run of the old code is left; runs that called it continue."""
    asks = [True]

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        is_new = await ctx.patched("tax") if asks[0] else True
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("go")
        return [is_new, await ctx.patched("other")]

    run_id = await bed.submit(await bed.serve(act))
    await bed.marked(run_id)
    asks[0] = False
    await bed.restart()
    await bed.runtime.signal(run_id, "go")

    assert await bed.result(run_id) == [True, True]
    assert bed.world.count["mark"] == 1
