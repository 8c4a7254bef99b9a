"""The installed flows, served by a host. The host loads a bundle when a run of it begins there."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId
from actors._kernel.workflow.errors import FlowMissingError
from actors._runtime.runtime import Runtime
from actors._runtime.verbs.run_context import RunContext
from actors._workflow.bundles import INSTALLED_APP, StoredBundles
from actors._workflow.bundles.stored import graphs_of
from actors._workflow.hosted.flow_address import flow_and_id
from actors._workflow.hosted.flows import FlowAgent, Flows
from actors.errors import ContractError

MOST_KEPT: Final = 64
"""Maximum number of loaded bundles that a host keeps for later runs."""


class InstalledFlows:
    """Installed flows of all tenants, as the app ``installed``.

    Each time a run begins to execute here, the host looks up its flow by name, with one read of the store. It
    loads the flow's bundle by hash and keeps it for later runs. A run is parked if its flow is not installed,
    needs a handler that the host lacks, or if the run began with other content.

    Args:
        terms: Arguments of `Flows`: handlers, policies, limits and stores for all installed flows.
    """

    def __init__(self, **terms: Any) -> None:
        self._terms = terms
        self._flows_by_hash: dict[str, Flows] = {}
        self._loading = asyncio.Lock()
        self._runtime: Runtime | None = None

    async def register(self, runtime: Runtime) -> None:
        """Register the app `installed` at a runtime, which then executes runs of installed flows."""
        self._runtime = runtime
        await runtime.register_type(INSTALLED_APP, self._agent)

    def _agent(self, agent_id: AgentId) -> InstalledFlowAgent:
        return InstalledFlowAgent(agent_id, self)

    async def agent_of(self, agent_id: AgentId) -> FlowAgent:
        """Return the agent of a run, with the flows of its bundle.

        Raises:
            FlowMissingError: The flow is not installed, or this host cannot execute it.
        """
        assert self._runtime is not None
        flow, store = flow_and_id(agent_id)[0], self._runtime.store
        bundles = StoredBundles(store.data.flow_bundles, store.data.artifacts, agent_id.tenant)
        match = await bundles.find_flow(flow)
        if match is None:
            raise FlowMissingError("", flow, "it is not installed")
        record, _ = match
        async with self._loading:  # runs that begin together load their bundle once
            # Removed and added again, so that the dict has the order of last use: its first item is dropped.
            flows = self._flows_by_hash.pop(record.hash, None)
            if flows is None:
                try:
                    graphs = await graphs_of(bundles, record)
                    flows = Flows(INSTALLED_APP, graphs.values(), **self._terms)
                except ContractError as exc:
                    raise FlowMissingError("", flow, str(exc)) from exc
            self._flows_by_hash[record.hash] = flows
        if len(self._flows_by_hash) > MOST_KEPT:
            del self._flows_by_hash[next(iter(self._flows_by_hash))]
        return flows.agent(agent_id, record.hash)


class InstalledFlowAgent:
    """The agent ``installed/<flow>:<id>``. It has one run, which is a run of the installed flow.

    Args:
        id: The address.
        flows: The installed flows, which load the agent's bundle.
    """

    retention = HistoryRetention.PERMANENT

    def __init__(self, id: AgentId, flows: InstalledFlows) -> None:  # noqa: A002 - the name in every agent class
        self.id, self._flows = id, flows
        self.batch = 1

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Load the flow's bundle and interpret the graph.

        Raises:
            FlowMissingError: The flow is not installed, or this host cannot execute it. The run is parked.
        """
        agent = await self._flows.agent_of(self.id)
        return await agent.run(ctx, inbox)


async def serve(runtime: Runtime) -> None:
    """Serve installed flows that need no handlers: `callboard host actors.workflow.installed:serve`."""
    await InstalledFlows().register(runtime)
