"""Waits of flows on agents: instants, people, jobs and events, answered from any process."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.stores.runs import MOST_ANSWERED
from actors._kernel.workflow.errors import GraphError, NoSuchRunError, StaleResumeError
from actors.errors import NotSerializableError
from actors.workflow import (
    Effect,
    EffectOutcome,
    EffectType,
    FlowRuns,
    RunStatus,
    StepPlan,
    WaitReason,
    WaitState,
    WorkflowSpec,
)
from tests.behaviour.flow_stage import asking, ending, single, staged

if TYPE_CHECKING:
    from actors.workflow import RunState
    from tests.behaviour.bed import Bed

T = EffectType
ASK = {"prompt": "Refund?", "wait_key": "k", "choices": ["yes", "no"], "allow_free_text": False}


def forking(*names: str) -> Any:
    """Return a node with branches at nodes of these names."""
    return lambda run, _ctx: StepPlan(
        run.current_node, parallel={name: name for name in names}, next_node="end"
    )


@pytest.mark.item(391, 392, 393, 407, 411, 412, 413, 414, 418)
async def test_a_person_answers_once(bed: Bed) -> None:
    """The wait has all that a page needs. Wrong keys, second answers and invalid data change nothing."""
    stage = await staged(bed, single(T.ASK_USER, ASK | {"details": {"n": 1}}, key="got.it"))
    run_id = await stage.runs.start("flow")
    (wait,) = await stage.waits(run_id)
    assert (wait.reason, wait.wait_key, wait.prompt) == (WaitReason.USER, "k", "Refund?")
    assert (wait.choices, wait.allow_free_text, wait.details) == (["yes", "no"], False, {"n": 1})
    assert (wait.resume_to_node, wait.result_key) == ("end", "got.it")
    state = await stage.runs.state(run_id)
    assert (state.status, state.waiting) == (RunStatus.WAITING, wait)
    if bed.drops:
        await bed.seen(run_id, K.RUN_SUSPENDED)
        await bed.until(lambda: bed.runtime._host.worker.dispatcher.load == 0)
    with pytest.raises(StaleResumeError, match="wait_key mismatch: it waits for 'k', not 'x'"):
        await stage.runs.resume(run_id, "x", "yes")
    with pytest.raises(NotSerializableError, match=r"payload\.x"):
        await stage.runs.resume(run_id, "k", {"x": object()})
    assert await stage.runs.waits(run_id) == [wait]

    async with bed.client() as client:
        await FlowRuns(client, stage.flows.app).resume(run_id, "k", "yes")
        with pytest.raises(StaleResumeError):
            await stage.runs.resume(run_id, "k", "no")

    assert (await stage.ended(run_id)).output == {"got": {"it": "yes"}}
    for late in (stage.runs.resume, stage.runs.answer):
        with pytest.raises(StaleResumeError, match=r"(?i)run is (not waiting|completed)"):
            await late(run_id, "k", "no")
    assert [record[1] for record in await stage.node_statuses(run_id)] == [
        "started",
        "waiting",
        "completed",
    ]


@pytest.mark.item(411)
async def test_runs_of_other_apps_and_tenants_are_not_found(bed: Bed) -> None:
    """Runs of another app or tenant, and unknown ones, are not found."""
    stage = await staged(bed, single(T.ASK_USER, ASK))
    run_id = await stage.runs.start("flow")
    await stage.waits(run_id)
    for foreign in (
        FlowRuns(bed.runtime, "other"),
        FlowRuns(bed.runtime, stage.flows.app, tenant="t2"),
    ):
        for read in (foreign.state, foreign.ledger):
            with pytest.raises(NoSuchRunError):
                await read(run_id)
        with pytest.raises(NoSuchRunError):
            await foreign.resume(run_id, "k", "yes")
        with pytest.raises(NoSuchRunError):
            await foreign.cancel(run_id)
    assert (await stage.runs.state(run_id)).status is RunStatus.WAITING


@pytest.mark.item(414)
async def test_an_answer_before_its_wait_is_kept(bed: Bed) -> None:
    """The first one is kept, also over a crash."""
    gate = asyncio.Event()

    async def handle(_run: RunState, _effect: Effect) -> EffectOutcome:
        await gate.wait()
        return EffectOutcome.completed(1)

    nodes = {
        "work": asking(T.TOOL_CALLS, {}, after="ask"),
        "ask": asking(T.ASK_USER, ASK),
        "end": ending,
    }
    stage = await staged(
        bed, WorkflowSpec("flow", "work", nodes), effect_handlers={T.TOOL_CALLS: handle}
    )
    run_id = await stage.runs.start("flow")
    await bed.seen(run_id, K.RUN_STARTED)
    with pytest.raises(StaleResumeError, match="not waiting"):
        await stage.runs.resume(run_id, "k", "too early")
    await stage.runs.answer(run_id, "k", "first")
    with pytest.raises(StaleResumeError, match="has an answer"):
        await stage.runs.answer(run_id, "k", "second")
    await stage.restart()
    gate.set()

    assert (await stage.ended(run_id)).output == {"out": "first"}


@pytest.mark.item(392, 414, 439)
async def test_waits_of_one_key_have_separate_answers(bed: Bed) -> None:
    """Each wait has its own answer, also in concurrent branches and over restarts."""

    def loop(run: RunState, _ctx: Any) -> StepPlan:
        got = run.vars.setdefault("all", [])
        got += [run.vars["got"]] if "got" in run.vars else []
        if len(got) == 3:
            return StepPlan("loop", next_node="fork")
        return StepPlan("loop", Effect(T.ASK_USER, dict(ASK), "got"), next_node="loop")

    nodes = {name: asking(T.ASK_USER, ASK, key=f"in.{name}") for name in "xy"}
    nodes |= {"loop": loop, "fork": forking("x", "y"), "end": ending}
    stage = await staged(bed, WorkflowSpec("flow", "loop", nodes))
    run_id = await stage.runs.start("flow")
    for answer in ("a", "b", "c"):
        await stage.waits(run_id)
        await stage.runs.resume(run_id, "k", answer)
        await stage.restart()
    waits = await stage.waits(run_id, 2)
    assert len({wait.wait_key for wait in waits}) == 2
    for wait, answer in zip(waits, ("l", "r"), strict=True):
        assert wait.wait_key is not None
        await stage.runs.resume(run_id, wait.wait_key, answer)

    output = (await stage.ended(run_id)).output
    assert output["all"] == ["a", "b", "c"]
    assert sorted(output["in"].values()) == ["l", "r"]


@pytest.mark.item(392, 477, 480)
async def test_a_handler_waits_for_an_external_job(bed: Bed) -> None:
    """A handler returns a wait; an external client answers it, also when another host owns the run by then."""
    odd = {"until": WaitReason.UNTIL, "branches": WaitReason.BRANCHES, "job": WaitReason.JOB}

    def handle(run: RunState, _effect: Effect) -> EffectOutcome:
        wait = WaitState(odd[run.vars["reason"]], wait_key="j", details={"job": 5})
        return EffectOutcome.waiting(wait)

    stage = await staged(bed, single(T.TOOL_CALLS, {}), effect_handlers={T.TOOL_CALLS: handle})
    run_ids = {reason: await stage.runs.start("flow", vars={"reason": reason}) for reason in odd}
    for run_id in run_ids.values():
        (wait,) = await stage.waits(run_id)
        assert wait.details == {"job": 5}
    await stage.restart()
    for run_id in run_ids.values():
        await stage.runs.resume(run_id, "j", {"done": True})

        assert (await stage.ended(run_id)).output["out"] == {"done": True}
        record = (await stage.runs.ledger(run_id))[2]
        assert record["status"] == "waiting"
        assert record["result"]["wait"]["wait_key"] == "j"


@pytest.mark.item(480)
async def test_a_wait_for_an_unknown_run_fails_the_step(bed: Bed) -> None:
    """The step fails with an error that names the run."""

    def handle(run: RunState, _effect: Effect) -> EffectOutcome:
        return EffectOutcome.waiting(WaitState(WaitReason.SUBWORKFLOW, details=run.vars["details"]))

    stage = await staged(bed, single(T.TOOL_CALLS, {}), effect_handlers={T.TOOL_CALLS: handle})
    for details in ({}, {"sub_run_id": "gone"}):
        state = await stage.play("flow", vars={"details": details})
        assert "is gone" in str(state.error)


@pytest.mark.item(392, 417, 455)
@pytest.mark.parametrize("hours", [-11, 0, 14])
async def test_an_instant_is_waited_for_in_any_zone(bed: Bed, hours: int) -> None:
    """A timer that survives the host. A past instant returns at once; an invalid one fails the run."""
    zone = timezone(timedelta(hours=hours))

    def until(at: datetime) -> dict[str, Any]:
        return {"until": at.astimezone(zone).isoformat()}

    due = bed.clock.now()
    instant = until(due)
    stage = await staged(
        bed,
        single(T.WAIT_UNTIL, instant),
        single(T.WAIT_UNTIL, until(due - timedelta(hours=2)), name="past"),
        single(T.WAIT_UNTIL, {"until": "0001-01-01T00:00:00+14:00"}, name="first"),
        single(T.WAIT_UNTIL, {"until": "soon"}, name="odd"),
        single(T.WAIT_UNTIL, {"timeout_s": 1e300}, name="long"),
        single(T.WAIT_UNTIL, {}, name="none"),
    )

    async def waiting(ahead_s: float) -> RunId:
        nonlocal due
        due = bed.clock.now() + timedelta(seconds=ahead_s)
        instant.update(until(due))
        run_id = await stage.runs.start("flow")
        try:
            await bed.seen(run_id, K.TIMER_SET)
        except AssertionError:  # on a busy machine the instant is past when the run begins
            if ahead_s > 10:
                raise
            return await waiting(ahead_s * 10)
        return run_id

    run_id = await waiting(8.0 if bed.backend == "memory" else 0.4)
    assert await stage.runs.waits(run_id) == []
    await stage.restart()

    ended = await stage.ended(run_id)
    output = ended.output
    assert bed.clock.now() >= due
    assert ended.vars["_runtime"]["wait_until_streak"] == 1
    assert output["out"] == {"waited_until": due.isoformat()}
    past = await stage.play("past")
    assert "waited_until" in past.output["out"]
    assert not await bed.log(RunId(past.run_id), K.TIMER_SET)
    for name, error in (
        ("odd", "not a valid ISO"),
        ("long", "too long"),
        ("none", "needs payload"),
    ):
        assert error in str((await stage.play(name)).error)


@pytest.mark.item(416, 418)
@pytest.mark.parametrize("kind", [T.ASK_USER, T.WAIT_EVENT])
async def test_a_deadline_ends_a_wait(bed: Bed, kind: EffectType) -> None:
    """The payload has a flag for the timeout. An answer before the deadline is used."""
    long_s, short_s = (900.0, 8.0) if bed.backend == "memory" else (60.0, 0.3)
    payload = {"prompt": "?", "wait_key": "k"}
    stage = await staged(
        bed,
        single(kind, payload | {"timeout_s": short_s}),
        single(kind, payload | {"timeout_s": long_s}, name="long"),
    )
    run_id, other = await stage.runs.start("flow"), await stage.runs.start("long")
    (wait,) = await stage.waits(run_id)
    await stage.waits(other)
    await stage.runs.resume(other, "k", 7)

    assert (await stage.ended(other)).output == {"out": 7}
    assert (await stage.ended(run_id)).output == {"out": {"timed_out": True, "until": wait.until}}
    with pytest.raises(StaleResumeError):
        await stage.runs.resume(run_id, "k", "late")


@pytest.mark.item(416, 420, 457, 458)
async def test_an_event_reaches_the_waits_in_its_scope(bed: Bed) -> None:
    """Scopes are a session, a flow, a run, or all.

    Clients and EMIT_EVENT emit; other tenants get nothing.
    """
    listens = {
        scope: single(T.WAIT_EVENT, {"name": "paid", "scope": scope}, name=scope)
        for scope in ("session", "workflow", "run", "global")
    }
    emits = {"name": "paid", "scope": "session", "session_id": "s1", "payload": {"n": 1}}
    stage = await staged(bed, *listens.values(), single(T.EMIT_EVENT, emits, name="emit"))
    foreign = FlowRuns(bed.runtime, stage.flows.app, tenant="t2")
    runs = {name: await stage.runs.start(name, session_id="s1") for name in listens}
    away = await foreign.start("global")
    for run_id in (*runs.values(), away):
        async with asyncio.timeout(20):
            runs_of = foreign if run_id == away else stage.runs
            while not await runs_of.waits(run_id):  # noqa: ASYNC110 - rows
                await asyncio.sleep(0.01)

    emission = (await stage.play("emit")).output["out"]
    assert (emission["delivered"], emission["resumed"]) == (1, [runs["session"]])
    assert (await stage.ended(runs["session"])).output["out"]["payload"] == {"n": 1}
    scopes = {
        "workflow": {"workflow_id": "workflow"},
        "run": {"run_id": str(runs["run"])},
        "global": {},
    }
    for scope, whose in scopes.items():
        assert (await stage.runs.emit("unpaid", scope=scope, **whose))["delivered"] == 0
        emission = await stage.runs.emit("paid", [scope], event_id="e", scope=scope, **whose)
        assert emission == {
            "event_id": "e",
            "wait_key": emission["wait_key"],
            "delivered": 1,
            "resumed": [runs[scope]],
        }
        event = (await stage.ended(runs[scope])).output["out"]
        assert (event["name"], event["payload"], event["event_id"]) == ("paid", [scope], "e")
    assert (await foreign.state(away)).status is RunStatus.WAITING
    assert (await foreign.emit("paid", 2))["delivered"] == 1


@pytest.mark.item(420, 457)
async def test_an_invalid_event_is_refused(bed: Bed) -> None:
    """Without a name, of another scope, or with a payload that is no JSON.

    An effect that emits it fails.
    """
    stage = await staged(bed, single(T.EMIT_EVENT, {"name": "", "scope": "global"}))
    with pytest.raises(GraphError, match="no name"):
        await stage.runs.emit("")
    with pytest.raises(GraphError, match="none of"):
        await stage.runs.emit("paid", scope="world")
    with pytest.raises(NotSerializableError):
        await stage.runs.emit("paid", object())
    assert "no name" in str((await stage.play("flow")).error)


def listening(times: int) -> WorkflowSpec:
    """Return a flow that waits for this many events."""

    def hear(run: RunState, _ctx: Any) -> StepPlan:
        payloads = run.vars.setdefault("heard", [])
        payloads += [run.vars["event"]["payload"]] if "event" in run.vars else []
        if len(payloads) == times:
            return StepPlan("hear", complete_output=payloads)
        effect = Effect(T.WAIT_EVENT, {"name": "e", "scope": "global"}, "event")
        return StepPlan("hear", effect, next_node="hear")

    return WorkflowSpec("ear", "hear", {"hear": hear})


@pytest.mark.item(420, 458)
async def test_an_event_of_one_id_answers_one_wait_of_a_run(bed: Bed) -> None:
    """A repeated event finds the next wait, which is not ended; an event with another id ends it.

    Over restarts.
    """
    stage = await staged(bed, listening(2))
    run_id = await stage.runs.start("ear")
    await stage.waits(run_id)
    name = "e"
    await stage.runs.emit(name, 1, event_id="x")
    await bed.seen(run_id, K.ASK_SENT, times=2)
    await stage.waits(run_id)
    assert (await stage.runs.emit(name, 2, event_id="x"))["delivered"] == 1
    await bed.seen(run_id, K.ASK_SENT, times=3)
    await stage.restart()
    await stage.waits(run_id)
    await stage.runs.emit(name, 3, event_id="y")

    assert (await stage.ended(run_id)).output == [1, 3]


@pytest.mark.item(420, 458)
async def test_an_event_reaches_all_branches_that_wait_for_it(bed: Bed) -> None:
    """Once each, in any order."""
    event = {"name": "both", "scope": "global"}
    nodes = {name: asking(T.WAIT_EVENT, event, key=f"in.{name}") for name in "xyz"}
    nodes |= {"fork": forking(*"xyz"), "end": ending}
    stage = await staged(bed, WorkflowSpec("flow", "fork", nodes))
    run_id = await stage.runs.start("flow")
    await stage.waits(run_id, 3)

    emission = await stage.runs.emit("both", 5, event_id="x")

    assert (emission["delivered"], emission["resumed"]) == (1, [run_id])
    output = (await stage.ended(run_id)).output
    assert {name: event["payload"] for name, event in output["in"].items()} == dict.fromkeys(
        "xyz", 5
    )
    assert (await stage.runs.state(run_id)).vars["_runtime"]["events_heard"] == {"x": 1}


async def test_two_branches_share_no_wait_key(bed: Bed) -> None:
    """The second question gets a key of its own. So a copy of the first answer does not answer it."""
    nodes = {n: asking(T.ASK_USER, {"prompt": "?", "wait_key": "ok"}, key=n) for n in "xy"}
    nodes |= {"fork": forking(*"xy"), "end": ending}
    stage = await staged(bed, WorkflowSpec("flow", "fork", nodes))
    run_id = await stage.runs.start("flow")
    keys = {wait.wait_key or "" for wait in await stage.waits(run_id, 2)}
    (other,) = keys - {"ok"}
    assert other.startswith("ok~")

    await stage.runs.resume(run_id, "ok", 1)
    with pytest.raises(StaleResumeError):
        await stage.runs.resume(run_id, "ok", 1)
    await stage.restart()
    await stage.runs.resume(run_id, other, 2)

    assert sorted((await stage.ended(run_id)).output.values()) == [1, 2]


@pytest.mark.item(420, 458)
async def test_an_emission_reaches_each_listener_once(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pages. Includes waits that are opened for the next event before the emission is complete."""
    count = 12
    stage = await staged(bed, listening(2))
    runs = [await stage.runs.start("ear") for _ in range(count)]
    for run_id in runs:
        await stage.waits(run_id)
    emit = bed.runtime.store.arrivals.emit
    pages: list[list[Any]] = []

    async def slowly(event: str, payload: Any, **more: Any) -> Any:
        waits = await emit(event, payload, **more, limit=5)
        pages.append([run_id for run_id, _ in waits])
        for wait in waits:
            bed.runtime.approvals._on_answer(*wait)
        for run_id in pages[-1]:
            await bed.seen(run_id, K.ASK_SENT, times=2)
            await stage.waits(run_id)
        return waits

    monkeypatch.setattr(bed.runtime.store.arrivals, "emit", slowly)
    emission = await stage.runs.emit("e", 1)
    monkeypatch.undo()

    assert [len(page) for page in pages] == [5, 5, 2, 0]
    assert emission["delivered"] == count
    assert emission["resumed"] == sorted(runs)
    assert MOST_ANSWERED == 2000
    assert (await stage.runs.emit("e", 2))["delivered"] == count
    assert [(await stage.ended(run_id)).output for run_id in runs] == [[1, 2]] * count
