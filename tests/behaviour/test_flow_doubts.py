"""Effects in doubt of flows: reconcile functions, waits for a decision, and crashes at each write of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.waits import Answer
from actors._kernel.workflow.errors import StaleResumeError
from actors._workflow.handlers import EffectHandlers
from actors.errors import EffectDidNotHappen, EffectInDoubtError
from actors.workflow import (
    EffectMode,
    EffectOutcome,
    EffectType,
    Flows,
    ReconciledHandler,
    StepPlan,
    WaitReason,
    WorkflowSpec,
)
from tests.behaviour.bed import LIMIT_S
from tests.behaviour.flow_stage import Stage, asking, ending, single, staged
from tests.behaviour.test_conversation_deaths import is_a_runs
from tests.harness.faulty_store import Faults, Manner

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors._kernel.runtime.ids import RunId
    from actors.workflow import Effect, RunState
    from tests.behaviour.bed import Bed

T = EffectType
ONCE = single(T.TOOL_CALLS, {"order": 7}, mode=EffectMode.AT_MOST_ONCE)


@dataclass
class Payments:
    """A handler whose first calls hang until their host crashes.

    Attributes: hangs: The number of such calls. begun: Set by each call. keys: The keys with which
    its reconcile function was called. calls: How often the handler was called.
    """

    hangs: int = 1
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    keys: list[str] = field(default_factory=list)
    calls: int = 0

    async def pay(self, _run: RunState, _effect: Effect) -> EffectOutcome:
        """Hang, or pay."""
        self.calls += 1
        self.begun.set()
        if self.calls <= self.hangs:
            await asyncio.Event().wait()
        return EffectOutcome.completed(f"paid {self.calls}")

    async def doubted(self, stage: Stage) -> RunId:
        """Return a run whose host crashes during the first call."""
        run_id = await stage.runs.start("flow")
        await self.begun.wait()
        await stage.restart()
        return run_id


def did_not_happen(_run: RunState, _effect: Effect, _key: str) -> Any:
    """Know that the effect did not happen."""
    raise EffectDidNotHappen


def unreachable(_run: RunState, _effect: Effect, _key: str) -> Any:
    """Not find out."""
    raise ConnectionError("the bank is closed")


@pytest.mark.item(441)
@pytest.mark.parametrize(
    ("reconcile", "ends"),
    [
        (lambda *_: EffectOutcome.completed("found"), ("completed", {"out": "found"}, 1)),
        (lambda *_: EffectOutcome.failed("refused"), ("failed", "refused", 1)),
        (did_not_happen, ("completed", {"out": "paid 2"}, 2)),
        (lambda *_: None, ("completed", {"out": "told"}, 1)),
        (unreachable, ("completed", {"out": "told"}, 1)),
        (lambda *_: EffectOutcome.completed(object()), ("completed", {"out": "told"}, 1)),
        (lambda *_: "found", ("completed", {"out": "told"}, 1)),
    ],
    ids=["happened", "failed", "did not happen", "unknown", "raises", "not JSON", "no outcome"],
)
async def test_a_reconcile_function_decides_on_an_effect_in_doubt(
    bed: Bed, reconcile: Callable[..., Any], ends: tuple[str, Any, int]
) -> None:
    """If it does not decide, the run waits, and its prompt has the reason. It is asked once."""
    payments = Payments()

    def look(run: RunState, effect: Effect, key: str) -> Any:
        assert effect.payload == {"order": 7}
        payments.keys.append(key)
        return reconcile(run, effect, key)

    handler = ReconciledHandler(payments.pay, look)
    stage = await staged(bed, ONCE, effect_handlers={T.TOOL_CALLS: handler})
    run_id = await payments.doubted(stage)
    if ends[1] == {"out": "told"}:
        [wait] = await stage.waits(run_id)
        await stage.restart()
        is_named = "the bank is closed" in str(wait.prompt)
        assert is_named is (reconcile is unreachable)
        await stage.runs.resume(run_id, str(wait.wait_key), {"result": "told"})

    state = await stage.ended(run_id)

    assert (state.status.value, payments.calls) == (ends[0], ends[2])
    if ends[0] == "failed":
        assert str(ends[1]) in str(state.error)
    else:
        assert state.output == ends[1]
    records = await stage.runs.ledger(run_id)
    assert payments.keys == [records[1]["idempotency_key"]]


@pytest.mark.item(441)
async def test_a_blocking_reconcile_function_has_a_thread(bed: Bed) -> None:
    """So has its handler."""
    if bed.backend == "memory":
        pytest.skip("virtual time does not wait for threads")
    payments = Payments()
    threads: list[bool] = []

    def look(_run: RunState, _effect: Effect) -> EffectOutcome:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        threads.append(True)
        return EffectOutcome.completed("found")

    handler = ReconciledHandler(payments.pay, look)
    stage = await staged(bed, ONCE, effect_handlers={T.TOOL_CALLS: handler}, blocking=True)

    state = await stage.ended(await payments.doubted(stage))

    assert (state.output, threads) == ({"out": "found"}, [True])


@pytest.mark.item(414, 441)
async def test_a_decision_counts_for_its_doubt_only(bed: Bed) -> None:
    """A host crashes in an effect that was ordered to execute again: the old decision cannot be repeated."""
    payments = Payments(hangs=2)
    stage = await staged(bed, ONCE, effect_handlers={T.TOOL_CALLS: payments.pay})
    run_id = await payments.doubted(stage)
    [first] = await stage.waits(run_id)
    payments.begun.clear()
    await stage.runs.resume(run_id, str(first.wait_key), {"execute": True})
    await payments.begun.wait()
    await stage.restart()
    [second] = await stage.waits(run_id)

    for answers in (stage.runs.resume, stage.runs.answer):
        with pytest.raises(StaleResumeError):
            await answers(run_id, str(first.wait_key), {"execute": True})
    assert payments.calls == 2
    await stage.runs.resume(run_id, str(second.wait_key), {"result": "second"})

    assert (await stage.ended(run_id)).output == {"out": "second"}
    keys = [(wait.details or {})["idempotency_key"] for wait in (first, second)]
    assert keys[0] == keys[1]


@pytest.mark.item(404, 441)
async def test_a_run_in_doubt_can_be_cancelled(bed: Bed) -> None:
    """The effect is not executed again."""
    payments = Payments()
    stage = await staged(bed, ONCE, effect_handlers={T.TOOL_CALLS: payments.pay})
    run_id = await payments.doubted(stage)
    await stage.waits(run_id)
    await stage.runs.cancel(run_id)

    assert (await stage.ended(run_id)).status.value == "cancelled"
    assert payments.calls == 1


@pytest.mark.item(441)
async def test_other_branches_do_not_wait_for_a_decision(bed: Bed) -> None:
    """The branch in doubt waits alone."""
    payments, done = Payments(), asyncio.Event()

    async def work(run: RunState, effect: Effect) -> EffectOutcome:
        if "order" in effect.payload:
            return await payments.pay(run, effect)
        if payments.calls and bed.runtime is not first:
            done.set()
        return EffectOutcome.completed("worked")

    names = {"a": "pay", "b": "wait"}
    nodes = {
        "fork": lambda _run, _ctx: StepPlan("fork", parallel=names, next_node="end"),
        "pay": asking(T.TOOL_CALLS, {"order": 7}, key="pay", mode=EffectMode.AT_MOST_ONCE),
        "wait": asking(T.ASK_USER, {"prompt": "?", "wait_key": "k"}, key="user", after="work"),
        "work": asking(T.TOOL_CALLS, {}, key="work"),
        "end": ending,
    }
    stage = await staged(
        bed, WorkflowSpec("flow", "fork", nodes), effect_handlers={T.TOOL_CALLS: work}
    )
    first = bed.runtime
    run_id = await payments.doubted(stage)
    waits = {wait.reason: str(wait.wait_key) for wait in await stage.waits(run_id, 2)}
    await stage.runs.resume(run_id, waits[WaitReason.USER], "yes")
    await asyncio.wait_for(done.wait(), LIMIT_S)
    await stage.restart()
    await stage.runs.resume(run_id, waits[WaitReason.JOB], {"result": "paid"})

    output = (await stage.ended(run_id)).output

    assert output == {"pay": "paid", "user": "yes", "work": "worked"}
    assert payments.calls == 1


@pytest.mark.item(190, 441)
async def test_a_run_that_an_older_host_parked_is_decided_as_before(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts of earlier releases parked such runs: `Runtime.resolve` still decides."""

    async def refuses(*_: Any) -> Any:
        raise EffectInDoubtError(run_id, "?", "tool_calls")

    payments = Payments()
    stage = await staged(bed, ONCE, effect_handlers={T.TOOL_CALLS: payments.pay})
    run_id = await stage.runs.start("flow")
    await payments.begun.wait()
    with monkeypatch.context() as patch:
        patch.setattr(EffectHandlers, "reconcile_effect_async", refuses)
        await stage.restart()
        parked = await bed.seen(run_id, K.RUN_PARKED)
    assert parked.payload["reason"] == "in_doubt"
    [intent] = await bed.log(run_id, K.EFFECT_INTENT)

    await bed.runtime.resolve(run_id, str(intent.position), action="value", value="told")

    assert (await stage.ended(run_id)).output == {"out": "told"}
    assert payments.calls == 1


@dataclass
class Decided:
    """A run in doubt on hosts that may crash: decided by an operator who asks again until it has ended.

    Attributes: accepted: How many decisions were accepted, of those whose answer came.
    """

    bed: Bed
    stage: Stage
    died: asyncio.Event
    accepted: int = 0

    async def ended(self, run_id: RunId, decision: dict[str, Any]) -> RunState:
        """Return the run once it has ended."""
        async with asyncio.timeout(10 * LIMIT_S):
            while not (await self.bed.row(run_id)).status.is_terminal:
                await self._look(run_id, decision)
                await asyncio.sleep(0.5)
                if self.died.is_set():
                    self.died.clear()
                    await self.stage.restart()
        return await self.stage.ended(run_id)

    async def _look(self, run_id: RunId, decision: dict[str, Any]) -> None:
        looks, dies = (
            asyncio.ensure_future(awaitable)
            for awaitable in (self._decide(run_id, decision), self.died.wait())
        )
        await asyncio.wait({looks, dies}, return_when=asyncio.FIRST_COMPLETED)
        for task in (looks, dies):
            task.cancel()
        await asyncio.wait({looks, dies})
        if not looks.cancelled():
            looks.result()

    async def _decide(self, run_id: RunId, decision: dict[str, Any]) -> None:
        for wait in await self.stage.runs.waits(run_id):
            try:
                await self.stage.runs.resume(run_id, str(wait.wait_key), decision)
            except StaleResumeError:
                continue
            self.accepted += 1


def is_a_decision(*args: object) -> bool:
    """Return whether a call of the store is a commit of a run, or an answer to it."""
    return is_a_runs(*args) or (bool(args) and isinstance(args[0], Answer))


async def doubted(
    bed: Bed, decision: dict[str, Any], faults: Faults
) -> tuple[RunState, Payments, Decided, list[tuple[str, str, int]]]:
    """Play a run in doubt to its end, with a second crash at `faults`."""
    payments, died, opened = Payments(), asyncio.Event(), bed.open_store
    handlers = {T.TOOL_CALLS: payments.pay}
    stage = Stage(bed, Flows(bed.name().type, [ONCE], effect_handlers=handlers))
    await stage.restart()
    run_id = await stage.runs.start("flow")
    await payments.begun.wait()
    bed.go_wrong(faults, died.set)
    await stage.restart()
    decided = Decided(bed, stage, died)
    state = await decided.ended(run_id, decision)
    bed.open_store = opened
    await stage.restart()
    return state, payments, decided, await stage.node_statuses(run_id)


@pytest.mark.item(414, 441)
@pytest.mark.parametrize("manner", [Manner.DIE_BEFORE, Manner.DIE_AFTER])
@pytest.mark.parametrize(
    "decision",
    [{"result": "told"}, {"error": "refused"}, {"execute": True}],
    ids=["result", "error", "execute"],
)
async def test_a_doubt_survives_a_crash_at_each_write(
    bed: Bed, decision: dict[str, Any], manner: Manner
) -> None:
    """It is opened and decided once; the effect executes as often as was ordered, or is in doubt again."""
    if bed.backend != "memory" or not bed.drops:
        pytest.skip("in memory each call is a place to die; a system test kills processes")
    first, payments, _, first_records = await doubted(bed, decision, Faults())
    calls = payments.calls
    assert calls == (2 if "execute" in decision else 1)
    nth, is_struck, again = 0, True, 0
    while is_struck:
        faults = Faults(nth=nth, manner=manner, wanted=is_a_decision)
        state, payments, decided, records = await doubted(bed, decision, faults)

        where = f"died {manner} at call {nth}"
        doubts = sum(status == "waiting" for _, status, _ in records)
        assert (state.status, state.output) == (first.status, first.output) or doubts == 2, where
        assert payments.calls <= calls + (doubts - 1), where
        assert decided.accepted <= doubts, where
        if doubts == 1:
            assert records == first_records, where
        again += doubts == 2
        is_struck, nth = faults.struck, nth + 1
    assert nth > 3
    assert (again > 0) is ("execute" in decision)
