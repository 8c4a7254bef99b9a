"""Cache of flows for pages: facts of nodes, hash and layout, computed once per flow, in a thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from actors.runtime.loop.tasks import in_thread
from actors.workflow.hosted.flows import Flows
from actors.workflow.machine.spec import EffectPolicy, RetryPolicy, WorkflowSpec
from compose.web.pages.graphs.drawing import Edge, GraphLayout, layout_of
from compose.web.pages.graphs.node_facts import NodeFacts, facts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFlow:
    """A flow in the form that pages show.

    Attributes:
        spec: The graph.
        hash: The graph's hash.
        nodes: Facts of the graph's nodes, the entry node first.
        edges: The moves that the code of nodes names.
        layout: The layout; None if the flow is not drawn.
    """

    spec: WorkflowSpec
    hash: str
    nodes: tuple[NodeFacts, ...]
    edges: frozenset[Edge]
    layout: GraphLayout | None


MOST_INSTALLED: Final = 64
"""Maximum number of installed flows that are kept with their drawings."""


class FlowShelf:
    """The shown flows of this process: the served flows, and the most recently shown installed flows."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], ShownFlow] = {}
        self._installed: dict[str, ShownFlow] = {}

    async def shown(self, app: Flows, flow: str) -> ShownFlow | None:
        """Return a flow of an app; None if the app no longer has it."""
        spec = app.specs.get(flow)
        if spec is None:
            return None
        known = self._kept.get((app.app, flow))
        if known is None or known.spec is not spec:
            known = await in_thread(shown_flow, spec, app.effect_policy)
            self._kept[app.app, flow] = known
        return known

    async def installed(self, spec: WorkflowSpec) -> ShownFlow:
        """Return an installed flow."""
        known = self._installed.pop(spec.workflow_id, None)
        if known is None or known.spec is not spec:
            known = await in_thread(shown_flow, spec, RetryPolicy())
        self._installed[spec.workflow_id] = known
        if len(self._installed) > MOST_INSTALLED:
            del self._installed[next(iter(self._installed))]
        return known


def shown_flow(spec: WorkflowSpec, policy: EffectPolicy) -> ShownFlow:
    """Return a flow with its layout. `policy` gives the number of attempts of effects."""
    nodes = sorted(facts_of(spec, policy), key=lambda one: one.name != spec.entry_node)
    edges = [(one.name, target) for one in nodes for target in one.goes_to]
    layout = layout_of([one.name for one in nodes], edges)
    return ShownFlow(
        spec=spec, hash=spec.hash, nodes=tuple(nodes), edges=frozenset(edges), layout=layout
    )
