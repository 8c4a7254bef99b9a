"""Random graphs as runs of agents: started, answered and compared with the model, from a second process."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from actors._kernel.runtime.ids import RunId
from actors._kernel.workflow.errors import GraphError, StaleResumeError
from actors._workflow.hosted.flows import Flows
from actors._workflow.hosted.runs import FlowRuns
from actors.workflow import EffectOutcome, EffectType, RetryPolicy, verify_ledger_chain
from tests.behaviour.flow_stage import without_doubts
from tests.model.graphs import ATTEMPTS, Expected, expected
from tests.properties.documents import Written
from tests.properties.graphs import Compiled, decision_of, ear_of, program_of
from tests.properties.test_graph_programs import plain, tell
from tests.properties.visual import Drawn

if TYPE_CHECKING:
    from actors._runtime import Runtime
    from actors.workflow import Effect, RunState
MOST_LOOKS = 2000
"""Seconds after which a run counts as lost."""


@dataclass
class FlowPlay:
    """A program, compiled for an app, and the calls of its handlers.

    Attributes: seed: The program's. timeout_s: Of its timers. look_s: Between two polls of the
    waits of its runs. deaths: Maximum number of crashed hosts. doubts: How often an effect was in
    doubt. The operator knows whether it happened, and decides so.
    """

    seed: int
    timeout_s: float
    look_s: float
    deaths: int = 0
    doubts: int = 0
    executions: list[tuple[str, str, int]] = field(default_factory=list)
    executed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        self.name = f"g{self.seed}"
        self.program = program_of(rng, 2, 4)
        compiler = (Compiled, Written, Drawn)[self.seed % 3]  # a third of them are drawn
        self.compiled = compiler(timeout_s=self.timeout_s)
        self.compiled.graph(self.name, self.program)
        for ear in self.compiled.ears:
            self.compiled.specs[f"ear {ear}"] = ear_of(ear)
        self._rng = rng
        self._children: dict[str, list[RunState]] = {}

    def handle(self, run: RunState, effect: Effect) -> EffectOutcome:
        """Execute an effect, which fails as often as the program specifies."""
        trace = effect.payload["params"]["trace_metadata"]
        attempt = trace["attempt"]
        self.executed.add(trace["effect_idempotency_key"])
        self.executions.append((run.run_id, effect.payload["node"], attempt))
        if attempt <= effect.payload["fails"]:
            return EffectOutcome.failed("no luck")
        return EffectOutcome.completed(effect.payload["value"])

    async def play(self, client: Runtime, app: str) -> list[str]:
        """Start the program, answer all its waits, and return the differences from the model."""
        runs = FlowRuns(client, app)
        ears = [await runs.start(f"ear {name}", id=name) for name in self.compiled.ears]
        for ear in ears:
            while not await runs.waits(ear):  # noqa: ASYNC110 - rows
                await asyncio.sleep(self.look_s)
        main = await runs.start(self.name, vars={"a": 0, "b": 1, "r": {}}, id="main")
        looks, is_restless = 0, self._rng.random() < 0.4
        while not await self._is_over(client, runs, main):
            await asyncio.sleep(self.look_s)
            looks += 1
            if is_restless and looks % 2 and self._rng.random() < 0.7:
                await self._shaken(runs, main)
            if looks > MOST_LOOKS:
                return [await self._describe_progress(client, main)]
        model = expected(self.name, self.program, {}, is_actor=True)
        wrong = await self._compared(runs, await self._look(client, runs, main), model)
        names = dict(zip(self.compiled.ears, ears, strict=True))
        emitters = {str(await client.result(names[name])) for name in model.emitters}
        emitters |= {
            str(state.output) for state in [await runs.state(ear) for ear in ears] if state.output
        }
        return (
            wrong
            if emitters == model.emitters
            else [*wrong, f"heard {emitters}, not {model.emitters}"]
        )

    async def _is_over(self, client: Runtime, runs: FlowRuns, run_id: RunId) -> bool:
        """Answer the waits of a run and of the runs below it; return whether all have ended."""
        row = await client.store.reads.run(run_id)
        assert row is not None
        children = [row_below.run_id for row_below in await client.children(run_id)]
        over = [await self._is_over(client, runs, child) for child in children]
        if row.status.is_terminal:
            return all(over)
        for wait in await runs.waits(run_id):
            if str(wait.wait_key).startswith("in_doubt:"):
                truth = decision_of(wait, self.executed)
                with suppress(StaleResumeError):  # it was decided already, and continues
                    await runs.resume(run_id, str(wait.wait_key), truth)
                    self.doubts += 1
                continue
            if wait.until is None and self._rng.random() < 0.7:
                key = str(wait.wait_key)
                try:
                    await runs.resume(run_id, key, self.compiled.answers[key])
                except StaleResumeError:
                    continue
        return False

    async def _describe_progress(self, client: Runtime, run_id: RunId) -> str:
        """Return the progress of a run and of the runs below it, for error messages."""
        row = await client.store.reads.run(run_id)
        last = [(e.kind, e.position, str(e.payload)[:90]) async for e in client.entries(run_id)][
            -5:
        ]
        below = [
            await self._describe_progress(client, child.run_id)
            for child in await client.children(run_id)
        ]
        where = row and (str(row.agent_id), row.status, row.parked, row.wake)
        return f"does not end: {where} {last} {below}"

    async def _shaken(self, runs: FlowRuns, run_id: RunId) -> None:
        """Pause a run, resume it, or send it a message; it may have ended."""
        try:
            await self._rng.choice([runs.pause_run, runs.resume_run, runs.resume_run])(run_id)
            await runs.steer(run_id, "Be quick")
            await asyncio.sleep(self.look_s)
            await runs.resume_run(run_id)
        except GraphError:
            return

    async def _look(self, client: Runtime, runs: FlowRuns, run_id: RunId) -> RunState:
        """Return a run, and record the parents of the runs below it: an orphan is the root's now."""
        for handle in await client.children(run_id):
            child = await self._look(client, runs, handle.run_id)
            self._children.setdefault(child.parent_run_id or "", []).append(child)
        return await runs.state(run_id)

    async def _compared(self, runs: FlowRuns, state: RunState, model: Expected) -> list[str]:
        run_id = RunId(state.run_id)
        ledger = await runs.ledger(run_id)
        records: dict[tuple[str, ...], list[tuple[str, str, int]]] = {}
        for record in without_doubts(ledger):
            if (record["effect"] or {}).get("type") in {"pause", "unpause", "steer"}:
                continue
            keys = (record["delta"] or {}).get("branch") or ()
            branch = tuple(key.partition(".")[2] for key in keys)
            tell(records, branch, record, self.compiled)
        observed = (state.status.value, plain(state.output), records)
        predicted = (model.status, model.output, model.records)
        wrong = (
            []
            if observed == predicted
            else [f"{model.name}: {observed}\nmodel: {predicted}\n{state.error}"]
        )
        chain = verify_ledger_chain(ledger)
        wrong += [] if chain["ok"] else [f"{model.name}: {chain['errors']}"]
        done = Counter((node, n) for run, node, n in self.executions if run == run_id)
        promised = Counter(model.executions)
        again = done - promised
        too_often = any(n > self.deaths for n in again.values())
        once = sum(n for (node, _), n in again.items() if node in self.compiled.once)
        if promised - done or too_often or once:
            wrong.append(f"{model.name}: executed {done}, not {promised}")
        unmatched_children = [*model.children]
        for child in self._children.get(run_id, ()):
            below = next((c for c in unmatched_children if c.name == child.workflow_id), None)
            if below is None:
                return [*wrong, f"{model.name}: child {child.workflow_id} more than the model has"]
            unmatched_children.remove(below)
            wrong += await self._compared(runs, child, below)
        return wrong + [f"{model.name}: no child {c.name}" for c in unmatched_children]


def flows_of(app: str, plays: list[FlowPlay]) -> Flows:
    """Return an app with the flows of these programs."""
    by_name = {play.name: play for play in plays}

    def handle(run: RunState, effect: Effect) -> EffectOutcome:
        return by_name[run.workflow_id.partition(".")[0].rstrip("s")].handle(run, effect)

    return Flows(
        app,
        [spec for play in plays for spec in play.compiled.specs.values()],
        effect_handlers={EffectType.LLM_CALL: handle},
        effect_policy=RetryPolicy(llm_max_attempts=ATTEMPTS, backoff_base=0.01),
    )
