"""The sub-graphs of a run that is an agent's run: child runs of the same app."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from actors.errors import (
    BudgetExhaustedError,
    ContractError,
    NonDeterminismError,
    UnknownRunError,
    WaitCycleError,
)
from actors.kernel.agent.agent import HistoryRetention, Supervision
from actors.kernel.workflow.effects import EffectOutcome, RunStatus
from actors.kernel.workflow.errors import GraphError
from actors.kernel.workflow.run_state import RunState
from actors.runtime.verbs.run_context import RunContext
from actors.workflow.actor.flow_address import flow_key
from actors.workflow.machine.deltas import OpenStep
from actors.workflow.machine.spec import WorkflowSpec
from actors.workflow.machine.starting import child_id, child_vars
from actors.workflow.machine.waits import waiting_for

_ERROR: Final = "message"
_TERMS: Final = Supervision(run_id="-", root_id="-", retention=HistoryRetention.PERMANENT)
"""Supervision of sub-graphs. The child runs of a sub-graph are not cancelled when it ends."""


class SubGraphs:
    """The effect START_SUBWORKFLOW.

    Args:
        ctx: The context of the run.
        specs: The graphs of the app by name.
        agents: Types of agents by the names of graphs. Their runs get the vars as payload.
    """

    def __init__(
        self, ctx: RunContext, specs: Mapping[str, WorkflowSpec], agents: Mapping[str, str]
    ) -> None:
        self._ctx, self._specs, self._agents = ctx, specs, agents

    async def begun(self, run: RunState, opened: OpenStep) -> EffectOutcome:
        """Start a sub-graph; return the wait for its end, or its id if the run does not wait."""
        payload, name = opened.effect.payload, str(opened.effect.payload.get("workflow_id") or "")
        agent = self._agents.get(name)
        id_ = str(payload.get("run_id") or child_id(run, opened))
        try:
            variables = child_vars(run, payload)
            boot: Any = payload.get("vars") or {}
            key = id_
            if agent is None:
                key = flow_key(self._spec_of(name).workflow_id, id_)
                boot = {
                    "vars": variables,
                    "actor_id": run.actor_id,
                    "session_id": payload.get("session_id") or run.session_id,
                    "parent_run_id": run.run_id,
                }
            child = await self._ctx.spawn(
                agent or self._ctx.agent_id.type, boot, key=key, supervision=_TERMS
            )
        except NonDeterminismError:
            raise
        except (BudgetExhaustedError, ContractError, GraphError) as exc:
            return EffectOutcome.failed(str(exc), retryable=False)
        is_async = bool(payload.get("async"))
        if is_async and not payload.get("wait"):
            return EffectOutcome.completed({"sub_run_id": child.run_id, "async": True})
        more = ({"async": True} if is_async else {}) | ({"agent": agent} if agent else {})
        return waiting_for(name, child.run_id, more)

    async def ended(self, run_id: str) -> RunState | None:
        """Wait for the end of a sub-graph; return its terminal state.

        None: the sub-graph's run does not exist any more.
        """
        try:
            result = await self._ctx.join(run_id)
        except UnknownRunError:
            return None
        except WaitCycleError as exc:
            return RunState(run_id, "", RunStatus.FAILED, "", error=str(exc))
        status = RunStatus(result.status.value.lower())
        error = str((result.error or {}).get(_ERROR) or status.value)
        return RunState(run_id, "", status, "", output=result.output, error=error)

    def _spec_of(self, name: str) -> WorkflowSpec:
        if not name:
            raise GraphError("start_subworkflow", "it needs payload.workflow_id")
        spec = self._specs.get(name)
        if spec is None:
            raise GraphError("start_subworkflow", f"graph {name!r} was not found in the app")
        return spec
