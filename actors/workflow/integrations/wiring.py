"""Integrations: models, tools and knowledge as the handlers of effects that a driver takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actors.kernel.agent.llm import LLMClient
from actors.kernel.agent.tools import ApprovalPolicy, Tool
from actors.kernel.workflow.effects import Effect, EffectOutcome, EffectType
from actors.kernel.workflow.run_state import RunState
from actors.kernel.workflow.tool_waits import ASKED
from actors.workflow.handlers import Handler
from actors.workflow.integrations.background_loop import BackgroundLoop
from actors.workflow.integrations.knowledge import KnowledgeGraph, KnowledgeHandlers
from actors.workflow.integrations.model_calls import ModelCalls
from actors.workflow.integrations.prompt_cache import PromptCache
from actors.workflow.integrations.remote_agent import AgentCalls, RemoteAgent
from actors.workflow.integrations.remote_model import RemoteModel
from actors.workflow.integrations.tool_runs import ToolMode, ToolRuns

Models = LLMClient | Mapping[str, LLMClient]
_KG = (EffectType.MEMORY_KG_ASSERT, EffectType.MEMORY_KG_QUERY, EffectType.MEMORY_KG_RESOLVE)


class Integration:
    """Handlers of LLM_CALL, TOOL_CALLS and, with `knowledge`, of MEMORY_KG_*.

    Made by `local_llm`, `remote_llm` or `hybrid_llm`.

    Attributes:
        effect_handlers: Coroutine functions, for `Flows`.
        blocking_handlers: The same as plain functions, for `WorkflowRuntime`: the calling thread waits. Models,
            tools and stores run on one event loop, which starts with the first call; close them there.
    """

    def __init__(
        self,
        models: Models | RemoteAgent,
        *,
        tools: Sequence[Tool] = (),
        tool_mode: ToolMode = "executed",
        approvals: ApprovalPolicy | None = None,
        knowledge: KnowledgeGraph | None = None,
        timeout_s: float | None = None,
    ) -> None:
        agent = models if isinstance(models, RemoteAgent) else None
        self._models: ModelCalls | AgentCalls = (
            AgentCalls(models, tools)
            if isinstance(models, RemoteAgent)
            else ModelCalls(models, tools)
        )
        self._loop = BackgroundLoop()
        allowing = approvals or ApprovalPolicy()
        runs = ToolRuns(tools, tool_mode, allowing, agent=agent, timeout_s=timeout_s)
        self.effect_handlers: dict[EffectType, Handler] = {
            EffectType.LLM_CALL: self._models.handle,
            EffectType.TOOL_CALLS: runs.handle,
        }
        if knowledge is not None:
            self.effect_handlers |= dict.fromkeys(_KG, KnowledgeHandlers(knowledge).handle)
        self.blocking_handlers: dict[EffectType, Handler] = {
            kind: self._blocking(one) for kind, one in self.effect_handlers.items()
        }

    def prompt_cache(self, *, provider: str | None = None, model: str | None = None) -> PromptCache:
        """Return the control of the prompt cache of the model that such a call gets.

        Raises:
            GraphError: There is no such model.
        """
        return PromptCache(self._models.client(provider, model), provider)

    def close(self) -> None:
        """Stop the event loop of `blocking_handlers`; the next call starts it again."""
        self._loop.close()

    def _blocking(self, handler: Handler) -> Handler:
        def handle(run: RunState, effect: Effect) -> EffectOutcome:
            found: EffectOutcome = self._loop.run(handler(run, effect))
            if found.wait is not None and ASKED in (found.wait.details or {}):
                problem = f"{effect.type.value}: only runs on hosts (Flows) ask agents"
                return EffectOutcome.failed(problem, retryable=False)
            return found

        return handle


def local_llm(
    models: Models,
    tools: Sequence[Tool] = (),
    *,
    approvals: ApprovalPolicy | None = None,
    knowledge: KnowledgeGraph | None = None,
) -> Integration:
    """Return an integration whose models and tools are in this process.

    Args:
        models: One for all calls, or several by name; see `ModelCalls`.
        tools: What TOOL_CALLS may call.
        approvals: Which calls wait for a person; None: those of HIGH and CRITICAL risk.
        knowledge: For MEMORY_KG_*.
    """
    return Integration(models, tools=tools, approvals=approvals, knowledge=knowledge)


def remote_llm(
    remote: RemoteModel | RemoteAgent,
    tools: Sequence[Tool] = (),
    *,
    knowledge: KnowledgeGraph | None = None,
    timeout_s: float | None = None,
) -> Integration:
    """Return an integration whose model is behind a server, and whose calls of tools are left to a client.

    Args:
        remote: The model, or an agent, which executes the calls of tools, too.
        tools: Described to the model where a payload names them; they are not executed here.
        knowledge: For MEMORY_KG_*.
        timeout_s: Seconds that a client has for the results of an effect; None: any time.
    """
    return Integration(
        remote, tools=tools, tool_mode="passthrough", knowledge=knowledge, timeout_s=timeout_s
    )


def hybrid_llm(
    remote: RemoteModel | RemoteAgent,
    tools: Sequence[Tool],
    *,
    approvals: ApprovalPolicy | None = None,
    knowledge: KnowledgeGraph | None = None,
) -> Integration:
    """Return an integration whose model is behind a server, and whose tools are in this process.

    Args:
        remote: The model, or an agent.
        tools: What TOOL_CALLS may call.
        approvals: See `local_llm`.
        knowledge: For MEMORY_KG_*.
    """
    return Integration(remote, tools=tools, approvals=approvals, knowledge=knowledge)
