"""Flows: the graphs of an app, served by a runtime as agents of one type.

The one run of such an agent is a run of a graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Final

from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId
from actors._kernel.workflow.effects import Effect, EffectType
from actors._kernel.workflow.run_state import RunState
from actors._runtime.loop.tasks import in_thread
from actors._runtime.runtime import Runtime
from actors._runtime.verbs.run_context import RunContext
from actors._workflow.handlers import (
    EffectHandlers,
    Handler,
    ReconciledHandler,
    with_three_arguments,
)
from actors._workflow.hosted.flow_address import flow_and_id
from actors._workflow.hosted.graph_run import BUNDLE, SCHEDULED_AT, FlowTerms, GraphRun
from actors._workflow.machine.spec import EffectPolicy, RetryPolicy, WorkflowSpec
from actors._workflow.machine.variables import RuntimeConfig
from actors._workflow.machine.waits import ANSWERED
from actors._workflow.notes.compaction import summarizing
from actors._workflow.notes.effects import MEMORY_EFFECTS, MemoryEffects
from actors.errors import RegistrationError

BUILT_IN: Final = ANSWERED | MEMORY_EFFECTS | {EffectType.EMIT_EVENT, EffectType.START_SUBWORKFLOW}
"""Effects that need no handler of the host."""


class Flows:
    """The graphs of an app.

    A run of a graph is the run of an agent ``<app>/<flow>:<id>``, on any host of the app.

    Args:
        app: The type of the agents, the same for all flows.
        flows: The graphs.
        effect_handlers: The host's functions by type of effect. They may be coroutine functions. Plain
            functions are called on the event loop, as nodes are, unless `blocking` is true.
        blocking: Call each plain handler in a thread, so that a blocking handler does not stop other runs. If
            the run is cancelled, the thread runs to its end and its result is dropped.
        effect_policy: The number of attempts of effects; by default three for model calls, two for tool calls.
        config: Limits of new runs.
        artifact_store: The store of artifacts. Nodes read it as `ctx.artifacts`, and the memory effects use it.
        chat_summarizer: The function that makes summaries for MEMORY_COMPACT. It may be a coroutine function.
            If None, the handler of LLM_CALL makes them. See `summarizing`.
        agents: Types of agents by the names that START_SUBWORKFLOW asks for: a run of such an agent, with the
            vars as its payload, takes the place of a graph's.

    Raises:
        RegistrationError: Two graphs, or a graph and an agent, have one name, a name has a colon, or a flow
            document has an effect for which there is no handler.
    """

    def __init__(  # noqa: PLR0913 - the parts of an app
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
        agents: Mapping[str, str] | None = None,
    ) -> None:
        self.app = app
        specs: dict[str, WorkflowSpec] = {}
        functions = dict(effect_handlers or {})
        summarizer = None if chat_summarizer is None else summarizing(chat_summarizer)
        if blocking:
            functions = {kind: _thread_handler(handler) for kind, handler in functions.items()}
            summarizer = summarizer and _thread_handler(summarizer)
        handlers = EffectHandlers(functions)
        for spec in flows:
            _check(spec, specs)
            specs[spec.workflow_id] = spec
        self._terms = FlowTerms(
            specs=specs,
            handlers=handlers,
            policy=effect_policy or RetryPolicy(),
            config=config or RuntimeConfig(),
            artifacts=artifact_store,
            agents=dict(agents or {}),
            memory=MemoryEffects(
                store=lambda: artifact_store, handlers=handlers, summarizer=summarizer
            ),
        )
        if shared_names := sorted(self._terms.agents.keys() & specs.keys()):
            raise RegistrationError(
                f"{shared_names[0]!r} is a flow and an agent. Remove one of them"
            )
        for spec in specs.values():
            _check_effects(spec, self._terms)

    @property
    def specs(self) -> Mapping[str, WorkflowSpec]:
        """The graphs by name."""
        return self._terms.specs

    @property
    def effect_policy(self) -> EffectPolicy:
        """The policy that decides the number of attempts of effects."""
        return self._terms.policy

    @property
    def artifact_store(self) -> Any:
        """The store of the app's artifacts, or None if it has none."""
        return self._terms.artifacts

    async def register(self, runtime: Runtime) -> None:
        """Register the app's agent type at a runtime, which then executes runs of these graphs.

        Raises:
            RegistrationError: The app is not a valid name of a type.
        """
        await runtime.register_type(self.app, self._agent)

    def agent(self, agent_id: AgentId, bundle: str) -> FlowAgent:
        """Return the agent of a run of one of these graphs.

        `bundle` is the hash of the bundle that has all of them.
        """
        return FlowAgent(agent_id, self._terms, bundle)

    def _agent(self, agent_id: AgentId) -> FlowAgent:
        return FlowAgent(agent_id, self._terms)


def _thread_handler(handler: Handler) -> Handler:
    """Return a handler that calls this handler in a thread. A coroutine function is returned as it is."""
    if inspect.iscoroutinefunction(handler):
        return handler
    if isinstance(handler, ReconciledHandler):
        return ReconciledHandler(
            _thread_handler(handler.handler), _thread_handler(handler.reconcile)
        )
    call = with_three_arguments(handler)

    async def in_a_thread(run: RunState, effect: Effect, next_node: str | None) -> Any:
        answer = await in_thread(call, run, effect, next_node)
        return await answer if inspect.isawaitable(answer) else answer

    return in_a_thread


def _check(spec: WorkflowSpec, specs: Mapping[str, WorkflowSpec]) -> None:
    name = spec.workflow_id
    if ":" in name:
        raise RegistrationError(
            f"flow {name!r}: its name has a colon, which separates name and id. Rename it"
        )
    if name in specs:
        raise RegistrationError(f"two flows are named {name!r}. Give one of them another name")


def _check_effects(spec: WorkflowSpec, terms: FlowTerms) -> None:
    for name, node in spec.nodes.items():
        effect = getattr(node, "effect", None)  # only nodes of flow documents have this attribute
        if effect is None or effect in terms.handlers:
            continue
        prefix = f"flow {spec.workflow_id!r}: node {name!r} has effect {effect}, which"
        if effect not in BUILT_IN:
            remedy = f"Pass effect_handlers={{EffectType.{effect.name}: …}} to Flows"
            raise RegistrationError(f"{prefix} has no handler. {remedy}")
        if missing_parameter := terms.memory.missing_parameter(effect):
            raise RegistrationError(
                f"{prefix} needs {missing_parameter}. Pass {missing_parameter}=… to Flows"
            )


class FlowAgent:
    """The agent ``<app>/<flow>:<id>``. It has one run, which is a run of the flow.

    The agent of a schedule has one run for each tick. The runs execute one after the other.

    Attributes:
        retention: The retention of runs that a schedule starts. It is the same for runs that `FlowRuns` starts.
        unfit: The reason why this host cannot execute the agent's runs: it does not serve the flow. The runs
            are parked until a host serves it.
        version: The version of the flow. A run keeps the version that it began with, even when it continues as
            new.

    Args:
        id: The address.
        terms: The parts that the runs of the app share.
        bundle: The hash of the bundle that contains the flow, or None if it is in none. A run that began with
            another bundle is parked.
    """

    id: AgentId
    version: str | None
    keeps_version: bool

    retention = HistoryRetention.PERMANENT

    def __init__(self, id: AgentId, terms: FlowTerms, bundle: str | None = None) -> None:  # noqa: A002 - the name in every agent class
        self.id, self._terms, self._bundle = id, terms, bundle
        self.batch = 1
        self._flow, _ = flow_and_id(id)
        spec = terms.specs.get(self._flow)
        self.version, self.keeps_version = None if spec is None else spec.version, True
        self.unfit: str | None = None
        if spec is None:
            # Documents are named ``id@version``: the reason names the versions that the host has.
            flow = self._flow.partition("@")[0]
            versions = sorted(name for name in terms.specs if name.partition("@")[0] == flow)
            only = f", only {', '.join(map(repr, versions))}" if versions else ""
            self.unfit = (
                f"app {id.type!r} has no flow {self._flow!r} on this host{only}: give it to Flows"
            )

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Interpret the graph.

        Raises:
            GraphError: The message is not a start message.
            GraphRunFailedError: The graph's run failed.
        """
        payload = inbox[0].payload if inbox else None
        tick = inbox[0].metadata.get(SCHEDULED_AT) if inbox else None
        if tick is not None and isinstance(payload, dict):
            payload = {**payload, SCHEDULED_AT: tick}
        if self._bundle is not None and isinstance(payload, dict):
            payload = {**payload, BUNDLE: self._bundle}
        return await GraphRun(ctx, self._terms, self._terms.specs[self._flow]).run(payload)
