"""The agent whose run is a run of a graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from actors.kernel.agent.agent import HistoryRetention
from actors.kernel.agent.message import Message
from actors.kernel.runtime.ids import AgentId
from actors.runtime.verbs.run_context import RunContext
from actors.workflow.actor.flow_address import flow_and_id
from actors.workflow.actor.graph_run import BUNDLE, SCHEDULED_AT, GraphRun
from actors.workflow.actor.terms import FlowTerms


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
        terms: See `FlowTerms`.
        bundle: The hash of the bundle that contains the flow. None: the flow is in no bundle. A run that began
            with another bundle is parked.
    """

    retention = HistoryRetention.PERMANENT

    def __init__(self, id: AgentId, terms: FlowTerms, bundle: str | None = None) -> None:  # noqa: A002 - the name in every agent class
        self.id, self._terms, self._bundle = id, terms, bundle
        self.batch = 1
        self._flow, _ = flow_and_id(id)
        spec = terms.specs.get(self._flow)
        self.version, self.keeps_version = None if spec is None else spec.version, True
        self.unfit: str | None = None
        if spec is None:
            has = ", ".join(map(repr, _versions(self._flow, terms.specs)))
            there = f", only {has}" if has else ""
            self.unfit = (
                f"app {id.type!r} has no flow {self._flow!r} on this host{there}: give it to Flows"
            )

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Interpret the graph.

        Raises:
            GraphError: The message is not a start message.
            GraphRunFailedError: The graph's run failed.
        """
        given = inbox[0].payload if inbox else None
        tick = inbox[0].metadata.get(SCHEDULED_AT) if inbox else None
        if tick is not None and isinstance(given, dict):
            given = {**given, SCHEDULED_AT: tick}
        if self._bundle is not None and isinstance(given, dict):
            given = {**given, BUNDLE: self._bundle}
        return await GraphRun(ctx, self._terms, self._terms.specs[self._flow]).run(given)


def _versions(flow: str, names: Iterable[str]) -> list[str]:
    """Return the names that have the flow's id and differ in the version only.

    Documents are named ``id@version``.
    """
    return sorted(name for name in names if name.partition("@")[0] == flow.partition("@")[0])
