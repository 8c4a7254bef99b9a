"""The effect TOOL_CALLS: calls of the host's tools, with approvals, or calls that others execute.

For runs of graphs on hosts an agent may execute LLM_CALL, and TOOL_CALLS.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NoReturn, TypeAlias

from actors._kernel.agent.tools import ApprovalPolicy, InvocationResult, Tool, ToolCall, check_tools
from actors._kernel.basics import is_length
from actors._kernel.json_data import clean_text
from actors._kernel.runtime.effects import EffectMode
from actors._kernel.runtime.ids import AgentId, derive_id
from actors._kernel.workflow.effects import (
    APPROVAL,
    ASKED,
    DECISIONS,
    EXECUTE,
    MODEL,
    PASSTHROUGH,
    Effect,
    EffectOutcome,
    WaitReason,
    WaitState,
)
from actors._kernel.workflow.errors import GraphError
from actors._kernel.workflow.run_state import RunState
from actors._runtime.verbs.model_calls import DirectToolInvoker
from actors._workflow.integrations.chat_payload import (
    calls_in,
    check_no_login,
    effect_id,
    messages_of,
    options_of,
    storage_problem,
)
from actors._workflow.machine.waits import deadline_of
from actors.errors import ContractError

ToolMode: TypeAlias = Literal["executed", "passthrough"]


class ToolRuns:
    """The handler of TOOL_CALLS.

    Args:
        tools: The tools that may be called.
        mode: ``executed``: this process executes the tools. ``passthrough``: the run waits for a client's
            results. A payload may also set ``mode`` to ``passthrough``.
        approvals: The policy that decides which calls need an approval.
        agent: The agent that is asked for results in the mode ``passthrough``; None if a client gives them.
        timeout_s: Seconds in which a client has to give results, unless a payload sets another limit; None if
            there is no limit.

    Raises:
        ContractError: Two tools have one name.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        mode: ToolMode,
        approvals: ApprovalPolicy,
        *,
        agent: RemoteAgent | None = None,
        timeout_s: float | None = None,
    ) -> None:
        check_tools(tools, "of the integration")
        self.tools = tuple(tools)
        self._by_name = {tool.name: tool for tool in tools}
        self._mode, self._approvals, self._agent = mode, approvals, agent
        self._timeout_s = timeout_s

    async def handle(self, run: RunState, effect: Effect) -> EffectOutcome:
        """Return results in the order of the calls, or a wait.

        A call that fails gives a result with an error; the effect does not fail.
        """
        payload = effect.payload
        if not isinstance(payload.get("tool_calls"), list):
            problem = "tool_calls needs payload.tool_calls, a list"
            return EffectOutcome.failed(problem, retryable=False)
        calls = calls_in(payload["tool_calls"])
        if calls and PASSTHROUGH in {self._mode, payload.get("mode")}:
            try:
                return EffectOutcome.waiting(self._wait_for_results(run, payload, calls))
            except GraphError as exc:
                return EffectOutcome.failed(str(exc), retryable=False)
        allowed_tools, decisions = payload.get("allowed_tools"), payload.get(DECISIONS)
        for call in calls:
            refusal = self._problem(call, allowed_tools)
            if refusal is not None:
                call["error"] = refusal
        calls_to_approve = [c for c in calls if "error" not in c and self._asks_for(c)]
        if decisions is None and calls_to_approve:
            return EffectOutcome.waiting(self._approval(run, effect, calls, calls_to_approve))
        rows = [await self._row(run, c, decisions or {}) for c in calls]
        return EffectOutcome.completed({"mode": "executed", "results": rows})

    def _wait_for_results(
        self, run: RunState, payload: dict[str, Any], calls: list[dict[str, Any]]
    ) -> WaitState:
        key, details = f"tools:{effect_id(run)}", {"mode": PASSTHROUGH, "tool_calls": calls}
        if self._agent is not None and payload.get("mode") != PASSTHROUGH:
            agent_details = details | self._agent.asked(run)
            return WaitState(WaitReason.JOB, wait_key=key, details=agent_details)
        until = deadline_of({"timeout_s": self._timeout_s, **payload}, run.updated_at)
        return WaitState(WaitReason.JOB, wait_key=key, until=until, details=details)

    def _problem(self, call: dict[str, Any], allowed_tools: Any) -> str | None:
        """Return the reason why a call is not executed, or None if it may be executed."""
        name = call["name"]
        if "error" in call:
            return str(call["error"])
        if name not in self._by_name:
            tool_names = ", ".join(sorted(self._by_name)) or "none"
            return f"there is no tool {name!r}. There are: {tool_names}"[:500]
        is_allowed = not isinstance(allowed_tools, list) or name in allowed_tools
        return None if is_allowed else f"tool {name!r} is not allowed in this step"

    def _asks_for(self, call: dict[str, Any]) -> bool:
        return self._approvals.asks_for(self._by_name[call["name"]])

    def _approval(
        self,
        run: RunState,
        effect: Effect,
        calls: list[dict[str, Any]],
        calls_to_approve: list[dict[str, Any]],
    ) -> WaitState:
        names = [c["name"] for c in calls if "error" not in c]
        is_safe = all(self._by_name[name].idempotent for name in names)
        # A tool that is not idempotent must not be called again if the process dies during the approved call.
        mode = effect.mode if is_safe else EffectMode.AT_MOST_ONCE
        risks = {c["call_id"]: self._by_name[c["name"]].risk.value for c in calls_to_approve}
        seconds, until_iso = self._approvals.timeout_s, None
        if seconds is not None:
            updated_at = datetime.fromisoformat(run.updated_at)
            until_iso = (updated_at + timedelta(seconds=seconds)).isoformat()
        tool_names = ", ".join(sorted({c["name"] for c in calls_to_approve}))
        return WaitState(
            WaitReason.USER,
            wait_key=f"approval:{effect_id(run)}",
            until=until_iso,
            prompt=f"Allow the calls of tools: {tool_names}?",
            choices=["approve", "deny"],
            allow_free_text=False,
            details={"mode": APPROVAL, "tool_calls": calls, "risks": risks, EXECUTE: mode.value},
        )

    async def _row(
        self, run: RunState, call: dict[str, Any], decisions: dict[str, Any]
    ) -> dict[str, Any]:
        row = {"call_id": call["call_id"], "name": call["name"], "success": False, "output": None}
        if "error" in call:
            return row | {"error": call["error"]}
        decision = decisions.get(call["call_id"])
        is_denied = decision is not None and decision.get("approved") is not True
        if is_denied or (decision is None and self._asks_for(call)):
            reason = (decision or {}).get("reason")
            error = f"denied: {reason}" if reason else "denied"
            return row | {"status": "denied", "error": error}
        result = await self._invoke(run, call)
        if result.status != "ok":
            return row | {"error": clean_text(result.text)}
        output = result.text if result.structured is None and result.text else result.structured
        if (problem := storage_problem(output)) is not None:
            return row | {"error": f"the output cannot be kept: {problem}"}
        return row | {"success": True, "output": output, "error": None}

    async def _invoke(self, run: RunState, call: dict[str, Any]) -> InvocationResult:
        key, tool_call = (
            derive_id(effect_id(run), call["call_id"]),
            ToolCall(id=call["call_id"], name=call["name"], arguments=call["arguments"]),
        )
        tools = [self._by_name[call["name"]]]
        try:
            return await DirectToolInvoker().invoke(tool_call, tools=tools, idempotency_key=key)
        except Exception as exc:  # noqa: BLE001 - a tool's exception is a result for the model
            return InvocationResult(status="error", text=f"{type(exc).__name__}: {exc}")


class RemoteAgent:
    """An agent that runs of graphs on hosts ask, as `RunContext.ask` does: durably, once for each effect.

    The question is an object: ``effect`` (``llm_call`` or ``tool_calls``), its ``payload``, and the ``run``.

    Args:
        agent: The agent's id; its tenant is that of the run that asks. If it is a type, each effect has an
            agent of its own, so that calls do not wait for each other.
        timeout_s: Seconds for an answer.

    Raises:
        ContractError: The type is no name, or the time is not above 0.
    """

    def __init__(self, agent: AgentId | str, *, timeout_s: float = 600.0) -> None:
        if not is_length(timeout_s) or timeout_s <= 0:
            value_text = str(timeout_s)[:40]
            raise ContractError(
                f"RemoteAgent: timeout_s={value_text} is no time in seconds above 0"
            )
        agent_id = agent if isinstance(agent, AgentId) else AgentId(agent, "-")
        self._type, self._timeout_s = agent_id.type, timeout_s
        self._key = agent.key if isinstance(agent, AgentId) else None

    def asked(self, run: RunState) -> dict[str, Any]:
        """Return the entry for this agent in the details of a wait for its answer."""
        key = self._key or effect_id(run)
        return {ASKED: {"type": self._type, "key": key, "timeout_s": self._timeout_s}}


class AgentCalls:
    """The handler of LLM_CALL that leaves calls to an agent.

    Args:
        agent: The agent.
        tools: The tools that a payload may name; the agent gets their descriptions.
    """

    def __init__(self, agent: RemoteAgent, tools: Sequence[Tool]) -> None:
        self._agent, self._tools = agent, tools

    async def handle(self, run: RunState, effect: Effect) -> EffectOutcome:
        """Return the wait for the answer. A payload that cannot be sent fails without another attempt."""
        payload = effect.payload
        try:
            check_no_login(payload)
            messages_of(payload)  # called for its checks only: the agent gets the payload as it is
            specs = options_of(payload, self._tools).tools
        except ContractError as exc:
            return EffectOutcome.failed(str(exc), retryable=False)
        full_payload = payload | ({"tools": [spec.model_dump() for spec in specs]} if specs else {})
        details = {"mode": MODEL, "payload": full_payload} | self._agent.asked(run)
        key = f"llm:{effect_id(run)}"
        return EffectOutcome.waiting(WaitState(WaitReason.JOB, wait_key=key, details=details))

    def client(self, provider: Any = None, model: Any = None) -> NoReturn:
        """Refuse: the models are those of the agent.

        Raises:
            GraphError: Always.
        """
        del provider, model
        raise GraphError("llm_call", "an agent is asked: this process has no client of a model")
