"""The agent whose run is a run of a graph."""

from __future__ import annotations

from typing import Any

from actors.kernel.agent.message import Message
from actors.kernel.runtime.ids import AgentId
from actors.kernel.workflow.errors import GraphError
from actors.runtime.context.run_context import RunContext
from actors.workflow.actor.graph_run import GraphRun
from actors.workflow.actor.terms import FlowTerms


class FlowAgent:
    """The agent ``<app>/<flow>:<id>``: it has one run, and that is a run of the flow.

    Args:
        id: The address.
        terms: See `FlowTerms`.
    """

    def __init__(self, id: AgentId, terms: FlowTerms) -> None:  # noqa: A002 - as every agent has it
        self.id, self._terms = id, terms
        self.batch = 1

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Interpret the graph.

        Raises:
            GraphError: The app has no flow of this name, or the message starts none.
            GraphRunFailedError: The graph's run failed.
        """
        flow = self.id.key.partition(":")[0]
        spec = self._terms.specs.get(flow)
        if spec is None:
            raise GraphError(f"flow {flow!r}", f"app {self.id.type!r} has none of this name here")
        given = inbox[0].payload if inbox else None
        return await GraphRun(ctx, self._terms, spec).run(given)
