"""The agents this host can execute: single ones, and whole types made on first message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.errors import RegistrationError
from actors.kernel.runtime.ids import check_name
from actors.kernel.runtime.store import Serves

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.kernel.agent.agent import Agent
    from actors.kernel.runtime.ids import AgentId


class Registry:
    """Agents by id, factories by type. A type is one or the other."""

    def __init__(self) -> None:
        self._agents: dict[AgentId, Agent] = {}
        self._factories: dict[str, Callable[[AgentId], Agent]] = {}

    def add(self, agent: Agent) -> None:
        """Serve one agent; another object with the same id replaces the first for new executions.

        Raises:
            RegistrationError: Its type is registered with a factory, or `run` is missing.
        """
        if not callable(getattr(agent, "run", None)):
            name = type(agent).__name__
            msg = f"{name} is not an agent: it needs `id` and `async def run(self, ctx, inbox)`"
            raise RegistrationError(msg)
        if agent.id.type in self._factories:
            msg = (
                f"agent {agent.id}: type {agent.id.type!r} is registered with register_type already"
            )
            raise RegistrationError(msg)
        self._agents[agent.id] = agent

    def add_type(self, type_: str, factory: Callable[[AgentId], Agent]) -> None:
        """Serve every key of a type; `factory` makes the agent when its first message comes.

        Raises:
            RegistrationError: Single agents of this type are registered.
        """
        check_name("agent type", type_)
        if any(agent_id.type == type_ for agent_id in self._agents):
            msg = f"type {type_!r} has single agents: use register or register_type, not both"
            raise RegistrationError(msg)
        self._factories[type_] = factory

    def find(self, agent_id: AgentId) -> Agent | None:
        """Return the agent, or None when this host does not serve it."""
        agent = self._agents.get(agent_id)
        if agent is None and (factory := self._factories.get(agent_id.type)):
            agent = factory(agent_id)
        return agent

    def is_served(self, agent_id: AgentId) -> bool:
        """Whether `find` would return an agent."""
        return agent_id in self._agents or agent_id.type in self._factories

    def serves(self) -> Serves:
        """Return everything this host can execute."""
        return Serves(tuple(sorted(self._factories)), tuple(sorted(self._agents)))
