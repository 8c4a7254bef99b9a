"""Runs of graphs on hosts: steps and branches, beside the same entries by hand. `flow_waits` has waits.

The floor writes the entries of one real run by the store alone: a group for each effect, as must be.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.agent.message import Message
from actors._kernel.runtime.commit import Commit, Finish
from actors._kernel.runtime.ids import run_id_of_submit
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.log_entry import NewEntry
from actors._kernel.runtime.rows import NewRun
from actors._kernel.runtime.scheduler import RunStatus
from actors.workflow import (
    Effect,
    EffectOutcome,
    EffectType,
    FlowRuns,
    Flows,
    RunState,
    RuntimeConfig,
    StepPlan,
    WorkflowSpec,
)
from tests.benchmarks.bench import (
    PAYLOAD,
    TYPE,
    Floor,
    agent_id,
    many,
    open_runtime,
    open_store,
    report,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._runtime import Runtime

STEPS: Final = 20
PURE: Final = 200
FLUSHED: Final = 50
"""A long run has an effect at each step of so many; the others are pure."""
BRANCHES: Final = 50
BRANCH_S: Final = 0.1
_ENDS: Final = frozenset({K.EFFECT_RESULT, K.RUN_STARTED})


def _work(run: RunState, _ctx: Any) -> StepPlan:
    run.vars["n"] += 1
    effect = Effect(EffectType.TOOL_CALLS, {"n": run.vars["n"]}, "out")
    return StepPlan("work", effect=effect, next_node="work" if run.vars["n"] < STEPS else "end")


def _pure(run: RunState, _ctx: Any) -> StepPlan:
    run.vars["n"] += 1
    if run.vars["n"] <= PURE:
        return StepPlan("pure", next_node="pure")
    return StepPlan("pure", effect=Effect(EffectType.TOOL_CALLS, {}, "out"), next_node="end")


def _ask(_run: RunState, _ctx: Any) -> StepPlan:
    effect = Effect(EffectType.ASK_USER, {"prompt": "?", "wait_key": "ok"}, "out")
    return StepPlan("ask", effect=effect, next_node="end")


def _hear(_run: RunState, _ctx: Any) -> StepPlan:
    effect = Effect(EffectType.WAIT_EVENT, {"name": "go", "scope": "global"}, "out")
    return StepPlan("hear", effect=effect, next_node="end")


def _long(run: RunState, _ctx: Any) -> StepPlan:
    run.vars["n"] += 1
    next_node = "long" if run.vars["n"] < run.vars["steps"] else "ask"
    if run.vars["n"] % FLUSHED:
        return StepPlan("long", next_node=next_node)
    return StepPlan("long", Effect(EffectType.TOOL_CALLS, {}, "out"), next_node=next_node)


def _split(_run: RunState, _ctx: Any) -> StepPlan:
    return StepPlan("split", parallel={str(n): "slow" for n in range(BRANCHES)}, next_node="end")


def _slow(_run: RunState, _ctx: Any) -> StepPlan:
    return StepPlan("slow", effect=Effect(EffectType.LLM_CALL), next_node="end")


def _end(_run: RunState, _ctx: Any) -> StepPlan:
    return StepPlan("end", complete_output={"done": True})


async def _slowly(_run: RunState, _effect: Effect) -> EffectOutcome:
    await asyncio.sleep(BRANCH_S)
    return EffectOutcome.completed()


def flows(app: str = TYPE) -> Flows:
    """Return the graphs of this benchmark as an app of this name."""
    graphs: dict[str, dict[str, Any]] = {
        "work": {"work": _work, "end": _end},
        "pure": {"pure": _pure, "end": _end},
        "ask": {"ask": _ask, "end": _end},
        "hear": {"hear": _hear, "end": _end},
        "long": {"long": _long, "ask": _ask, "end": _end},
        "split": {"split": _split, "slow": _slow, "end": _end},
    }
    return Flows(
        app,
        [WorkflowSpec(name, name, nodes) for name, nodes in graphs.items()],
        effect_handlers={
            EffectType.TOOL_CALLS: lambda _r, _e: EffectOutcome.completed(PAYLOAD),
            EffectType.LLM_CALL: _slowly,
        },
        config=RuntimeConfig(max_iterations=10 * PURE),
    )


async def _played(runtime: Runtime, flow: str, key: str, **variables: Any) -> None:
    runs = FlowRuns(runtime, TYPE)
    await runtime.result(await runs.start(flow, vars={"n": 0, **variables}, id=key))


async def _groups(url: str, flow: str) -> list[list[NewEntry]]:
    """Return the entries of a real run, in the groups in which they have to be durable."""
    async with open_runtime(url) as runtime:
        await flows().register(runtime)
        run_id = await FlowRuns(runtime, TYPE).start(flow, vars={"n": 0})
        await runtime.result(run_id)
        groups: list[list[NewEntry]] = [[]]
        async for entry in runtime.entries(run_id):
            groups[-1].append(NewEntry(K(entry.kind), entry.position, entry.payload))
            if entry.kind in _ENDS:
                groups.append([])
    return groups


async def floor(
    url: str, groups: Sequence[Sequence[NewEntry]], *, total: int, at_once: int
) -> float:
    """Return runs per second of the store alone: submit, and an append for each group."""
    async with open_store(url) as store:
        hand = await Floor.over(store)

        async def write_run(index: int) -> None:
            agent = agent_id(index)
            message = Message.of(agent, None).sent_by("submit:flows")
            run = NewRun(run_id_of_submit(agent, "submit:flows", message.id), agent)
            await store.arrivals.submit(run, message)
            lease, seq = hand.lease(agent, run.run_id), -1
            for group in groups[:-1]:
                seq = await store.commits.append(lease, group, expected_seq=seq)
            end = Commit(lease, seq, tuple(groups[-1]), then=Finish(RunStatus.COMPLETED))
            await store.commits.commit(end)

        return total / await many(write_run, total=total, at_once=at_once)


async def ours(url: str, flow: str, *, total: int, at_once: int) -> float:
    """Return runs per second of a host."""
    async with open_runtime(url) as runtime:
        await flows().register(runtime)
        took = await many(lambda n: _played(runtime, flow, str(n)), total=total, at_once=at_once)
        return total / took


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print a line for effects at 1, 50 and 200 runs at once, for pure steps, and for branches."""
    groups = await _groups(url, "work")
    for at_once, total, goal in ((1, 40, 0.4), (50, 600, 0.4), (200, 1200, 0.35)):
        runs = max(2, int(total * scale), min(at_once, int(at_once * scale * 5)))
        least = await floor(url, groups, total=runs, at_once=at_once)
        rate = await ours(url, "work", total=runs, at_once=at_once)
        report(
            benchmark="flows",
            what="effect steps",
            at_once=at_once,
            runs=runs,
            steps_per_s=round(rate * STEPS),
            floor_per_s=round(least * STEPS),
            ratio=round(rate / least, 3),
            goal=goal,
        )
    await _pure_steps(url, max(2, int(40 * scale)))
    await _branches(url)


async def _pure_steps(url: str, runs: int) -> None:
    """Report pure steps within one commit, beside a loop over the node and the same groups."""
    least = await floor(url, await _groups(url, "pure"), total=runs, at_once=1)
    state = RunState.new(workflow_id="pure", entry_node="pure", vars={"n": 0})
    began = time.perf_counter()
    for _ in range(PURE):
        _pure(state, None)
    loop_s = time.perf_counter() - began
    rate, base = await ours(url, "pure", total=runs, at_once=1), 1 / (1 / least + loop_s)
    report(
        benchmark="flows",
        what="pure steps",
        steps_per_s=round(rate * PURE),
        floor_per_s=round(base * PURE),
        ratio=round(rate / base, 3),
        goal=0.25,
    )


async def _branches(url: str) -> None:
    """Report branches that each wait for an effect of 100 ms."""
    async with open_runtime(url) as runtime:
        await flows().register(runtime)
        await _played(runtime, "split", "warm")
        began = time.perf_counter()
        await _played(runtime, "split", "timed")
        took = time.perf_counter() - began
    multiple = round(took / BRANCH_S, 2)
    report(benchmark="flows", what="branches", of=BRANCHES, multiple=multiple, limit_multiple=3.0)
