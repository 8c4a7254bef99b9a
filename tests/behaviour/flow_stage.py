"""An app of flows on a bed. Its runs are started, answered and read as by another process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from actors._workflow.hosted.flows import Flows
from actors._workflow.hosted.runs import FlowRuns
from actors._workflow.machine.variables import NAMESPACES
from actors.workflow import (
    Effect,
    EffectOutcome,
    EffectType,
    StepPlan,
    WorkflowSpec,
    verify_ledger_chain,
)
from tests.behaviour.bed import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors._kernel.runtime.ids import RunId
    from actors.workflow import RunState, WaitState
    from tests.behaviour.bed import Bed


@dataclass
class Stage:
    """The flows of one app on a bed.

    Attributes: bed: The bed that runs them. flows: The app. runs: The API that starts and reads
    runs.
    """

    bed: Bed
    flows: Flows
    runs: FlowRuns = field(init=False)

    def __post_init__(self) -> None:
        self.runs = FlowRuns(self.bed.runtime, self.flows.app)

    async def restart(self) -> None:
        """Crash the host, and start another one that serves the same flows."""
        await self.bed.restart()
        await self.flows.register(self.bed.runtime)
        self.runs = FlowRuns(self.bed.runtime, self.flows.app, tenant=self.runs.tenant)

    async def waits(self, run_id: RunId, count: int = 1) -> list[WaitState]:
        """Return the run's external waits as soon as there are this many."""
        async with asyncio.timeout(LIMIT_S):
            while len(waits := await self.runs.waits(run_id)) < count:  # noqa: ASYNC110 - rows
                await asyncio.sleep(0.01)
        return waits

    async def ended(self, run_id: RunId) -> RunState:
        """Return a run as read from its log once it has ended; the chain of its records must be complete."""
        await self.bed.ended(run_id)
        chain = verify_ledger_chain(await self.runs.ledger(run_id))
        assert chain["ok"], chain["errors"]
        return await self.runs.state(run_id)

    async def node_statuses(self, run_id: RunId) -> list[tuple[str, str, int]]:
        """Return node, status and attempt of a run's records, except those of its start and completion."""
        records = await self.runs.ledger(run_id)
        return [
            (record["node_id"], record["status"], record["attempt"]) for record in records[1:-2]
        ]

    async def play(self, flow: str, **more: Any) -> RunState:
        """Run a flow, and return the run once it has ended."""
        return await self.ended(await self.runs.start(flow, **more))


async def staged(bed: Bed, *specs: WorkflowSpec, **more: Any) -> Stage:
    """Yield the stage of an app of these flows, which the bed's host serves."""
    flows = Flows(bed.name().type, specs, **more)
    await flows.register(bed.runtime)
    return Stage(bed, flows)


def asking(
    kind: EffectType,
    payload: dict[str, Any],
    *,
    key: str | None = "out",
    after: str | None = "end",
    **more: Any,
) -> Callable[[RunState, Any], StepPlan]:
    """Return a node that requests an effect, then continues at `after`."""
    return lambda run, _ctx: StepPlan(
        run.current_node, Effect(kind, dict(payload), key, **more), next_node=after
    )


def ending(run: RunState, _ctx: Any) -> StepPlan:
    """Return an end node; its output is what the flow put into the vars."""
    public = {name: value for name, value in run.vars.items() if name not in NAMESPACES}
    return StepPlan(run.current_node, complete_output=public)


def single(
    kind: EffectType, payload: dict[str, Any], *, name: str = "flow", **more: Any
) -> WorkflowSpec:
    """Return a flow of one effect and an end node."""
    return WorkflowSpec(name, "work", {"work": asking(kind, payload, **more), "end": ending})


def completing(result: Any = None) -> Callable[..., EffectOutcome]:
    """Return a handler that returns this value."""
    return lambda _run, _effect: EffectOutcome.completed(result)


def without_doubts(ledger: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a ledger as if no effect had been in doubt, for decisions that are true.

    The records of waits for decisions are left out. A decision to execute the effect is left out,
    too, and so is the start that follows; another decision stays, as the end of its effect.
    """
    records: list[dict[str, Any]] = []
    ordered: list[str] = []
    for record in ledger:
        effect = record["effect"] or {}
        if is_doubt(record):
            continue
        if str((effect.get("payload") or {}).get("wait_key")).startswith("in_doubt:"):
            if "then" in record["delta"]:
                ordered.append(record["delta"]["then"]["key"])
                continue
        elif record["status"] == "started" and record["idempotency_key"] in ordered:
            ordered.remove(record["idempotency_key"])
            continue
        records.append(record)
    return records


def is_doubt(record: dict[str, Any]) -> bool:
    """Return whether a record says that its run waits for a decision on an effect in doubt."""
    result = record["result"] if isinstance(record["result"], dict) else {}
    return ((result.get("wait") or {}).get("details") or {}).get("mode") == "in_doubt"
