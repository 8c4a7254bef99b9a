"""The agent of a session: it has an agent for each mode, one conversation, and one run at a time.

A callback of the program decides approvals, for the requests of a run and of the runs below it. Resources of
the agents are models, tools and hooks; they can be closed.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Self, TypeAlias

from actors._context.history import StoreHistory
from actors._kernel.agent.agent import DEFAULT_MODE, Agent, HistoryRetention
from actors._kernel.agent.message import Message
from actors._kernel.runtime.communication import ApprovalRequest
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RetryPolicy
from actors._runtime.loop.tasks import TaskScope, in_thread
from actors._runtime.runtime import Runtime
from actors._sessions.errors import UnknownModeError
from actors.errors import ContractError, RegistrationError, UnknownApprovalError


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

    id: AgentId
    version: str | None
    retry: RetryPolicy | None

    def __init__(
        self,
        id: AgentId,  # noqa: A002 - the name in every agent class
        modes: Mapping[str, Agent],
        *,
        version: str | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.id, self.version, self.retry = id, version, retry
        self.modes: Mapping[str, Agent] = MappingProxyType(dict(modes))
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


OnApproval: TypeAlias = Callable[[ApprovalRequest], Awaitable[bool | None] | bool | None]
"""Function that decides a request, or returns None to leave the request to another client.

A plain function is called in a thread, so it may ask at a terminal.
"""

BY: Final = "callback"
_log = logging.getLogger("callboard.sessions")


class Approving:
    """Watcher of runs that decides their approvals.

    A run makes a request during its execution, so a queued run has none.

    Args:
        runtime: The runtime of the runs.
        decide: The callback, called once per request. If it raises, the request stays open.
        tasks: The scope of the watching tasks, which end with it.
    """

    def __init__(self, runtime: Runtime, decide: OnApproval, tasks: TaskScope) -> None:
        self._runtime, self._decide, self._tasks = runtime, decide, tasks
        self._watched: set[RunId] = set()

    def watch(self, run_id: RunId) -> None:
        """Decide the requests of a run and of the runs that it spawns, until it has ended."""
        if run_id not in self._watched:
            self._watched.add(run_id)
            self._tasks.start(self._watch(run_id), name=f"approvals of {run_id}")

    async def _watch(self, run_id: RunId) -> None:
        try:
            async for entry in self._runtime.tail(run_id):
                payload: dict[str, Any] = entry.payload
                if entry.kind == EntryKind.CHILD_SPAWNED:
                    self.watch(RunId(payload["child"]))
                elif entry.kind == EntryKind.ASK_SENT and payload["target"] == "person":
                    name = f"approval {payload['message_id']}"
                    self._tasks.start(self._answer(run_id, payload["message_id"]), name=name)
        finally:
            self._watched.discard(run_id)

    async def _answer(self, run_id: RunId, id_: str) -> None:
        open_requests = await self._runtime.approvals.open(run_id=run_id)
        request = next((r for r in open_requests if r.id == id_), None)
        if request is None:
            return
        approve = await self._ask_callback(request)
        if approve is None:
            return
        try:
            await self._runtime.approvals.decide(id_, approve=approve, by=BY)
        except UnknownApprovalError as exc:
            _log.info(
                "a request was decided before the callback decided it", extra={"why": str(exc)}
            )

    async def _ask_callback(self, request: ApprovalRequest) -> bool | None:
        answer: Any
        if inspect.iscoroutinefunction(self._decide):
            answer = self._decide(request)
        else:
            answer = await in_thread(self._decide, request)
        approve: bool | None = await answer if inspect.isawaitable(answer) else answer
        return approve


def resources_of(modes: Mapping[str, Agent]) -> list[object]:
    """Return the models, tools and hooks of agents that can be closed, each once."""
    resources: dict[int, object] = {}
    for agent in modes.values():
        parts: list[Any] = [getattr(agent, "model", None), getattr(agent, "embedder", None)]
        for name in ("tools", "hooks", "middleware"):
            parts += getattr(agent, name, None) or ()
        resources |= {id(part): part for part in parts if _closer_of(part) is not None}
    return list(resources.values())


def _closer_of(resource: object) -> Any:
    return getattr(resource, "aclose", None) or getattr(resource, "close", None)


async def close(resource: object) -> None:
    """Close a resource with its `aclose`, else with its `close`.

    Both may be coroutine functions or plain ones.
    """
    closer = _closer_of(resource)
    if closer is not None and inspect.isawaitable(closing := closer()):
        await closing
