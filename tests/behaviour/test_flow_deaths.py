"""A host crashes at each write of a flow's run: no record is lost or doubled, no effect is repeated."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.workflow.errors import StaleResumeError
from actors._workflow.hosted import graph_run
from actors.workflow import (
    Effect,
    EffectMode,
    EffectOutcome,
    EffectType,
    Flows,
    RetryPolicy,
    StepPlan,
    WorkflowSpec,
)
from tests.behaviour.bed import LIMIT_S
from tests.behaviour.flow_stage import Stage, asking, ending, single, without_doubts
from tests.behaviour.test_conversation_deaths import is_a_runs
from tests.harness.faulty_store import Faults, Manner
from tests.harness.slow import IS_SLOW

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors.workflow import RunState
    from tests.behaviour.bed import Bed

T = EffectType


def begin(run: RunState, _ctx: Any) -> StepPlan:
    """Run a pure step three times."""
    run.vars["n"] = run.vars.get("n", 0) + 1
    return StepPlan("begin", next_node="begin" if run.vars["n"] < 3 else "pay")


def split(_run: RunState, _ctx: Any) -> StepPlan:
    """Start two branches."""
    return StepPlan("split", parallel={"l": "left", "r": "right"}, next_node="sub")


EVENT = {"name": "paid", "scope": "run"}
NODES = {
    "begin": begin,
    "pay": asking(T.TOOL_CALLS, {"n": "pay"}, key="paid", after="once"),
    "once": asking(
        T.TOOL_CALLS, {"n": "once"}, key="once", after="flaky", mode=EffectMode.AT_MOST_ONCE
    ),
    "flaky": asking(T.LLM_CALL, {"n": "flaky"}, key="flaky", after="ask"),
    "ask": asking(T.ASK_USER, {"prompt": "?", "wait_key": "k"}, key="answer", after="hear"),
    "hear": asking(T.WAIT_EVENT, EVENT, key="event", after="rest"),
    "rest": asking(T.WAIT_UNTIL, {"timeout_s": 5}, key="rested", after="split"),
    "split": split,
    "left": asking(T.TOOL_CALLS, {"n": "left"}, key="did.l", after="sub"),
    "right": asking(T.ASK_USER, {"prompt": "?", "wait_key": "r"}, key="did.r", after="sub"),
    "sub": asking(T.START_SUBWORKFLOW, {"workflow_id": "child"}, key="sub", after="tell"),
    "tell": asking(T.EMIT_EVENT, {"name": "end", "scope": "global"}, key="told"),
    "end": ending,
}
SPECS = (
    WorkflowSpec("flow", "begin", NODES),
    single(T.TOOL_CALLS, {"n": "child"}, name="child"),
    single(T.WAIT_EVENT, {"name": "end", "scope": "global"}, name="ear"),
)


@dataclass
class Played:
    """The outcome of the flow.

    Attributes: output: Of the run. ledger: Its records and its child's, without instants. heard:
    The events that the listener got. done: How often each handler was called. doubts: How often an
    operator had to order that an effect in doubt is executed. continued: How often it continued as
    new.
    """

    output: Any = None
    heard: Any = None
    ledger: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    doubts: int = 0
    continued: int = 0

    def handle(self, _run: RunState, effect: Effect) -> EffectOutcome:
        """Count one call of the handler."""
        name = effect.payload["n"]
        self.done[name] += 1
        attempt = effect.payload["params"]["trace_metadata"]["attempt"] if name == "flaky" else 2
        return EffectOutcome.completed(name) if attempt > 1 else EffectOutcome.failed("no luck")


class Play:
    """An execution of the flow on a bed whose hosts may crash."""

    def __init__(self, bed: Bed, app: str, played: Played) -> None:
        self.died, self._bed, self._played = asyncio.Event(), bed, played
        policy = RetryPolicy(backoff_base=0.01)
        handlers = dict.fromkeys((T.TOOL_CALLS, T.LLM_CALL), played.handle)
        flows = Flows(app, SPECS, effect_handlers=handlers, effect_policy=policy)
        self.stage = Stage(bed, flows)

    async def over(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do something; if the host crashes meanwhile, repeat it with the next one."""
        while True:
            doing, dead = (
                asyncio.ensure_future(awaitable) for awaitable in (work(), self.died.wait())
            )
            await asyncio.wait({doing, dead}, return_when=asyncio.FIRST_COMPLETED)
            for task in (doing, dead):
                task.cancel()
            await asyncio.wait({doing, dead})
            if not self.died.is_set():
                return doing.result()
            self.died.clear()
            await self.stage.restart()

    async def answer_wait(self, run_id: RunId, key: str) -> None:
        """Answer a wait. It counts once, whichever host crashes."""

        async def answer() -> None:
            async with asyncio.timeout(LIMIT_S):
                while not await self._is_answered(run_id, key):  # noqa: ASYNC110 - rows
                    await asyncio.sleep(0.5)

        await self.over(answer)

    async def _is_answered(self, run_id: RunId, key: str) -> bool:
        runs = self.stage.runs
        keys = {str(wait.wait_key) for wait in await runs.waits(run_id)}
        for doubt in keys:
            if doubt.startswith("in_doubt:"):
                with suppress(StaleResumeError):  # it was decided, and continues
                    await runs.resume(run_id, doubt, {"execute": True})
                    self._played.doubts += 1
        if key in keys:
            if key.startswith("evt:"):
                await runs.emit("paid", 7, event_id="e", scope="run", run_id=str(run_id))
            else:
                await runs.resume(run_id, key, f"to {key}")
        records = await runs.ledger(run_id)
        ends = [(record["effect"] or {}) for record in records]
        return any(
            effect.get("payload", {}).get("wait_key") == key
            for effect in ends
            if effect.get("type") == "resume"
        )


def plain(record: dict[str, Any]) -> str:
    """Return a record without its times and hashes, and without ids, which derive from the run's."""
    words = ("node_id", "status", "attempt", "effect", "error")
    # A repeated emission finds no wait: its listener has got the event.
    is_timed = record["node_id"] in {"rest", "tell", "end"} or record["status"] == "waiting"
    fields = {name: record[name] for name in words} | {
        "result": None if is_timed else record["result"]
    }
    # A branch is named after the record of its fork: an effect in doubt has two records more.
    fields["branch"] = [
        key.partition(".")[2] for key in (record["delta"] or {}).get("branch") or ()
    ]
    return re.sub("[0-9a-f]{32}", "ID", json.dumps(fields, sort_keys=True))


async def play(bed: Bed, app: str, faults: Faults) -> Played:
    """Run the flow to its end, with a crash at `faults`."""
    played, opened = Played(), bed.open_store
    act = Play(bed, app, played)
    bed.go_wrong(faults, act.died.set)
    await act.stage.restart()
    ear = await act.over(lambda: act.stage.runs.start("ear", id="ear"))
    await act.over(lambda: act.stage.waits(ear))
    run_id = await act.over(lambda: act.stage.runs.start("flow", id="r"))
    for key in ("k", f"evt:run:{run_id}:paid", "r"):
        await act.answer_wait(run_id, key)
    state = await act.over(lambda: act.stage.ended(run_id))
    played.heard = (await act.over(lambda: act.stage.ended(ear))).output["out"]["name"]
    bed.open_store = opened
    await act.stage.restart()
    [child] = await bed.runtime.children(run_id)
    records = without_doubts(await act.stage.runs.ledger(run_id))
    played.ledger = sorted(map(plain, records + await act.stage.runs.ledger(child.run_id)))
    timed = {"rested": None, "told": None, "sub": state.output["sub"]["output"]}
    played.output = state.output | timed | {"event": state.output["event"]["payload"]}
    played.continued = len(await bed.log(run_id, K.RUN_CONTINUED))
    return played


@pytest.mark.item(391, 398, 404, 414, 415, 421, 440, 441)
@pytest.mark.parametrize("manner", [Manner.DIE_BEFORE, Manner.DIE_AFTER])
async def test_a_flow_survives_a_crash_at_each_write(
    bed: Bed, manner: Manner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ledger equals that of an undisturbed run; an at-most-once effect happens at most once."""
    if bed.backend != "memory" or not bed.drops:
        pytest.skip(
            "in memory each call is a place to die, and a replay; system tests kill processes"
        )
    monkeypatch.setattr(graph_run, "ENTRIES_KEPT", 5)
    first = await play(bed, bed.name().type, Faults())
    assert (first.heard, first.doubts, first.continued) == ("end", 0, 3)
    assert first.done == {"pay": 1, "once": 1, "flaky": 2, "left": 1, "child": 1}
    # One crash is before a write, the next one after the write before it: for most writes the same
    # state.
    nth, is_struck, doubts = int(manner is Manner.DIE_AFTER), True, 0
    pace = 1 if IS_SLOW else 2
    while is_struck:
        faults = Faults(nth=nth, manner=manner, wanted=is_a_runs)
        outcome = await play(bed, bed.name().type, faults)

        where = f"died {manner} at call {nth}"
        assert outcome.output == first.output, where
        assert (outcome.heard, outcome.continued) == (first.heard, first.continued), where
        assert outcome.ledger == first.ledger, where
        again = outcome.done - first.done
        assert again.total() <= 1, (where, again)
        assert again["once"] <= outcome.doubts <= 1, where
        doubts += outcome.doubts
        is_struck, nth = faults.struck, nth + pace
    assert nth > 25
    assert doubts >= 1
