"""The address of a run of a flow: the agent ``<app>/<flow>:<id>``."""

from __future__ import annotations

from actors._kernel.runtime.ids import AgentId


def flow_address(app: str, flow: str, id_: str, tenant: str) -> AgentId:
    """Return the agent whose run is this run of a flow.

    Raises:
        InvalidNameError: The app is not a valid name of a type, or flow and id are too long.
    """
    return AgentId(app, flow_key(flow, id_), tenant)


def flow_key(flow: str, id_: str) -> str:
    """Return the key of the agent whose run is this run of a flow."""
    return f"{flow}:{id_}"


def flow_and_id(agent_id: AgentId) -> tuple[str, str]:
    """Return the flow and the id in an agent's address."""
    flow, _, id_ = agent_id.key.partition(":")
    return flow, id_
