"""Summaries that one host writes ahead: after an answer, while no caller waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from actors.context.calls import preparing
from actors.errors import ActorsError
from actors.kernel.agent.agent import Agent, HistoryRetention
from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.run_store import RunStore
from actors.runtime.context.conversation.sessions import SessionTerms
from actors.runtime.context.conversation.windows import prepare_window
from actors.runtime.loop.tasks import TaskScope
from actors.runtime.registry import Registry

_log = logging.getLogger("callboard.context")

MAX_AT_ONCE: Final = 2
"""Agents of a host whose summaries are written at the same time; calls of runs are not among them."""
MAX_AGENTS: Final = 256
"""Agents of a host whose summaries are written or wait for a slot, a further one's being left out; and as many,
the newest, whose answers are remembered until they are idle."""


class Preparation:
    """Makes the next windows of sessions in which an answer is out, so that their summaries are ready.

    Nothing is written to the store. A strategy keeps a summary in this process until a call uses it. That
    call records it, with its cost, and writes the cut.

    Args:
        store: The store of blocks, and of turns if an agent brings no history.
        agents: The agents that this host serves.
    """

    def __init__(self, store: RunStore, agents: Registry) -> None:
        self._store, self._agents = store, agents
        self._scopes: dict[AgentId, TaskScope] = {}
        self._given_up: list[TaskScope] = []
        self._answered: dict[AgentId, tuple[Agent, dict[str, None]]] = {}
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)

    def __len__(self) -> int:
        """Return for how many agents something is prepared now."""
        return len(self._scopes)

    def note(self, agent: Agent, sessions: Iterable[str]) -> None:
        """Remember sessions in which an answer is out, until the agent has nothing to do."""
        named = dict.fromkeys(sessions)
        memory = SessionTerms.of(agent) if named else None
        if memory is None or memory.retention is not HistoryRetention.PERMANENT:
            return
        if preparing(memory.pipeline):
            _, earlier = self._answered.pop(agent.id, (agent, {}))
            self._answered[agent.id] = (agent, earlier | named)
        if len(self._answered) > MAX_AGENTS:
            del self._answered[next(iter(self._answered))]

    def begin(self, agent_id: AgentId) -> None:
        """Prepare the next windows of what is remembered for an agent, in the background."""
        agent, sessions = self._answered.pop(agent_id, (None, {}))
        if agent is None or len(self._scopes) >= MAX_AGENTS:
            return
        self.give_up(agent_id)
        scope = self._scopes[agent_id] = TaskScope()
        work = self._prepare(agent, SessionTerms.of(agent), tuple(sessions), scope)
        scope.start(work, name=f"prepare summaries of {agent_id}")

    def give_up(self, agent_id: AgentId) -> None:
        """Cancel what is prepared for an agent: it has something else to do."""
        scope = self._scopes.pop(agent_id, None)
        if scope is not None:
            scope.cancel()
            self._given_up = [one for one in (*self._given_up, scope) if len(one)]

    def cancel(self) -> None:
        """Give up everything, without waiting."""
        self._answered.clear()
        for agent_id in tuple(self._scopes):
            self.give_up(agent_id)

    async def close(self) -> None:
        """Give up everything and return when it has stopped."""
        self.cancel()
        for scope in self._given_up:
            await scope.close()

    async def _prepare(
        self, agent: Agent, memory: SessionTerms, sessions: tuple[str, ...], scope: TaskScope
    ) -> None:
        try:
            if not self._is_used_again(agent, memory):
                _log.warning(
                    "no summary is prepared: the agent's next run has other strategies; let its factory"
                    " give all agents one context",
                    extra={"agent": str(agent.id)},
                )
                return
            async with self._slots:
                for session in sessions:
                    await self._prepare_session(agent, memory, session)
        finally:
            if self._scopes.get(agent.id) is scope:
                del self._scopes[agent.id]

    def _is_used_again(self, agent: Agent, memory: SessionTerms) -> bool:
        """Return True if the agent's next run has the strategies that would use the summaries."""
        found = self._agents.find(agent.id)
        known = preparing(memory.pipeline)
        return found is not None and preparing(SessionTerms.of(found).pipeline) == known

    async def _prepare_session(self, agent: Agent, memory: SessionTerms, session: str) -> None:
        try:
            await prepare_window(agent, memory, self._store, session)
        except ActorsError as exc:
            facts = {"agent": str(agent.id), "session": session}
            _log.warning("a summary could not be prepared", extra=facts, exc_info=exc)
