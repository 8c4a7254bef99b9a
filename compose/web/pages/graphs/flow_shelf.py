"""Flows with what pages show of them, made once for each: facts of nodes, hash, and layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from actors.workflow.actor.flows import Flows
from actors.workflow.machine.policy import EffectPolicy, RetryPolicy
from actors.workflow.machine.spec import WorkflowSpec
from compose.web.pages.graphs.drawing import Edge, GraphLayout, layout_of
from compose.web.pages.graphs.node_facts import NodeFacts, facts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFlow:
    """A flow.

    Attributes:
        spec: The graph.
        hash: Of it.
        nodes: Facts of its nodes, the entry first.
        edges: The moves that the code of nodes names.
        layout: None: it has no drawing.
    """

    spec: WorkflowSpec
    hash: str
    nodes: tuple[NodeFacts, ...]
    edges: frozenset[Edge]
    layout: GraphLayout | None


MOST_INSTALLED: Final = 64
"""So many installed flows are kept with their drawings."""


class FlowShelf:
    """Shown flows of this process: those that it serves, and the installed ones that were shown last."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], ShownFlow] = {}
        self._installed: dict[str, ShownFlow] = {}

    def shown(self, app: Flows, flow: str) -> ShownFlow | None:
        """Return a flow of an app; None: the app has it no more."""
        spec = app.specs.get(flow)
        if spec is None:
            return None
        known = self._kept.get((app.app, flow))
        if known is None or known.spec is not spec:
            known = self._kept[app.app, flow] = shown_flow(spec, app.effect_policy)
        return known

    def installed(self, spec: WorkflowSpec) -> ShownFlow:
        """Return an installed flow."""
        known = self._installed.pop(spec.workflow_id, None)
        if known is None or known.spec is not spec:
            known = shown_flow(spec, RetryPolicy())
        self._installed[spec.workflow_id] = known
        if len(self._installed) > MOST_INSTALLED:
            del self._installed[next(iter(self._installed))]
        return known


def shown_flow(spec: WorkflowSpec, policy: EffectPolicy) -> ShownFlow:
    """Return a flow with its layout; `policy` says how often effects are tried."""
    nodes = sorted(facts_of(spec, policy), key=lambda one: one.name != spec.entry_node)
    edges = [(one.name, target) for one in nodes for target in one.goes_to]
    layout = layout_of([one.name for one in nodes], edges)
    return ShownFlow(
        spec=spec, hash=spec.hash, nodes=tuple(nodes), edges=frozenset(edges), layout=layout
    )
