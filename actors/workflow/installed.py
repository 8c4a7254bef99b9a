"""Installed flows, served by a host: a bundle is loaded when a run of it begins here."""

from __future__ import annotations

from typing import Any, Final

from actors.errors import ContractError
from actors.kernel.agent.message import Message
from actors.kernel.agent.supervision import HistoryRetention
from actors.kernel.runtime.ids import AgentId
from actors.kernel.workflow.errors import FlowMissingError
from actors.runtime.context.run_context import RunContext
from actors.runtime.runtime import Runtime
from actors.workflow.actor.agent import FlowAgent
from actors.workflow.actor.flow_address import flow_and_id
from actors.workflow.actor.flows import Flows
from actors.workflow.bundles import INSTALLED_APP, BundleRecord, StoredBundles

MOST_KEPT: Final = 64
"""So many bundles that no run executes are kept loaded by a host."""


class InstalledFlows:
    """Installed flows of all tenants, as the app ``installed``.

    A run is looked up by its flow's name each time that it begins to execute here: one read. Its bundle is
    loaded by its hash, and kept for the next runs. A run whose flow is not installed, needs a handler that is
    not here, or began with other content, is parked by name.

    Args:
        terms: See `Flows`: handlers, policies, limits and stores of all of them.
    """

    def __init__(self, **terms: Any) -> None:
        self._terms = terms
        self._kept: dict[str, Flows] = {}
        self._runtime: Runtime | None = None

    async def register(self, runtime: Runtime) -> None:
        """Let a runtime execute runs of installed flows."""
        self._runtime = runtime
        await runtime.register_type(INSTALLED_APP, self._agent)

    def _agent(self, agent_id: AgentId) -> InstalledFlowAgent:
        return InstalledFlowAgent(agent_id, self)

    async def agent_of(self, agent_id: AgentId) -> FlowAgent:
        """Return the agent of a run, with the flows of its bundle.

        Raises:
            FlowMissingError: It is not installed, or cannot be executed here.
        """
        assert self._runtime is not None
        flow, store = flow_and_id(agent_id)[0], self._runtime.store
        bundles = StoredBundles(store.flow_bundles, store.artifacts, agent_id.tenant)
        found = await bundles.find_flow(flow)
        if found is None:
            raise FlowMissingError("", flow, "it is not installed")
        record, _ = found
        kept = self._kept.pop(record.hash, None)
        if kept is None:
            try:
                kept = await self._loaded(bundles, record)
            except ContractError as exc:
                raise FlowMissingError("", flow, str(exc)) from exc
        self._kept[record.hash] = kept
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return kept.agent(agent_id, record.hash)

    async def _loaded(self, bundles: StoredBundles, record: BundleRecord) -> Flows:
        bundle = await bundles.load(record)
        return Flows(INSTALLED_APP, bundle.drawn_specs(), **self._terms)


class InstalledFlowAgent:
    """The agent ``installed/<flow>:<id>``. See `FlowAgent`.

    Args:
        id: The address.
        flows: Loads its bundle.
    """

    retention = HistoryRetention.PERMANENT

    def __init__(self, id: AgentId, flows: InstalledFlows) -> None:  # noqa: A002 - as every agent has it
        self.id, self._flows = id, flows
        self.batch = 1

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Interpret the graph. See `FlowAgent.run`.

        Raises:
            FlowMissingError: The flow is not installed, or cannot be executed here; the run is parked.
        """
        agent = await self._flows.agent_of(self.id)
        return await agent.run(ctx, inbox)


async def serve(runtime: Runtime) -> None:
    """Serve installed flows that need no handlers: `callboard host actors.workflow.installed:serve`."""
    await InstalledFlows().register(runtime)
