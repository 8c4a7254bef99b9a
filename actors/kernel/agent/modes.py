"""Agents of several modes: each run is executed by the one of its mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from actors.kernel.agent.agent import Agent
    from actors.kernel.runtime.ids import AgentId

MODE_KEY: Final = "mode"
"""The key of a message's metadata that names the mode of the run that it starts."""
PARENT_NODE_KEY: Final = "parent_node"
"""The key of a message's metadata that names the node of the session that its run goes on from."""
DEFAULT_MODE: Final = "normal"


@runtime_checkable
class ModalAgent(Protocol):
    """An agent that is a session: `of_mode` chooses the agent whose code and attributes a run has.

    Its conversation has the name of its key. Starts and ends of its runs are facts of the session.
    """

    @property
    def id(self) -> AgentId:
        """The session's address; its key is the session's id."""

    def of_mode(self, mode: str) -> Agent:
        """Return the agent of a mode.

        Raises:
            ContractError: There is no such mode.
        """
