"""Flows: the graphs of an app, served by a runtime as agents of one type."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Final

from actors.errors import RegistrationError
from actors.kernel.runtime.ids import AgentId
from actors.kernel.workflow.effects import Effect, EffectType
from actors.kernel.workflow.run_state import RunState
from actors.runtime.loop.threads import in_thread
from actors.runtime.runtime import Runtime
from actors.workflow.actor.agent import FlowAgent
from actors.workflow.actor.terms import FlowTerms
from actors.workflow.handlers import EffectHandlers, Handler, fitted
from actors.workflow.machine.limits import RuntimeConfig
from actors.workflow.machine.policy import EffectPolicy, RetryPolicy
from actors.workflow.machine.requests import ANSWERED
from actors.workflow.machine.spec import WorkflowSpec
from actors.workflow.memory.compaction import summarizing
from actors.workflow.memory.effects import MEMORY_EFFECTS, MemoryEffects

BUILT_IN: Final = ANSWERED | MEMORY_EFFECTS | {EffectType.EMIT_EVENT, EffectType.START_SUBWORKFLOW}
"""Effects that need no handler of the host."""


class Flows:
    """The graphs of an app. A run of one is the run of an agent ``<app>/<flow>:<id>``, on any host of the app.

    Args:
        app: The type of the agents: one for all flows.
        flows: The graphs.
        effect_handlers: Functions of the host by type of effect; they may be coroutine functions. Plain
            ones run on the event loop, as nodes do, unless they are `blocking`.
        blocking: Call plain handlers in a thread each: they may block, and other runs go on. The thread of a
            run that is cancelled goes on, and what it returns is dropped.
        effect_policy: How often effects are tried; None: calls of models three times, tools twice.
        config: Limits of new runs.
        artifact_store: For nodes, as `ctx.artifacts`, and for memory.
        chat_summarizer: Makes summaries for MEMORY_COMPACT, as a handler would: it may be a coroutine function.
            None: the handler of LLM_CALL does. See `summarizing`.

    Raises:
        RegistrationError: Two graphs have one name, a name has a colon, or a flow document has an effect for
            which there is no handler.
    """

    def __init__(
        self,
        app: str,
        flows: Iterable[WorkflowSpec],
        *,
        effect_handlers: Mapping[EffectType, Handler] | None = None,
        blocking: bool = False,
        effect_policy: EffectPolicy | None = None,
        config: RuntimeConfig | None = None,
        artifact_store: Any = None,
        chat_summarizer: Any = None,
    ) -> None:
        self.app = app
        specs: dict[str, WorkflowSpec] = {}
        given = dict(effect_handlers or {})
        summarizer = None if chat_summarizer is None else summarizing(chat_summarizer)
        if blocking:
            given = {kind: _threaded(handler) for kind, handler in given.items()}
            summarizer = summarizer and _threaded(summarizer)
        handlers = EffectHandlers(given)
        for one in flows:
            _check(one, specs)
            specs[one.workflow_id] = one
        self._terms = FlowTerms(
            specs=specs,
            handlers=handlers,
            policy=effect_policy or RetryPolicy(),
            config=config or RuntimeConfig(),
            artifacts=artifact_store,
            memory=MemoryEffects(
                store=lambda: artifact_store, handlers=handlers, summarizer=summarizer
            ),
        )
        for one in specs.values():
            _check_effects(one, self._terms)

    @property
    def specs(self) -> Mapping[str, WorkflowSpec]:
        """The graphs by name."""
        return self._terms.specs

    @property
    def effect_policy(self) -> EffectPolicy:
        """The policy of how often effects are tried."""
        return self._terms.policy

    @property
    def artifact_store(self) -> Any:
        """The store of the app's artifacts; None: it has none."""
        return self._terms.artifacts

    async def register(self, runtime: Runtime) -> None:
        """Let a runtime execute runs of these graphs.

        Raises:
            RegistrationError: The app is no name of a type.
        """
        await runtime.register_type(self.app, self._agent)

    def agent(self, agent_id: AgentId, bundle: str) -> FlowAgent:
        """Return the agent whose run is a run of one of these graphs, all of a bundle of this hash."""
        return FlowAgent(agent_id, self._terms, bundle)

    def _agent(self, agent_id: AgentId) -> FlowAgent:
        return FlowAgent(agent_id, self._terms)


def _threaded(handler: Handler) -> Handler:
    """Return a handler that calls this one in a thread; coroutine functions stay on the loop."""
    if inspect.iscoroutinefunction(handler):
        return handler
    call = fitted(handler)

    async def in_a_thread(run: RunState, effect: Effect, next_node: str | None) -> Any:
        answer = await in_thread(call, run, effect, next_node)
        return await answer if inspect.isawaitable(answer) else answer

    return in_a_thread


def _check(spec: WorkflowSpec, known: Mapping[str, WorkflowSpec]) -> None:
    name = spec.workflow_id
    if ":" in name:
        raise RegistrationError(f"flow {name!r}: a colon ends its name in ids. Choose another one")
    if name in known:
        raise RegistrationError(f"two flows are named {name!r}. Give one of them another name")


def _check_effects(spec: WorkflowSpec, terms: FlowTerms) -> None:
    for name, node in spec.nodes.items():
        effect = getattr(node, "effect", None)  # nodes of flow documents say it
        if effect is None or effect in terms.handlers:
            continue
        where = f"flow {spec.workflow_id!r}: node {name!r} has effect {effect}, which"
        if effect not in BUILT_IN:
            remedy = f"Pass effect_handlers={{EffectType.{effect.name}: …}} to Flows"
            raise RegistrationError(f"{where} has no handler. {remedy}")
        if lacking := terms.memory.lacks(effect):
            raise RegistrationError(f"{where} needs {lacking}. Pass {lacking}=… to Flows")
