"""An agent that executes LLM_CALL, and TOOL_CALLS, for runs of graphs on hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from actors.errors import ContractError
from actors.kernel.agent.tools import Tool
from actors.kernel.basics import is_length
from actors.kernel.runtime.ids import AgentId
from actors.kernel.workflow.effects import (
    ASKED,
    MODEL,
    Effect,
    EffectOutcome,
    WaitReason,
    WaitState,
)
from actors.kernel.workflow.errors import GraphError
from actors.kernel.workflow.run_state import RunState
from actors.workflow.integrations.calls import effect_place
from actors.workflow.integrations.chat_payload import check_no_login, messages_of, options_of


class RemoteAgent:
    """An agent that runs of graphs on hosts ask, as `RunContext.ask` does: durably, once for each effect.

    The question is an object: ``effect`` (``llm_call`` or ``tool_calls``), its ``payload``, and the ``run``.

    Args:
        agent: Its id; its tenant is that of the run that asks. A type: each effect has an agent of its own, so
            that calls do not wait for each other.
        timeout_s: Seconds for an answer.

    Raises:
        ContractError: The type is no name, or the time is not above 0.
    """

    def __init__(self, agent: AgentId | str, *, timeout_s: float = 600.0) -> None:
        if not is_length(timeout_s) or timeout_s <= 0:
            said = str(timeout_s)[:40]
            raise ContractError(f"RemoteAgent: timeout_s={said} is no time in seconds above 0")
        found = agent if isinstance(agent, AgentId) else AgentId(agent, "-")
        self._type, self._timeout_s = found.type, timeout_s
        self._key = agent.key if isinstance(agent, AgentId) else None

    def asked(self, run: RunState) -> dict[str, Any]:
        """Return what the details of a wait for its answer have."""
        key = self._key or effect_place(run)
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
        """Return the wait for the answer. What cannot be sent fails without another attempt."""
        payload = effect.payload
        try:
            check_no_login(payload)
            messages_of(payload)
            specs = options_of(payload, self._tools).tools
        except ContractError as exc:
            return EffectOutcome.failed(str(exc), retryable=False)
        told = payload | ({"tools": [one.model_dump() for one in specs]} if specs else {})
        details = {"mode": MODEL, "payload": told} | self._agent.asked(run)
        key = f"llm:{effect_place(run)}"
        return EffectOutcome.waiting(WaitState(WaitReason.JOB, wait_key=key, details=details))

    def client(self, provider: Any = None, model: Any = None) -> NoReturn:
        """Refuse: the models are those of the agent.

        Raises:
            GraphError: Always.
        """
        del provider, model
        raise GraphError("llm_call", "an agent is asked: this process has no client of a model")
