"""Which version of an agent's code goes on with a run: the one that it began with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.runtime.registry import version_of

if TYPE_CHECKING:
    from actors.kernel.agent.agent import Agent
    from actors.kernel.runtime.ids import AgentId
    from actors.runtime.registry import Registry


def fitting(
    agents: Registry, agent_id: AgentId, newest: Agent, wanted: str | None
) -> tuple[Agent, str | None]:
    """Return the agent in the version that is wanted, or the newest and why it must not go on."""
    version = version_of(newest)
    if wanted is None or wanted == version:
        return newest, None
    agent = agents.find_version(agent_id, wanted)
    if agent is not None:
        return agent, None
    has = "one without a version" if version is None else f"version {version!r}"
    misfit = (
        f"the run began with version {wanted!r} of {agent_id}, the host that has it serves {has}:"
        " serve the old one too, then resolve the run with --retry"
    )
    return newest, misfit
