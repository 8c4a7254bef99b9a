"""The agent of a session. It has an agent for each mode, one conversation, and one run at a time."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

from actors.context.history import StoreHistory
from actors.errors import ContractError, RegistrationError
from actors.kernel.agent.agent import DEFAULT_MODE, Agent, HistoryRetention
from actors.kernel.agent.message import Message
from actors.kernel.runtime.ids import AgentId
from actors.kernel.runtime.scheduler import RetryPolicy
from actors.sessions.errors import UnknownModeError


class SessionAgent:
    """An agent whose runs are executed by the agent of their mode. See `ModalAgent`.

    Args:
        id: The address. Its key is the session's id.
        modes: The agents by mode. Their model, tools, hooks and context are used. Their own ids are ignored.
        version: The version of the code of all modes. It is recorded with each run.
        retry: The retry policy of runs for which the caller gives none.

    Raises:
        RegistrationError: There is no mode, or the agent of a mode does not keep its conversation permanently
            in the runtime's store.
    """

    def __init__(
        self,
        id: AgentId,  # noqa: A002 - the name in every agent class
        modes: Mapping[str, Agent],
        *,
        version: str | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.id, self.version, self.retry = id, version, retry
        self.modes = MappingProxyType(dict(modes))
        if not self.modes:
            raise RegistrationError(
                f"session {id} has no mode. Give an agent for mode {DEFAULT_MODE!r}"
            )
        for mode, agent in self.modes.items():
            _check_keeps(mode, agent)

    def of_id(self, agent_id: AgentId) -> Self:
        """Return the same agent for another session. A factory of the agent's type calls it."""
        return type(self)(agent_id, self.modes, version=self.version, retry=self.retry)

    def of_mode(self, mode: str) -> Agent:
        """Return the agent of a mode.

        Raises:
            UnknownModeError: There is no such mode.
        """
        agent = self.modes.get(mode)
        if agent is None:
            raise UnknownModeError(mode, ", ".join(self.modes))
        return agent

    async def run(self, ctx: Any, inbox: list[Message]) -> Any:
        """Raise an error.

        A runtime calls the agent of the run's mode instead, with that agent's tools and model.

        Raises:
            ContractError: Always.
        """
        raise ContractError(
            f"session {self.id} was called as an agent. Register it with a runtime instead"
        )


def _check_keeps(mode: str, agent: Agent) -> None:
    """Check that the turns of an agent are nodes of a session.

    Raises:
        RegistrationError: The agent has a history of its own, or its turns are deleted with their run.
    """
    context: Any = getattr(agent, "context", None)
    history = getattr(context, "history", None)
    retention = getattr(context, "retention", None)
    if history is not None and not isinstance(history, StoreHistory):
        problem = f"keeps its conversation in a {type(history).__name__}"
    elif retention not in (None, HistoryRetention.PERMANENT):
        problem = f"keeps its turns with retention {retention}"
    else:
        return
    remedy = "the nodes of a session are turns of the runtime's own store: use a permanent StoreHistory()"
    raise RegistrationError(f"the agent of mode {mode!r} {problem}; {remedy}")
