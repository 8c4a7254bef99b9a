"""The integrations: models, tools and knowledge as the handlers of effects that a driver takes.

Drivers whose handlers are plain functions get an event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from actors._kernel.agent.models import LLMClient
from actors._kernel.agent.tools import ApprovalPolicy, Tool
from actors._kernel.workflow.effects import ASKED, Effect, EffectOutcome, EffectType
from actors._kernel.workflow.run_state import RunState
from actors._workflow.handlers import Handler
from actors._workflow.integrations.knowledge import KnowledgeGraph, KnowledgeHandlers
from actors._workflow.integrations.models import ModelCalls, PromptCache
from actors._workflow.integrations.remote_model import RemoteModel
from actors._workflow.integrations.tools import AgentCalls, RemoteAgent, ToolMode, ToolRuns
from actors.errors import ContractError

T = TypeVar("T")
Models = LLMClient | Mapping[str, LLMClient]
_KG = (EffectType.MEMORY_KG_ASSERT, EffectType.MEMORY_KG_QUERY, EffectType.MEMORY_KG_RESOLVE)


class Integration:
    """The handlers of LLM_CALL, TOOL_CALLS and, with `knowledge`, of MEMORY_KG_*.

    `local_llm`, `remote_llm` and `hybrid_llm` make integrations.

    Attributes:
        effect_handlers: The handlers as coroutine functions, for `Flows`.
        blocking_handlers: The handlers as plain functions, for `WorkflowRuntime`. The calling thread waits.
            Models, tools and stores run on one event loop, which starts with the first call. Close them on that
            loop.
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
        policy = approvals or ApprovalPolicy()
        runs = ToolRuns(tools, tool_mode, policy, agent=agent, timeout_s=timeout_s)
        self.effect_handlers: dict[EffectType, Handler] = {
            EffectType.LLM_CALL: self._models.handle,
            EffectType.TOOL_CALLS: runs.handle,
        }
        if knowledge is not None:
            self.effect_handlers |= dict.fromkeys(_KG, KnowledgeHandlers(knowledge).handle)
        self.blocking_handlers: dict[EffectType, Handler] = {
            kind: self._as_blocking(handler) for kind, handler in self.effect_handlers.items()
        }

    def prompt_cache(self, *, provider: str | None = None, model: str | None = None) -> PromptCache:
        """Return the control of the prompt cache of the model that a call with these names gets.

        Raises:
            GraphError: There is no such model.
        """
        return PromptCache(self._models.client(provider, model), provider)

    def close(self) -> None:
        """Stop the event loop of `blocking_handlers`. The next call starts a new loop."""
        self._loop.close()

    def _as_blocking(self, handler: Handler) -> Handler:
        def handle(run: RunState, effect: Effect) -> EffectOutcome:
            outcome: EffectOutcome = self._loop.run(handler(run, effect))
            if outcome.wait is not None and ASKED in (outcome.wait.details or {}):
                problem = f"{effect.type.value}: only runs on hosts (Flows) ask agents"
                return EffectOutcome.failed(problem, retryable=False)
            return outcome

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
        models: One model for all calls, or several by name; see `ModelCalls`.
        tools: The tools that TOOL_CALLS may call.
        approvals: The policy that decides which calls need an approval; by default calls of HIGH and CRITICAL
            risk.
        knowledge: The graph for MEMORY_KG_*.
    """
    return Integration(models, tools=tools, approvals=approvals, knowledge=knowledge)


def remote_llm(
    remote: RemoteModel | RemoteAgent,
    tools: Sequence[Tool] = (),
    *,
    knowledge: KnowledgeGraph | None = None,
    timeout_s: float | None = None,
) -> Integration:
    """Return an integration whose model is behind a server and whose tool calls a client executes.

    Args:
        remote: The model, or an agent that also executes the tool calls.
        tools: Tools that are described to the model if a payload names them. This process does not execute
            them.
        knowledge: The graph for MEMORY_KG_*.
        timeout_s: Seconds in which a client has to give the results of an effect; None if there is no limit.
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
        tools: The tools that TOOL_CALLS may call.
        approvals: The policy that decides which calls need an approval; by default calls of HIGH and CRITICAL
            risk.
        knowledge: The graph for MEMORY_KG_*.
    """
    return Integration(remote, tools=tools, approvals=approvals, knowledge=knowledge)


class BackgroundLoop:
    """An event loop that starts with the first call and runs until the process ends.

    All calls share the loop, so clients may keep connections between calls.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Execute a coroutine on the loop; return its result. The calling thread waits for it.

        Raises:
            ContractError: The loop's own thread calls, so it would wait for itself forever.
        """
        if threading.current_thread() is self._thread:
            work.close()  # Python warns of a coroutine that nobody awaits
            problem = "a tool drives a run of its own integration. Give it thread=True, or another integration"
            raise ContractError(problem)
        return asyncio.run_coroutine_threadsafe(work, self._running_loop()).result()

    def close(self) -> None:
        """Stop the loop. The next call starts a new loop."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # A daemon: the loop never ends by itself, and the process could not exit.
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="callboard models", daemon=True
                )
                self._thread.start()
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()
